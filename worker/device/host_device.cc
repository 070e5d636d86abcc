#include "worker/device/host_device.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "common/base/check.h"

namespace regroup::worker {
namespace {

class AtOnce final : public Stream {
 public:
  AtOnce() : Stream(/*at_once=*/true) {}
  absl::Status Await(const Event&) override { return failure_at_once(); }

 private:
  void Begin(std::function<absl::Status()>) override { CHECK(false); }
};

class Threaded final : public Stream {
 public:
  Threaded() : Stream(/*at_once=*/false), thread_([this] { Loop(); }) {}
  ~Threaded() override {
    {
      const std::scoped_lock lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  absl::Status Await(const Event& event) override {
    std::unique_lock lock(mutex_);
    CHECK(event.stream == this && event.work <= over_ + work_.size());
    changed_.wait(lock, [&] { return over_ >= event.work; });
    return failure_;
  }

 private:
  void Begin(std::function<absl::Status()> work) override {
    const std::scoped_lock lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }
  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<absl::Status()>> work_;  // The first may be under way.
  std::uint64_t over_ = 0;
  absl::Status failure_;
  bool stop_ = false;
  std::thread thread_;  // Last: it uses all of the above.
};

void Threaded::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !work_.empty(); });
    if (work_.empty()) return;
    if (failure_.ok() && !stop_) {
      const std::function<absl::Status()> work = std::move(work_.front());
      lock.unlock();
      absl::Status status = work();
      lock.lock();
      failure_ = std::move(status);
    }
    work_.pop_front();
    ++over_;
    changed_.notify_all();
  }
}

}  // namespace

absl::StatusOr<Arena> HostDevice::Allocate(MemoryKind /*kind*/, std::size_t bytes) {
  return Arena::Create(bytes);
}

std::unique_ptr<Stream> HostDevice::NewStream(StreamKind kind) {
  if (kind == StreamKind::kCompute) return std::make_unique<AtOnce>();
  return std::make_unique<Threaded>();
}

}  // namespace regroup::worker
