#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace regroup {

// Logical CPUs this process may use: affinity mask and cgroup quota (v1 and v2, every level up to
// the root), at least 1.
int UsableCpus();
// Of one cgroup: "max 100000" or "150000 100000" (cpu.max). Unset: no quota.
std::optional<double> CpuQuotaOf(std::string_view cpu_max);

// GPUs of this node: CUDA_VISIBLE_DEVICES when set, else NVML's count, else 0.
int UsableGpus();

// The devices that a program in this environment sees, as it was told; unset: it was not. AMD's
// variable counts before NVIDIA's, unless it is empty.
struct VisibleDevices {
  std::string variable, value;
  std::vector<std::string> devices;
};
std::optional<VisibleDevices> VisibleDevicesOf(
    const std::map<std::string, std::string>& environment);
// With a virtual local rank each worker sees a device of its own. The list that is too short for
// that; unset: it is long enough, or there is none.
std::optional<VisibleDevices> TooFewDevices(int workers,
                                            const std::map<std::string, std::string>& environment);

// --nproc-per-node: a number, or gpu, cpu, auto (GPUs, else CPUs).
absl::StatusOr<int> ResolveWorkersPerNode(std::string_view text);
// The same of a submitted job: a number, since gpu, cpu and auto would count this host's devices
// and not those of the nodes that it comes to run on.
absl::StatusOr<int> ParseWorkersPerNode(std::string_view text);

}  // namespace regroup
