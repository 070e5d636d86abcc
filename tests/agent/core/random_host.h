#pragma once

// The host of one node in random lives: run directories, shims, stores and workers, which do what
// they like and outlive their agent.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "agent/core/events.h"
#include "common/base/rng.h"
#include "tests/agent/core/driver.h"

namespace regroup::agent::testing {

inline constexpr int kSlots = 3;

namespace host {

struct Rank {
  std::int64_t pid = 0;
  bool alive = false;
  bool exited = false;
  bool after_stop = false;  // Its shim had been told to stop.
  Instant at{};
  // The worker in it.
  bool able = false;     // It can retire.
  bool greeted = false;  // Its connection to this life of the agent is open.
  bool retire = false;   // It was told to, and has not answered.
  bool signalled = false;
  bool gone_on_without = false;  // Because it could not retire.
  bool told = false;             // It was told to, by this life of the agent.
  bool hangs = false;            // From what it was told last on.
  Generation generation;         // That it takes itself to be of.
  Generation next;               // That it was told of. Not: none.
};
struct Shim {
  bool alive = true, ready = false, free = false, killed = false;
  bool started = false;  // Its mark.
  bool checking = false, check_failed = false;
  bool awaits_words = false;  // What its ranks left is being read.
  bool wedged = false;        // It answers nobody.
  std::vector<Action> inbox;  // Sent by an agent, alive or dead; not read yet.
  std::vector<Rank> ranks;
  std::set<int> kept;  // Ranks whose process is older than its generation.
  std::optional<Instant> stop_deadline;
};
struct Directory {
  Prepare prepare;
  std::vector<int> slots;  // Empty: an older agent wrote it.
  std::optional<Shim> shim;
  bool store_alive = false, store_closed = false;
  std::set<int> signalled;  // The mark.
  std::optional<Address> store;
  bool checked = false;  // Its node check has passed.
  // What its ranks have started outlives its shim.
  bool strays = false, had_strays = false;
  int clean_rounds = 0;  // In a row that found none.
};

// The node: what survives an agent.
struct Node {
  std::map<GroupKey, Directory> directories;
  std::map<GroupKey, int> rank_starts;  // Ever, by group; outlives the directory.
  int handed_over = 0;                  // Shims, ever.
  Generation stopped_up_to[2];          // What an agent has obeyed, by job.
  int LiveRanks() const {
    int live = 0;
    for (const auto& [key, directory] : directories) {
      if (!directory.shim) continue;
      for (const Rank& rank : directory.shim->ranks) live += rank.alive;
    }
    return live;
  }
};

}  // namespace host

class RandomHost {
 protected:
  using Rank = host::Rank;
  using Shim = host::Shim;
  using Directory = host::Directory;
  using Node = host::Node;

  explicit RandomHost(std::uint64_t seed) : rng_(seed) {}
  virtual ~RandomHost() = default;
  virtual void Later(Event event) = 0;  // The agent hears of it, if it lives as long.

  void See(const GroupKey& key) { Later(GroupSeen{RecordOf(key, node_.directories.at(key))}); }

  RunRecord RecordOf(const GroupKey& key, const Directory& directory) {
    RunRecord record;
    record.key = key;
    record.boot = BootId("boot");
    record.workers = directory.prepare.spec.workers;
    record.slots = directory.slots;
    record.store.hosted = directory.prepare.host_store;
    record.store.alive = directory.store_alive;
    record.store.closed = directory.store_closed;
    record.signalled = directory.signalled;
    record.store.address = directory.store;
    record.unheard = !directory.shim;
    if (!directory.shim) return record;
    const Shim& shim = *directory.shim;
    record.shim_alive = shim.alive && shim.ready;
    record.unheard = shim.alive && !shim.ready;
    record.witness = Address{"10.0.0.2", 5000};
    record.started = shim.started;
    record.empty = shim.free;
    record.awaits_words = shim.awaits_words;
    record.checking = shim.checking;
    if (shim.check_failed) record.check_failed = "it has failed";
    record.killed = shim.killed;
    record.stop_deadline = shim.stop_deadline;
    for (std::size_t i = 0; i < shim.ranks.size(); ++i) {
      const int local = static_cast<int>(i);
      const Rank& rank = shim.ranks[i];
      if (rank.pid != 0) record.starts.push_back({local, rank.pid, rank.at});
      if (rank.exited) record.exits.push_back(ExitOf(local, rank));
    }
    record.kept = shim.kept;
    return record;
  }
  static RankEnded ExitOf(int local_rank, const Rank& rank) {
    return {
        .local_rank = local_rank, .after_stop = rank.after_stop, .pid = rank.pid, .at = rank.at};
  }

