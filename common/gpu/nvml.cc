#include "common/gpu/nvml.h"

#include <dlfcn.h>

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/thread.h"

namespace regroup {

struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlEvent {
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
struct NvmlProcess {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

// Functions that a driver may lack are null.
struct NvmlApi {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*by_index)(unsigned, void**) = nullptr;
  int (*name)(void*, char*, unsigned bytes) = nullptr;
  int (*memory)(void*, NvmlMemory*) = nullptr;

  int (*uuid)(void*, char*, unsigned bytes) = nullptr;
  int (*driver_version)(char*, unsigned bytes) = nullptr;
  int (*temperature)(void*, int sensor, unsigned*) = nullptr;
  int (*ecc_errors)(void*, int kind, int counter, unsigned long long*) = nullptr;
  int (*mig_mode)(void*, unsigned* now, unsigned* after_reset) = nullptr;
  int (*most_instances)(void*, unsigned*) = nullptr;
  int (*instance)(void*, unsigned, void**) = nullptr;
  int (*processes)(void*, unsigned* count, NvmlProcess*) = nullptr;
  int (*event_set)(void**) = nullptr;
  int (*register_events)(void*, unsigned long long types, void* set) = nullptr;
  int (*await_event)(void* set, NvmlEvent*, unsigned milliseconds) = nullptr;
  int (*free_event_set)(void*) = nullptr;
};

namespace {

constexpr int kSuccess = 0, kNotSupported = 3, kNoPermission = 4, kTooSmall = 7, kGpuIsLost = 15;
// Of programs, not of the GPU: an exception, a fault of its memory accesses, its end.
constexpr std::array kXidsOfPrograms = {13, 31, 43, 45};
constexpr int kGpuSensor = 0, kUncorrected = 1, kVolatile = 0;
constexpr unsigned kMigEnabled = 1;
constexpr unsigned long long kXidCriticalError = 8;
constexpr std::size_t kTextBytes = 96;  // NVML's own limit of names and UUIDs, the longer form.
constexpr unsigned kMostProcesses = 256;

template <typename Function>
bool Bind(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

using TextOf = int (*)(void*, char*, unsigned);
std::optional<std::string> Text(TextOf function, void* device) {
  std::array<char, kTextBytes + 1> text{};
  if (function == nullptr || function(device, text.data(), kTextBytes) != kSuccess)
    return std::nullopt;
  return text.data();
}

}  // namespace

absl::StatusOr<Nvml> Nvml::Open(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::NotFoundError(absl::StrCat("no NVIDIA driver: ", dlerror()));
  auto api = std::make_unique<NvmlApi>();
  const bool complete = Bind(library, "nvmlInit_v2", api->init) &&
                        Bind(library, "nvmlShutdown", api->shutdown) &&
                        Bind(library, "nvmlErrorString", api->error_string) &&
                        Bind(library, "nvmlDeviceGetCount_v2", api->count) &&
                        Bind(library, "nvmlDeviceGetHandleByIndex_v2", api->by_index) &&
                        Bind(library, "nvmlDeviceGetName", api->name) &&
                        Bind(library, "nvmlDeviceGetMemoryInfo", api->memory);
  if (!complete) return absl::UnavailableError(absl::StrCat(path, " is no NVML"));
  Bind(library, "nvmlDeviceGetUUID", api->uuid);
  Bind(library, "nvmlSystemGetDriverVersion", api->driver_version);
  Bind(library, "nvmlDeviceGetTemperature", api->temperature);
  Bind(library, "nvmlDeviceGetTotalEccErrors", api->ecc_errors);
  Bind(library, "nvmlDeviceGetMigMode", api->mig_mode);
  Bind(library, "nvmlDeviceGetMaxMigDeviceCount", api->most_instances);
  Bind(library, "nvmlDeviceGetMigDeviceHandleByIndex", api->instance);
  Bind(library, "nvmlDeviceGetComputeRunningProcesses_v3", api->processes);
  if (!Bind(library, "nvmlEventSetCreate", api->event_set) ||
      !Bind(library, "nvmlDeviceRegisterEvents", api->register_events) ||
      !Bind(library, "nvmlEventSetWait_v2", api->await_event) ||
      !Bind(library, "nvmlEventSetFree", api->free_event_set))
    api->event_set = nullptr;
  if (const int code = api->init(); code != kSuccess) {
    return absl::UnavailableError(
        absl::StrCat("the NVIDIA driver does not work: ", api->error_string(code)));
  }
  Nvml nvml(std::move(api));
  std::array<char, kTextBytes + 1> version{};
  if (nvml.api_->driver_version != nullptr &&
      nvml.api_->driver_version(version.data(), kTextBytes) == kSuccess)
    nvml.driver_ = version.data();
  return nvml;
}

Nvml::Nvml(std::unique_ptr<const NvmlApi> api) : api_(std::move(api)) {}

Nvml::Nvml(Nvml&& other) noexcept
    : api_(std::move(other.api_)),
      driver_(std::move(other.driver_)),
      wholes_(std::move(other.wholes_)),
      parts_(std::move(other.parts_)),
      events_(std::exchange(other.events_, nullptr)) {}

Nvml::~Nvml() {
  if (api_ == nullptr) return;
  if (events_ != nullptr) api_->free_event_set(events_);
  api_->shutdown();
}

std::string Nvml::Words(int code) const {
  const char* words = api_->error_string(code);
  return words == nullptr ? absl::StrCat("error ", code) : words;
}

absl::Status Nvml::Look() {
  unsigned count = 0;
  if (const int code = api_->count(&count); code != kSuccess) {
    return absl::UnavailableError(
        absl::StrCat("the NVIDIA driver does not count its GPUs: ", Words(code)));
  }
  wholes_.resize(count);
  parts_.clear();
  for (std::size_t number = 0; number < count; ++number) LookAt(number);
  return absl::OkStatus();
}

void Nvml::LookAt(std::size_t number) {
  Whole& whole = wholes_[number];
  Part part;
  part.whole = number;
  part.gpu.id = absl::StrCat(number);
  if (const int code = api_->by_index(static_cast<unsigned>(number), &whole.device);
      code != kSuccess) {
    whole.device = nullptr;
    if (code == kNoPermission) return;  // It is another container's.
    part.gpu.trouble = Words(code);
    parts_.push_back(std::move(part));
    return;
  }
  unsigned mode = 0, after_reset = 0, instances = 0;
  const bool divided =
      api_->mig_mode != nullptr && api_->most_instances != nullptr && api_->instance != nullptr &&
      api_->mig_mode(whole.device, &mode, &after_reset) == kSuccess && mode == kMigEnabled;
  if (!divided) {
    part.device = whole.device;
    part.gpu.uuid = Text(api_->uuid, whole.device).value_or("");
    parts_.push_back(std::move(part));
    return;
  }
  if (api_->most_instances(whole.device, &instances) != kSuccess) instances = 0;
  for (unsigned i = 0; i < instances; ++i) {
    if (api_->instance(whole.device, i, &part.device) != kSuccess) continue;  // Not made.
    const std::optional<std::string> uuid = Text(api_->uuid, part.device);
    if (!uuid) continue;
    part.gpu.id = *uuid;
    part.gpu.uuid = *uuid;
    parts_.push_back(part);
  }
}

void Nvml::Describe(Part& part) const {
  if (part.device == nullptr) return;
  Gpu& gpu = part.gpu;
  const Whole& whole = wholes_[part.whole];
  NvmlMemory memory{};
  int code = kSuccess;
  if (const std::optional<std::string> name = Text(api_->name, part.device)) gpu.name = *name;
  if (code = api_->memory(part.device, &memory); code == kSuccess) {
    gpu.memory_bytes = memory.total;
    gpu.used_bytes = memory.used;
  }
  unsigned celsius = 0;
  if (api_->temperature != nullptr) {
    const int told = api_->temperature(whole.device, kGpuSensor, &celsius);
    if (told == kSuccess) gpu.celsius = static_cast<int>(celsius);
    if (told == kGpuIsLost) code = told;
  }
  unsigned long long errors = 0;
  if (api_->ecc_errors != nullptr &&
      api_->ecc_errors(whole.device, kUncorrected, kVolatile, &errors) == kSuccess)
    gpu.ecc_errors = errors;
  gpu.xids = whole.xids;
  gpu.last_xid = whole.last_xid;
  if (code != kSuccess && code != kNotSupported) gpu.trouble = Words(code);
}

absl::StatusOr<std::vector<Gpu>> Nvml::Gpus() {
  RETURN_IF_ERROR(Look());
  std::vector<Gpu> gpus;
  for (Part& part : parts_) {
    Describe(part);
    gpus.push_back(part.gpu);
  }
  return gpus;
}

void Nvml::ListenForErrors() {
  if (events_ != nullptr || api_->event_set == nullptr || !Look().ok() ||
      api_->event_set(&events_) != kSuccess)
    return;
  for (const Whole& whole : wholes_) {
    if (whole.device != nullptr) api_->register_events(whole.device, kXidCriticalError, events_);
  }
}

bool Nvml::AwaitError(std::chrono::milliseconds at_most) {
  NvmlEvent event{};
  if (events_ == nullptr ||
      api_->await_event(events_, &event, static_cast<unsigned>(at_most.count())) != kSuccess ||
      event.type != kXidCriticalError)
    return false;
  for (const int xid : kXidsOfPrograms)
    if (event.data == static_cast<unsigned long long>(xid)) return false;
  for (Whole& whole : wholes_) {
    if (whole.device != event.device) continue;
    ++whole.xids;
    whole.last_xid = event.data;
  }
  return true;
}

std::optional<std::vector<std::int64_t>> Nvml::ProcessesOn(const std::string& id) {
  for (const Part& part : parts_) {
    if (part.gpu.id != id || part.device == nullptr || api_->processes == nullptr) continue;
    std::array<NvmlProcess, kMostProcesses> processes{};
    unsigned count = kMostProcesses;
    const int code = api_->processes(part.device, &count, processes.data());
    if (code != kSuccess && code != kTooSmall) return std::nullopt;
    std::vector<std::int64_t> pids;
    for (unsigned i = 0; i < count && i < kMostProcesses; ++i)
      pids.push_back(static_cast<std::int64_t>(processes[i].pid));
    return pids;
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<Gpu>> AskForGpus(std::chrono::milliseconds patience,
                                            const std::string& library) {
  struct Answer {
    std::mutex mutex;
    std::condition_variable given;
    std::optional<absl::StatusOr<std::vector<Gpu>>> gpus;
  };
  auto answer = std::make_shared<Answer>();
  absl::StatusOr<std::thread> asking = io::StartThread([answer, library] {
    absl::StatusOr<std::vector<Gpu>> gpus = [&]() -> absl::StatusOr<std::vector<Gpu>> {
      ASSIGN_OR_RETURN(Nvml nvml, Nvml::Open(library));
      return nvml.Gpus();
    }();
    const std::lock_guard lock(answer->mutex);
    answer->gpus = std::move(gpus);
    answer->given.notify_all();
  });
  if (!asking.ok()) return asking.status();
  asking->detach();
  std::unique_lock lock(answer->mutex);
  if (answer->given.wait_for(lock, patience, [&] { return answer->gpus.has_value(); }))
    return *std::move(answer->gpus);
  return absl::DeadlineExceededError(absl::StrCat("the NVIDIA driver does not answer within ",
                                                  std::chrono::duration<double>(patience).count(),
                                                  " s"));
}

}  // namespace regroup
