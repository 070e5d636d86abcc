#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"

namespace regroup::worker {

enum class DataFormat : std::uint8_t {
  // llm.c's token file where a file begins with its magic, else nanoGPT's where its name ends in
  // .bin, else text.
  kAuto,
  kText,
  kLlmC,
  kNanoGpt,
};

struct DataOptions {
  DataFormat format = DataFormat::kAuto;
  int vocabulary = 0;  // 0: 256 of text, else what TokenDataset::Open says.
  int context = 1;
};

// The files and directories as one data set, all of them text or all of them token files. Invalid
// argument names the file, and what is wrong with it.
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const std::vector<std::string>& paths,
                                                     const DataOptions& options);

}  // namespace regroup::worker
