#pragma once

// The GPUs of this host as NVIDIA's driver counts and describes them. NVML comes with the driver,
// so it is looked for when somebody asks, and never linked. Names, order of arguments, numbers and
// layouts are those of <nvml.h> 12 and 13.
//
// Where a driver is stuck any call of it may never come back: AskForGpus waits for as long as it is
// told; who wants to know all the time has a thread for that.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/gpu.h"

namespace regroup {

struct NvmlApi;

// One thread at a time.
class Nvml {
 public:
  static constexpr char kLibrary[] = "libnvidia-ml.so.1";

  //   kNotFound     there is no such library: no driver is installed.
  //   kUnavailable  the driver does not work; its own words are in the message.
  static absl::StatusOr<Nvml> Open(const std::string& library = kLibrary);
  Nvml(Nvml&& other) noexcept;
  Nvml& operator=(Nvml&&) = delete;
  ~Nvml();

  // In the order of their ids. A GPU that is divided counts as its instances, none of them as
  // nothing: CUDA would not run on the whole. One that fails is in the list, with its trouble; one
  // that this process may not use is not.
  // kUnavailable: they cannot even be counted.
  absl::StatusOr<std::vector<Gpu>> Gpus();

  // From now on errors are counted, but those that programs make (Xid 13, 31, 43, 45). Repeatable:
  // where the driver could not be asked.
  void ListenForErrors();
  // Waits for the next one, for that long at most; not at all where the driver tells of none. True:
  // there was one.
  bool AwaitError(std::chrono::milliseconds at_most);

  // Who computes on a GPU, or on an instance, by pid: of all containers, where this process may
  // see them; of more than 256 some. Unset where the driver does not say.
  std::optional<std::vector<std::int64_t>> ProcessesOn(const std::string& id);

  const std::string& driver() const { return driver_; }  // Its version; empty: it does not say.

 private:
  struct Whole {  // Errors are told of whole GPUs.
    void* device = nullptr;
    std::uint64_t xids = 0, last_xid = 0;
  };
  struct Part {
    void* device = nullptr;
    std::size_t whole = 0;
    Gpu gpu;
  };
  explicit Nvml(std::unique_ptr<const NvmlApi> api);
  absl::Status Look();
  void LookAt(std::size_t number);
  void Describe(Part& part) const;
  std::string Words(int code) const;

  std::unique_ptr<const NvmlApi> api_;  // Null: moved from.
  std::string driver_;
  std::vector<Whole> wholes_;
  std::vector<Part> parts_;
  void* events_ = nullptr;
};

// kNotFound, kUnavailable: as above; an empty list: a driver without GPUs. kDeadlineExceeded: it
// does not answer. The thread that waits for it stays.
absl::StatusOr<std::vector<Gpu>> AskForGpus(
    std::chrono::milliseconds patience = std::chrono::seconds(10),
    const std::string& library = Nvml::kLibrary);

}  // namespace regroup
