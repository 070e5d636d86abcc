#pragma once

// What happens to a group, one thing at a time, as tests tell it, and the absolute record that an
// agent's core is told instead.

#include <algorithm>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "agent/core/events.h"

namespace regroup::agent::testing {

struct ShimReady {
  GroupKey key;
  std::optional<Address> witness;
  bool checking = false;
};
struct NodeChecked {
  GroupKey key;
};
struct StoreBound {
  GroupKey key;
  Address address;
};
struct RanksStarted {
  GroupKey key;
  std::vector<RankStarted> starts;
};
struct RankExited {
  GroupKey key;
  RankEnded exit;
};
struct GroupEmpty {
  GroupKey key;
  bool awaits_words = false;
};
struct GroupStuck {
  GroupKey key;
};
struct ShimGone {
  GroupKey key;
};
struct StoreGone {
  GroupKey key;
};

// The host's side of it: folds what happens into records. Of a group that it does not know nothing
// has happened yet.
class Sights {
 public:
  void Begin(const RunRecord& record) { records_[record.key] = record; }
  void Forget(const GroupKey& key) { records_.erase(key); }

  GroupSeen operator()(const ShimReady& ready) {
    RunRecord& record = Of(ready.key);
    record.unheard = false;
    record.shim_alive = true;
    record.witness = ready.witness;
    record.checking = ready.checking;
    return {record};
  }
  GroupSeen operator()(const NodeChecked& checked) {
    Of(checked.key).checking = false;
    return {Of(checked.key)};
  }
  GroupSeen operator()(const StoreBound& bound) {
    Of(bound.key).store = {
        .hosted = true, .alive = true, .closed = false, .address = bound.address};
    return {Of(bound.key)};
  }
  GroupSeen operator()(const RanksStarted& started) {
    RunRecord& record = Of(started.key);
    record.started = true;
    for (const RankStarted& start : started.starts) {
      std::erase_if(record.starts,
                    [&](const RankStarted& other) { return other.local_rank == start.local_rank; });
      record.starts.push_back(start);
    }
    return {record};
  }
  GroupSeen operator()(const RankExited& exited) {
    std::vector<RankEnded>& exits = Of(exited.key).exits;
    const bool known = std::any_of(exits.begin(), exits.end(), [&](const RankEnded& exit) {
      return exit.local_rank == exited.exit.local_rank;
    });
    if (!known) exits.push_back(exited.exit);
    return {Of(exited.key)};
  }
  GroupSeen operator()(const GroupEmpty& empty) {
    Of(empty.key).empty = true;
    Of(empty.key).awaits_words = empty.awaits_words;
    return {Of(empty.key)};
  }
  GroupSeen operator()(const GroupStuck& stuck) {
    Of(stuck.key).unkillable = true;
    return {Of(stuck.key)};
  }
  GroupSeen operator()(const ShimGone& gone) {
    Of(gone.key).unheard = Of(gone.key).shim_alive = false;
    return {Of(gone.key)};
  }
  GroupSeen operator()(const StoreGone& gone) {
    Of(gone.key).store.alive = false;
    return {Of(gone.key)};
  }

 private:
  RunRecord& Of(const GroupKey& key) {
    const auto [at, is_new] = records_.try_emplace(key);
    at->second.key = key;
    if (is_new) at->second.unheard = true;
    return at->second;
  }

  std::map<GroupKey, RunRecord> records_;
};

// The other way round: what a host has told, one thing at a time.
using Happening = std::variant<ShimReady, NodeChecked, StoreBound, RanksStarted, RankExited,
                               GroupEmpty, GroupStuck, ShimGone, StoreGone, RunDirectoryWritten,
                               PrepareFailed, WarmedUp, RankErrorRead, LeftoversKilled>;

// What has happened since `was`.
inline std::vector<Happening> Happened(const RunRecord& was, const RunRecord& now) {
  std::vector<Happening> happened;
  if (now.store.address && !was.store.address)
    happened.push_back(StoreBound{now.key, *now.store.address});
  if (now.shim_alive && !was.shim_alive)
    happened.push_back(ShimReady{now.key, now.witness, now.checking || !now.check_failed.empty()});
  if (was.check_failed.empty() && !now.check_failed.empty())
    happened.push_back(PrepareFailed{now.key, now.check_failed});
  const bool stops = now.stop_deadline || now.empty || !now.check_failed.empty();
  if (was.checking && !now.checking && now.shim_alive && !stops)
    happened.push_back(NodeChecked{now.key});
  if (now.started && (!was.started || now.starts.size() > was.starts.size()) && !now.starts.empty())
    happened.push_back(RanksStarted{now.key, now.starts});
  for (const RankEnded& exit : now.exits) {
    if (std::none_of(was.exits.begin(), was.exits.end(),
                     [&](const RankEnded& known) { return known.local_rank == exit.local_rank; }))
      happened.push_back(RankExited{now.key, exit});
  }
  if (now.unkillable && !was.unkillable) happened.push_back(GroupStuck{now.key});
  if (now.empty && (!was.empty || was.awaits_words != now.awaits_words))
    happened.push_back(GroupEmpty{now.key, now.awaits_words});
  const bool gone = !now.shim_alive && !now.unheard && !now.empty;
  if (gone && (was.shim_alive || was.unheard)) happened.push_back(ShimGone{now.key});
  if (was.store.alive && !now.store.alive) happened.push_back(StoreGone{now.key});
  return happened;
}

class Telling {
 public:
  // What is known of a group already, from a scan.
  void Begin(const RunRecord& record) { records_[record.key] = record; }
  void operator()(const Event& event) {
    std::visit(
        [this](const auto& told) {
          if constexpr (std::is_constructible_v<Happening, decltype(told)>) told_.push_back(told);
        },
        event);
    const auto* seen = std::get_if<GroupSeen>(&event);
    if (seen == nullptr) return;
    RunRecord none;
    none.unheard = true;
    RunRecord& was = records_.try_emplace(seen->record.key, none).first->second;
    for (Happening& told : Happened(was, seen->record)) told_.push_back(std::move(told));
    was = seen->record;
  }
  const std::vector<Happening>& told() const { return told_; }

 private:
  std::map<GroupKey, RunRecord> records_;
  std::vector<Happening> told_;
};

}  // namespace regroup::agent::testing
