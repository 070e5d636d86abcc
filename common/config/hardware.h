#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/gpu/nvml.h"

namespace regroup {

// Logical CPUs this process may use: affinity mask and cgroup quota (v1 and v2, every level up to
// the root), at least 1.
int UsableCpus();
// Of one cgroup: "max 100000" or "150000 100000" (cpu.max). Unset: no quota.
std::optional<double> CpuQuotaOf(std::string_view cpu_max);

// The devices that a program in this environment sees, as it was told; unset: it was not. AMD's
// variable counts before NVIDIA's, unless it is empty.
struct VisibleDevices {
  std::string variable, value;
  std::vector<std::string> devices;
};
std::optional<VisibleDevices> VisibleDevicesOf(
    const std::map<std::string, std::string>& environment);
// Of this process.
std::optional<VisibleDevices> OwnVisibleDevices();

// The GPUs of this node that programs may use, each by the name that a variable has for it.
struct NodeDevices {
  std::string variable;  // What names them; empty: nothing does, and the driver was asked.
  std::vector<std::string> names;
  std::string order;     // CUDA_DEVICE_ORDER that numbers among them are by; empty: as by default.
  std::string why_none;  // Of the driver; set where there is one that has none, or fails.
};
// Those that `told` names, else those of the NVIDIA driver (a MIG instance is one), else none. By
// number, and by UUID where some are missing or fail, since CUDA may count without those.
// kDeadlineExceeded: the driver does not answer.
absl::StatusOr<NodeDevices> DevicesOfNode(
    const std::optional<VisibleDevices>& told,
    std::chrono::milliseconds patience = std::chrono::seconds(10),
    const std::string& nvml = Nvml::kLibrary);
// What slots of a node stand for, each once and in order: of as many slots as devices each is one,
// of fewer each is a block of them. Empty where there are more: they stand for none.
std::vector<std::string> DevicesOfSlots(const NodeDevices& devices, int slots,
                                        const std::vector<int>& mine);
// Those of which some device is among `names`.
std::vector<int> SlotsOfDevices(const NodeDevices& devices, int slots,
                                const std::vector<std::string>& names);
// CUDA shows a process one instance at most.
bool AnyMigInstance(const std::vector<std::string>& names);

// With a virtual local rank each worker sees a device of its own. The list that is too short for
// that; unset: it is long enough, or there is none.
std::optional<VisibleDevices> TooFewDevices(int workers,
                                            const std::map<std::string, std::string>& environment);

// --nproc-per-node: a number, or gpu, cpu, auto (GPUs, else CPUs).
absl::StatusOr<int> ResolveWorkersPerNode(std::string_view text);
// The same of a submitted job: a number, or gpu (kWorkerPerGpu), since cpu and auto would count
// what this host has and not what the nodes have that it comes to run on.
absl::StatusOr<int> ParseWorkersPerNode(std::string_view text);

}  // namespace regroup
