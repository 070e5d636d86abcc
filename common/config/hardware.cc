#include "common/config/hardware.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/env.h"
#include "common/config/job_limits.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "common/gpu/nvml.h"

namespace regroup {
namespace {

constexpr std::string_view kWorkersToTry = "8";

int AffinityCpus() {
  constexpr int kMostCpus = 1 << 16;
  for (int cpus = 1024; cpus <= kMostCpus; cpus *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(cpus));
    std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(cpus));
    int count = ::sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::optional<double> LeastOf(std::optional<double> a, std::optional<double> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

std::optional<double> QuotaV1(const std::string& folder) {
  std::string quota = FirstLine(folder + "/cpu.cfs_quota_us"),
              period = FirstLine(folder + "/cpu.cfs_period_us");
  if (quota.empty() || quota.front() == '-') return std::nullopt;
  return CpuQuotaOf(Cat(quota, " ", period));
}

// Every level limits those below it.
std::optional<double> LeastQuota(const std::string& mount, std::string path, bool v2) {
  std::optional<double> least;
  while (true) {
    std::string folder = mount + path;
    least = LeastOf(least, v2 ? CpuQuotaOf(FirstLine(folder + "/cpu.max")) : QuotaV1(folder));
    if (path.empty() || path == "/") return least;
    path = path.substr(0, path.rfind('/'));
  }
}

std::optional<double> CgroupCpus() {
  std::ifstream in("/proc/self/cgroup");
  std::optional<double> least;
  for (std::string line; std::getline(in, line);) {
    std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1),
                path = line.substr(second + 1);
    if (controllers.empty()) {
      least = LeastOf(least, LeastQuota("/sys/fs/cgroup", path, true));
      least = LeastOf(least, LeastQuota("/sys/fs/cgroup/unified", path, true));
    } else if (Cat(",", controllers, ",").find(",cpu,") != std::string::npos) {
      least = LeastOf(least, LeastQuota("/sys/fs/cgroup/cpu", path, false));
      least = LeastOf(least, LeastQuota("/sys/fs/cgroup/" + controllers, path, false));
    }
  }
  return least;
}

}  // namespace

std::optional<double> CpuQuotaOf(std::string_view cpu_max) {
  std::istringstream in{std::string(cpu_max)};
  double quota = 0, period = 0;
  if (!(in >> quota >> period) || quota <= 0 || period <= 0)
    return std::nullopt;  // "max" is no number.
  return quota / period;
}

int UsableCpus() {
  int cpus = AffinityCpus();
  std::optional<double> quota = CgroupCpus();
  if (quota) cpus = std::min(cpus, static_cast<int>(std::max(1.0, std::ceil(*quota))));
  return std::max(cpus, 1);
}

absl::StatusOr<NodeDevices> DevicesOfNode(const std::optional<VisibleDevices>& told,
                                          std::chrono::milliseconds patience,
                                          const std::string& nvml) {
  NodeDevices devices;
  if (told) {
    devices.variable = told->variable;
    // As CUDA reads it: devices up to the first invalid entry.
    for (const std::string& device : told->devices) {
      if (device.empty() || device.front() == '-' || device == "NoDevFiles") break;
      devices.names.push_back(device);
    }
    devices.order = GetEnv("CUDA_DEVICE_ORDER").value_or("");
    return devices;
  }
  absl::StatusOr<std::vector<Gpu>> gpus = AskForGpus(patience, nvml);
  if (absl::IsDeadlineExceeded(gpus.status())) return gpus.status();
  if (absl::IsNotFound(gpus.status())) return devices;
  if (!gpus.ok()) {
    devices.why_none = std::string(gpus.status().message());
    return devices;
  }
  devices.order = "PCI_BUS_ID";
  bool all = true;
  for (std::size_t i = 0; i < gpus->size(); ++i)
    all = all && (*gpus)[i].id == Cat(i) && (*gpus)[i].trouble.empty();
  for (const Gpu& gpu : *gpus) devices.names.push_back(all || gpu.uuid.empty() ? gpu.id : gpu.uuid);
  if (gpus->empty()) devices.why_none = "the NVIDIA driver has none";
  return devices;
}

std::vector<std::string> DevicesOfSlots(const NodeDevices& devices, int slots,
                                        const std::vector<int>& mine) {
  std::vector<std::string> names;
  const std::int64_t count = std::ssize(devices.names);
  if (slots < 1 || slots > count) return names;
  for (const int slot : mine) {
    const std::int64_t number = std::clamp(slot, 0, slots - 1);
    for (std::int64_t device = number * count / slots; device < (number + 1) * count / slots;
         ++device) {
      const std::string& name = devices.names[static_cast<std::size_t>(device)];
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

std::vector<int> SlotsOfDevices(const NodeDevices& devices, int slots,
                                const std::vector<std::string>& names) {
  std::vector<int> held;
  for (int slot = 0; slot < slots; ++slot) {
    const std::vector<std::string> mine = DevicesOfSlots(devices, slots, {slot});
    if (std::find_first_of(mine.begin(), mine.end(), names.begin(), names.end()) != mine.end())
      held.push_back(slot);
  }
  return held;
}

bool AnyMigInstance(const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return name.rfind("MIG-", 0) == 0; });
}

std::optional<VisibleDevices> VisibleDevicesOf(
    const std::map<std::string, std::string>& environment) {
  auto found = environment.find("HIP_VISIBLE_DEVICES");
  if (found == environment.end() || found->second.empty())
    found = environment.find("CUDA_VISIBLE_DEVICES");
  if (found == environment.end()) return std::nullopt;
  VisibleDevices visible{found->first, found->second, {}};
  std::istringstream in(found->second + ",");  // As torchrun splits it: "" is one, without a name.
  for (std::string device; std::getline(in, device, ',');) {
    device.erase(std::remove(device.begin(), device.end(), ' '), device.end());
    visible.devices.push_back(std::move(device));
  }
  return visible;
}

std::optional<VisibleDevices> OwnVisibleDevices() {
  std::map<std::string, std::string> environment;
  for (const char* name : {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}) {
    if (const std::optional<std::string> value = GetEnv(name)) environment[name] = *value;
  }
  return VisibleDevicesOf(environment);
}

std::optional<VisibleDevices> TooFewDevices(int workers,
                                            const std::map<std::string, std::string>& environment) {
  std::optional<VisibleDevices> visible = VisibleDevicesOf(environment);
  if (visible && std::ssize(visible->devices) >= workers) visible.reset();
  return visible;
}

absl::StatusOr<int> ResolveWorkersPerNode(std::string_view text) {
  if (text == "cpu") return std::min(UsableCpus(), limits::kWorkersPerNode);
  if (text == "gpu" || text == "auto") {
    const absl::StatusOr<NodeDevices> devices = DevicesOfNode(OwnVisibleDevices());
    if (!devices.ok()) {
      return UserError(devices.status().code(), Cat("\"", text, "\": GPUs cannot be counted"),
                       std::string(devices.status().message()), "cpu");
    }
    const int gpus = static_cast<int>(devices->names.size());
    if (gpus > 0) return std::min(gpus, limits::kWorkersPerNode);
    if (text == "auto") return std::min(UsableCpus(), limits::kWorkersPerNode);
    std::string why = devices->why_none;
    if (!devices->variable.empty()) why = Cat(devices->variable, " names none");
    if (why.empty()) why = "no NVIDIA driver is installed";
    return UserError(absl::StatusCode::kInvalidArgument, "\"gpu\": this node has no GPU", why,
                     "auto");
  }
  absl::StatusOr<std::int64_t> number = ParseNumber(text, 1, limits::kWorkersPerNode);
  if (!number.ok()) {
    UserErrorParts parts = PartsOf(number.status());
    return UserError(absl::StatusCode::kInvalidArgument, parts.what,
                     Cat(parts.because, ", or gpu, cpu, auto"), "auto");
  }
  return static_cast<int>(*number);
}

absl::StatusOr<int> ParseWorkersPerNode(std::string_view text) {
  if (text == "gpu") return kWorkerPerGpu;
  if (text == "cpu" || text == "auto") {
    return UserError(absl::StatusCode::kInvalidArgument,
                     Cat("\"", text, "\" is not for a submitted job"),
                     "it runs on nodes that may have other devices than this host", kWorkersToTry);
  }
  absl::StatusOr<std::int64_t> number = ParseNumber(text, 1, limits::kWorkersPerNode);
  if (number.ok()) return static_cast<int>(*number);
  const UserErrorParts parts = PartsOf(number.status());
  return UserError(number.status().code(), parts.what, parts.because,
                   parts.try_this.empty() ? kWorkersToTry : parts.try_this);
}

}  // namespace regroup
