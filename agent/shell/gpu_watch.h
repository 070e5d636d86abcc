#pragma once

// The GPUs of this node as they are now, for whom the fleet is shown to. A thread of its own asks
// the driver, which may take for ever; nobody else ever waits for it. Without a driver that thread
// ends at once.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/gpu.h"
#include "common/config/hardware.h"

namespace regroup::agent {

class GpuWatch {
 public:
  struct Options {
    NodeDevices devices;  // Told of are those alone that this names.
    std::chrono::milliseconds every = std::chrono::seconds(10);
    // A driver that has not answered for so long is said not to.
    std::chrono::milliseconds patience = std::chrono::seconds(30);
    std::string library = Nvml::kLibrary;
  };
  explicit GpuWatch(Options options);
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;
  ~GpuWatch();  // Does not wait for the thread.

  struct Seen {
    std::uint64_t number = 0;  // Rises with each change; 0: nothing is known yet.
    std::vector<Gpu> gpus;
  };
  // Any thread. At most kMaxGpusPerNode: of more the first.
  Seen Latest();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace regroup::agent
