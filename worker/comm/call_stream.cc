#include "worker/comm/call_stream.h"

#include <utility>

#include "common/base/check.h"

namespace regroup::worker {

CallStream::CallStream() : thread_([this] { Run(); }) {}

CallStream::~CallStream() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::uint64_t CallStream::Start(std::function<absl::Status()> call) {
  const std::scoped_lock lock(mutex_);
  calls_.push_back(std::move(call));
  changed_.notify_all();
  return ++started_;
}

absl::Status CallStream::Await(std::uint64_t call) {
  std::unique_lock lock(mutex_);
  CHECK(call <= started_);
  changed_.wait(lock, [&] { return over_ >= call; });
  return failure_;
}

absl::Status CallStream::AwaitAll() { return Await(started_); }

void CallStream::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !calls_.empty(); });
    if (calls_.empty()) return;
    if (failure_.ok() && !stop_) {
      const std::function<absl::Status()> call = std::move(calls_.front());
      lock.unlock();
      absl::Status status = call();
      lock.lock();
      failure_ = std::move(status);
    }
    calls_.pop_front();
    ++over_;
    changed_.notify_all();
  }
}

}  // namespace regroup::worker
