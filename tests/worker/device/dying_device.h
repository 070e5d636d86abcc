#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "worker/device/host_device.h"

namespace regroup::worker {

// The host, on which this process is killed before a piece of work, whichever stream it is of.
class DyingDevice final : public Device {
 public:
  bool IsHost() const override { return true; }
  absl::StatusOr<Arena> Allocate(MemoryKind kind, std::size_t bytes) override {
    return host_.Allocate(kind, bytes);
  }
  std::unique_ptr<Stream> NewStream(StreamKind kind) override {
    return std::make_unique<Counted>(*this, host_.NewStream(kind));
  }

  std::int64_t pieces() const { return pieces_; }  // Begun so far.
  // Before piece number `piece`; `last` runs right before.
  void DieAt(std::int64_t piece, std::function<void()> last) {
    last_ = std::move(last);
    die_at_ = piece;
  }

 private:
  class Counted final : public Stream {
   public:
    Counted(DyingDevice& device, std::unique_ptr<Stream> stream)
        : Stream(/*at_once=*/false), device_(device), stream_(std::move(stream)) {}
    absl::Status Await(const Event& event) override {
      return stream_->Await({stream_.get(), event.work});
    }

   private:
    void Begin(std::function<absl::Status()> work) override {
      stream_->Run([this, work = std::move(work)] {
        device_.CountPiece();
        return work();
      });
    }
    DyingDevice& device_;
    const std::unique_ptr<Stream> stream_;
  };

  void CountPiece() {
    if (pieces_++ != die_at_) return;
    last_();
    kill(getpid(), SIGKILL);
  }

  HostDevice host_;
  std::atomic<std::int64_t> pieces_{0}, die_at_{-1};
  std::function<void()> last_;
};

}  // namespace regroup::worker