  // Its shim has yet to say whether it takes another generation.
  bool IsAsked(const GroupKey& key) {
    const Directory& directory = node_.directories.at(key);
    return directory.shim && directory.shim->alive &&
           std::any_of(directory.shim->inbox.begin(), directory.shim->inbox.end(),
                       [](const Action& a) { return std::holds_alternative<HandOver>(a); });
  }

  void AnswerHandOver(const GroupKey& key) {
    Directory& directory = node_.directories.at(key);
    if (!directory.shim || !IsAsked(key) || directory.shim->free) return;
    Shim& last = *directory.shim;
    HandOver asked;
    for (const Action& action : std::exchange(last.inbox, {})) {
      if (const auto* over = std::get_if<HandOver>(&action)) asked = *over;
    }
    const auto to = node_.directories.find(asked.to);
    if (to == node_.directories.end() || last.stop_deadline || (faults_ && rng_.Below(10) == 0))
      return Later(PrepareFailed{asked.to, "it stops"});
    Shim& next = to->second.shim.emplace(last);
    to->second.checked = true;
    last.alive = false;
    last.free = true;
    next.started = false;
    next.kept.clear();
    for (std::size_t i = 0; i < next.ranks.size(); ++i) {
      if (next.ranks[i].alive) {
        next.kept.insert(static_cast<int>(i));
      } else {
        next.ranks[i] = Rank{};  // It is started anew.
      }
      last.ranks[i].alive = false;
    }
    ++node_.handed_over;
    See(asked.to);
    See(key);
  }

  void StartAll(const GroupKey& key, Shim& shim, const StartRanks& start) {
    shim.started = true;
    const bool able = rng_.Below(4) != 0;
    for (std::size_t i = 0; i < shim.ranks.size(); ++i) {
      Rank& rank = shim.ranks[i];
      const int local = static_cast<int>(i);
      if (rank.alive) {
        EXPECT_TRUE(start.kept.contains(local)) << "a kept rank is not told of its generation";
        rank.next = key.generation;
      } else {
        shim.kept.erase(local);
        rank = Rank{};
        rank.pid = ++pid_;
        rank.alive = true;
        rank.at = now_;
        rank.generation = key.generation;
        rank.able = able || rng_.Below(3) == 0;
      }
    }
    EXPECT_EQ(++node_.rank_starts[key], 1) << "a generation was started twice";
    See(key);
  }

  void EndRank(const GroupKey& key, const Shim& shim, Rank& rank) {
    rank.alive = rank.greeted = false;
    rank.after_stop = shim.stop_deadline.has_value();
    rank.at = now_;
    rank.exited = true;
    See(key);
  }
  // SIGKILLed; PDEATHSIG takes its ranks, and not what they have started.
  void LoseShim(Directory& directory) {
    Shim& shim = *directory.shim;
    shim.alive = false;
    shim.inbox.clear();
    const bool any = shim.checking || std::any_of(shim.ranks.begin(), shim.ranks.end(),
                                                  [](const Rank& rank) { return rank.alive; });
    directory.strays = directory.had_strays = any && rng_.Below(2) == 0;
    for (Rank& rank : shim.ranks) rank.alive = false;
  }
  void EndFreeShim(const GroupKey& key, Shim& shim) {
    shim.alive = false;
    See(key);
  }

  // What the worker in a rank does of its own accord, or is told.
  void Work(const JobId& job, int local_rank, Rank& rank) {
    const auto say = [&](auto what) {
      Later(WorkerSaid{{job, rank.generation}, local_rank, local_rank, std::move(what)});
    };
    const auto greet = [&] {
      rank.greeted = true;
      say(WorkerHello{true, true});
    };
    if (!rank.able || rank.hangs) return;
    if (!rank.greeted) {
      if (rng_.Below(2) == 0) greet();
      return;
    }
    if (rng_.Below(4) == 0) Train(job, rank, say);
    if (faults_ && rng_.Below(12) == 0) {
      rank.greeted = false;
      return Later(WorkerHungUp{{job, rank.generation}, local_rank});
    }
    if (!rank.retire && rank.next <= rank.generation) return;
    if (faults_ && rng_.Below(16) == 0) {
      rank.hangs = true;
    } else if (faults_ && rng_.Below(20) == 0) {
      rank.hangs = true;
      if (rank.next > rank.generation) rank.generation = rank.next;
      say(WorkerCannotGoOn{"no"});
    } else if (std::exchange(rank.retire, false)) {
      say(WorkerRetired{});
    } else {
      rank.generation = rank.next;
      rank.told = false;
      greet();
    }
  }

