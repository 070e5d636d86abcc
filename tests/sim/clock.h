#pragma once

// Virtual time: closures in order of time, ties in order of scheduling.

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "common/base/time.h"

namespace regroup::sim {

class Clock {
 public:
  Instant now() const { return now_; }
  WallTime wall() const {
    return WallTime(std::chrono::duration_cast<WallTime::duration>(now_.time_since_epoch()));
  }
  void At(Instant when, std::function<void()> what) {
    due_.emplace(std::make_pair(std::max(when, now_), next_++), std::move(what));
  }
  void After(Duration delay, std::function<void()> what) { At(now_ + delay, std::move(what)); }
  // Runs what is due up to `until`, then stands there.
  void RunUntil(Instant until) {
    while (!due_.empty() && due_.begin()->first.first <= until) Next();
    now_ = std::max(now_, until);
  }
  // One closure. False: nothing is due up to `until`.
  bool RunOne(Instant until) {
    if (due_.empty() || due_.begin()->first.first > until) {
      now_ = std::max(now_, until);
      return false;
    }
    Next();
    return true;
  }

 private:
  void Next() {
    auto first = due_.begin();
    now_ = first->first.first;
    std::function<void()> what = std::move(first->second);
    due_.erase(first);
    what();
  }

  Instant now_{std::chrono::seconds(1000)};
  std::uint64_t next_ = 0;
  std::map<std::pair<Instant, std::uint64_t>, std::function<void()>> due_;
};

}  // namespace regroup::sim
