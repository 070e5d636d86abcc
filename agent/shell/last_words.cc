#include "agent/shell/last_words.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "agent/shell/hosted_group.h"
#include "agent/shell/worker_environment.h"
#include "common/io/log_files.h"

namespace regroup::agent {

LastWords::LastWords(boost::asio::io_context& loop, boost::asio::thread_pool& disk, Heard heard)
    : loop_(loop), disk_(disk), heard_(std::move(heard)), alive_(std::make_shared<bool>(true)) {}

LastWords::~LastWords() { *alive_ = false; }

void LastWords::Read(const GroupKey& key, const std::string& path, const shim::Spec& spec,
                     const shim::State& state, bool all) {
  for (const shim::RankState& rank : state.ranks) {
    if (!Failed(rank) || !(all || rank.logs_complete)) continue;
    Group& group = groups_[key];
    if (!group.begun.insert(rank.local_rank).second) continue;
    ++group.reading;
    const std::string file = ErrorFile(path, rank.local_rank);
    const std::string logs = io::LogDirectory(spec.log_root, key.job, key.generation, rank.rank);
    boost::asio::post(disk_, [this, alive = alive_, key, local_rank = rank.local_rank, file, logs] {
      boost::asio::post(loop_, [this, alive, key, local_rank, said = ReadExitError(file, logs)] {
        if (!*alive) return;
        const auto found = groups_.find(key);
        if (found == groups_.end()) return;
        --found->second.reading;
        heard_(key, local_rank, said);
      });
    });
  }
}

bool LastWords::Awaited(const GroupKey& key, const shim::State& state) const {
  const auto found = groups_.find(key);
  if (found != groups_.end() && found->second.reading > 0) return true;
  return std::any_of(state.ranks.begin(), state.ranks.end(), [&](const shim::RankState& rank) {
    return Failed(rank) &&
           (found == groups_.end() || !found->second.begun.contains(rank.local_rank));
  });
}

}  // namespace regroup::agent
