#pragma once

#include <string>
#include <vector>

#include "common/base/gpu.h"
#include "common/report/text_style.h"

namespace regroup::cli {

// Of a line in a list: "8 × NVIDIA H100, 512 MiB of 640 GiB used, 38–41 °C", and who fails or has
// failed before that. Empty without GPUs.
std::string GpuSummary(const std::vector<Gpu>& gpus);

// A line for each.
std::string GpuTable(const std::vector<Gpu>& gpus, const TextStyle& style);

}  // namespace regroup::cli
