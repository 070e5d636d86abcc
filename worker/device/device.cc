#include "worker/device/device.h"

#include <cstring>

namespace regroup::worker {

void Stream::Copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  Run([to, from, bytes] { std::memcpy(to, from, bytes); });
}

void Stream::Zero(void* to, std::size_t bytes) {
  if (bytes == 0) return;
  Run([to, bytes] { std::memset(to, 0, bytes); });
}

void Stream::Wait(const Event& event) {
  if (event.stream == nullptr || event.stream == this) return;
  if (!event.stream->at_once_) {
    Run([event] { return event.stream->Await(event); });
  } else if (const absl::Status& failure = event.stream->failure_; !failure.ok()) {
    Run([failure] { return failure; });
  }
}

}  // namespace regroup::worker
