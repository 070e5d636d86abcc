#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/flags.h"

namespace regroup::worker {

struct GenerateConfig {
  std::string checkpoint;  // The --checkpoint-dir of a training.
  std::string prompt = "\n";
  int tokens = 200;
  double temperature = 0.8;
  std::uint64_t seed = 1;
};

CommandDescription DescribeGenerate();
void DescribeGenerateFlags(CLI::App& app, GenerateConfig& config);
// None: --help was asked for.
absl::StatusOr<std::optional<GenerateConfig>> ReadGenerateConfig(
    const std::vector<std::string>& args);

// Writes the prompt and what the model of the newest commit that verifies goes on with to standard
// output. The same seed gives the same text.
absl::Status Generate(const GenerateConfig& config);

}  // namespace regroup::worker
