#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/status/status.h"

namespace regroup::worker {

// Makes calls one after the other, on a thread of its own. Whoever makes calls of the same
// collectives beside it waits for those under way first. Used by one thread.
class CallStream {
 public:
  CallStream();
  // Waits for what is under way: whoever wants it to be short ends the group first.
  ~CallStream();
  CallStream(const CallStream&) = delete;
  CallStream& operator=(const CallStream&) = delete;

  // Begins `call` once those before it are over; after one that failed, none is made. What it uses
  // stays as it is until it was awaited, by the number that this returns.
  std::uint64_t Start(std::function<absl::Status()> call);
  // Until that call and all before it are over, and what they have written can be read. The first
  // failure of any so far.
  absl::Status Await(std::uint64_t call);
  absl::Status AwaitAll();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<absl::Status()>> calls_;  // The first one may be under way.
  std::uint64_t started_ = 0, over_ = 0;
  absl::Status failure_;
  bool stop_ = false;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace regroup::worker
