#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "worker/model/gpt.h"

namespace regroup::worker {

// A model as a checkpoint's record has it: layers, width, heads, vocabulary, context, tied-head.
std::map<std::string, std::int64_t> SizesOf(const GptConfig& model);

}  // namespace regroup::worker
