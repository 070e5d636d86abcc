#pragma once

// Ends what holds run directories of this node that are forgotten or cannot be read, and removes
// them. Loop thread.

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "agent/shim/client.h"

namespace regroup::agent {

class RunRemover {
 public:
  RunRemover(boost::asio::io_context& loop, std::function<void(std::string)> warn);
  ~RunRemover();

  // SIGKILL to the shim or the store of that directory, if there is one.
  void KillAt(const std::string& path);
  // As soon as no process holds its lock: a shim may still write its ranks' last words. One that
  // holds it for kLastWords is killed.
  void Remove(const std::string& path) { Remove(path, {}); }
  static constexpr std::chrono::milliseconds kLastWords{10'000};
  // Of a store or of no known group: kills until nothing of it is found, then removes it.
  void End(const shim::UnreadableRun& run);

  // Forgotten, but their locks are still held.
  const std::set<std::string>& removing() const { return removing_; }

 private:
  void Remove(const std::string& path, std::chrono::milliseconds waited);
  void After(std::chrono::milliseconds wait, std::function<void()> what);

  boost::asio::io_context& loop_;
  const std::function<void(std::string)> warn_;
  std::set<std::string> removing_;
  std::shared_ptr<bool> alive_;  // Held by timers that may fire after this object.
};

}  // namespace regroup::agent