  template <class Say>
  void Train(const JobId& job, const Rank& rank, const Say& say) {
    WorkerProgress progress;
    progress.job = job;
    progress.generation = rank.generation;
    progress.step = ++step_;
    say(progress);
    if (rng_.Below(2) == 0) return;
    CommitRequest request;
    request.job = job;
    request.generation = rank.generation;
    request.attempt = static_cast<std::uint64_t>(2 * step_);
    request.step = step_;
    say(request);
  }

  void CheckNode(const GroupKey& key, Directory& directory) {
    Shim& shim = *directory.shim;
    if (!shim.checking || (!shim.stop_deadline && faults_ && rng_.Below(3) != 0)) return;
    shim.checking = false;
    if (!shim.stop_deadline) {
      directory.checked = rng_.Below(5) != 0;
      shim.check_failed = !directory.checked;
      if (shim.check_failed) shim.stop_deadline = now_;
    }
    See(key);
  }

  void ShimStep(const GroupKey& key, Directory& directory) {
    Shim& shim = *directory.shim;
    if (shim.free && shim.awaits_words && rng_.Below(3) == 0) {
      shim.awaits_words = false;
      See(key);
    }
    if (!shim.alive || shim.wedged) return;
    if (shim.free) {
      if (faults_ && rng_.Below(20) == 0) EndFreeShim(key, shim);
      return;
    }
    if (IsAsked(key)) {
      if (!faults_ || rng_.Below(3) != 0) return AnswerHandOver(key);
      for (Rank& rank : shim.ranks)
        if (rank.alive && rng_.Below(4) == 0) EndRank(key, shim, rank);
      return;
    }
    if (!shim.ready) {
      shim.ready = true;
      See(key);
    }
    for (const Action& action : std::exchange(shim.inbox, {})) {
      if (const auto* stop = std::get_if<StopRanks>(&action)) {
        // Of two agents' lives the earlier deadline counts.
        shim.stop_deadline = std::min(stop->deadline, shim.stop_deadline.value_or(stop->deadline));
      } else if (const auto* kill = std::get_if<KillRank>(&action)) {
        Rank& rank = shim.ranks[static_cast<std::size_t>(kill->local_rank)];
        // One that retires and cannot be killed is stopped with its group.
        const bool dies = !faults_ || rank.next > rank.generation || rng_.Below(10) != 0;
        if (rank.alive && dies) EndRank(key, shim, rank);
      } else if (const auto* start = std::get_if<StartRanks>(&action)) {
        if (!shim.started && !shim.stop_deadline) StartAll(key, shim, *start);
      }
    }
    CheckNode(key, directory);
    const bool dying =
        shim.stop_deadline && (rng_.Below(3) == 0 || now_ >= *shim.stop_deadline || !faults_);
    bool any = false;
    for (std::size_t i = 0; i < shim.ranks.size(); ++i) {
      Rank& rank = shim.ranks[i];
      const bool obeys = rank.signalled && rng_.Below(3) == 0;
      if (rank.alive && (dying || obeys || (faults_ && rng_.Below(60) == 0)))
        EndRank(key, shim, rank);
      if (rank.alive) Work(key.job, static_cast<int>(i), rank);
      any |= rank.alive;
    }
    if (directory.store_alive && faults_ && rng_.Below(80) == 0) {
      directory.store_alive = false;
      See(key);
    }
    if (!any && !shim.checking && (shim.stop_deadline || shim.started)) {
      shim.free = true;
      shim.awaits_words = rng_.Below(3) == 0;
      See(key);
    } else if (faults_ && rng_.Below(100) == 0) {
      shim.wedged = true;
    } else if (faults_ && rng_.Below(!shim.started && !shim.kept.empty() ? 20 : 150) == 0) {
      LoseShim(directory);
      takes_agent_along_ = rng_.Below(3) == 0;
      if (shim.ready) {
        See(key);
      } else {
        Later(PrepareFailed{key, "the shim ended"});
      }
    }
  }

  void ShimsStep() {
    for (auto& [key, directory] : node_.directories) {
      if (directory.shim) ShimStep(key, directory);
    }
  }
  bool IsWedged(const GroupKey& key) const {
    const auto found = node_.directories.find(key);
    return found != node_.directories.end() && found->second.shim && found->second.shim->wedged;
  }

  Rng rng_;
  Instant now_ = At(std::chrono::seconds(0));
  Node node_;
  bool faults_ = true;
  bool takes_agent_along_ = false;  // Whatever has killed a shim.

 private:
  std::int64_t step_ = 0, pid_ = 100;
};

}  // namespace regroup::agent::testing
