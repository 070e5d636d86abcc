#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "worker/checkpoint/manifest.h"
#include "worker/model/gpt.h"

namespace regroup::worker {

// A model as a checkpoint's record has it: layers, width, heads, vocabulary, context, tied-head.
std::map<std::string, std::int64_t> SizesOf(const GptConfig& model);
// What the record does not say is 0, which Validate refuses, but for the head, which is tied.
GptConfig GptOf(const std::map<std::string, std::int64_t>& sizes);

// Failed precondition, naming every size that the checkpoint has and `model` has otherwise.
absl::Status CheckModel(const Manifest& checkpoint, const GptConfig& model);

}  // namespace regroup::worker
