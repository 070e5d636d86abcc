#pragma once

// What failed ranks of this node's groups left behind: their error files, or the end of what they
// printed. Loop thread; the files are read on `disk`, since they may lie on a file system that
// hangs.

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "agent/core/events.h"
#include "agent/shell/exit_error.h"
#include "agent/shim/protocol.h"

namespace regroup::agent {

class LastWords {
 public:
  // Called on the loop, once for each failed rank of a group that is not forgotten; `said` may be
  // empty.
  using Heard = std::function<void(const GroupKey&, int local_rank, const ExitError& said)>;
  LastWords(boost::asio::io_context& loop, boost::asio::thread_pool& disk, Heard heard);
  ~LastWords();

  // Begins to read those of the failed ranks of that state whose logs are complete, each once; of
  // `all` where nothing is written any more. `path` is the group's run directory.
  void Read(const GroupKey& key, const std::string& path, const shim::Spec& spec,
            const shim::State& state, bool all);
  // Some failed rank of that state has not been heard.
  bool Awaited(const GroupKey& key, const shim::State& state) const;
  void Forget(const GroupKey& key) { groups_.erase(key); }

 private:
  struct Group {
    std::set<int> begun;  // Local ranks.
    int reading = 0;
  };
  boost::asio::io_context& loop_;
  boost::asio::thread_pool& disk_;
  const Heard heard_;
  std::map<GroupKey, Group> groups_;
  std::shared_ptr<bool> alive_;  // Held by reads that may end after this object.
};

}  // namespace regroup::agent
