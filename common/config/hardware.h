#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace regroup {

// Logical CPUs this process may use: affinity mask and cgroup quota (v1 and v2, every level up to
// the root), at least 1.
int UsableCpus();
// Of one cgroup: "max 100000" or "150000 100000" (cpu.max). Unset: no quota.
std::optional<double> CpuQuotaOf(std::string_view cpu_max);

// GPUs of this node: CUDA_VISIBLE_DEVICES when set, else NVML's count, else 0.
int UsableGpus();

// --nproc-per-node: a number, or gpu, cpu, auto (GPUs, else CPUs).
absl::StatusOr<int> ResolveWorkersPerNode(std::string_view text);

}  // namespace regroup
