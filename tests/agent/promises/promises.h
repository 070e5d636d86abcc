#pragma once

// What an agent's core owes to its shell, its workers and its coordinator, held against what it was
// told and what it ordered. One object for each life of an agent; it is as forgetful as that agent,
// and sees nothing but events, actions, and the groups as the core has them. Random lives of one
// node (tests/agent/core) and of a cluster (tests/sim) ask it after every step.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/core.h"

namespace regroup::agent::testing {

class Promises {
 public:
  explicit Promises(const Config& config) : config_(config), epoch_(config.highest_epoch) {}

  // After `core` was stepped with `event` at `now`.
  void Check(Instant now, const Event& event, const Effects& effects, const Core& core);

  std::vector<std::string> broken;  // In words; as many as there were.

 private:
  // Of a group, as it was after the last step.
  struct Before {
    Phase phase = Phase::kPreparing;
    ShimStage stage = ShimStage::kNone;
    bool started = false, supervisor_lost = false, retiring = false;
    std::optional<Instant> stop_deadline;
  };
  struct Connection {
    bool open = false;   // And its worker can retire.
    bool could = false;  // It could in the last one.
    bool heard = false;  // It was opened once.
    Instant greeted{};   // When that was last.
  };
  struct Known {
    // Rounds over what a lost shim left.
    bool round = false;
    int clean = 0;
    // Its one question to the coordinator.
    std::optional<CommitRequest> in_flight;
    std::set<std::pair<std::uint64_t, std::int64_t>> unanswered;
    std::map<int, WorkerProgress> unsent;  // By rank.
    std::map<int, Connection> ranks;       // By local rank.
    // Signals and words that ask for an end.
    std::map<int, Instant> rank_told;
    std::optional<Instant> told;
    std::set<int> ended_before, killed;
    // Stops.
    bool stop_told = false;
    std::optional<Instant> deadline, deadline_since, shim_killed;
    // Retiring.
    Instant retiring_since{};
    std::optional<Instant> redial_due;
    std::set<int> away;                     // Those without a connection at its begin.
    bool adopted = false, refused = false;  // A life before had it; its shim was not handed over.
    std::optional<Instant> begun, empty_since;
    bool empty = false, store_closed = false, store_lost = false;
  };
  using Groups = std::map<GroupKey, Group>;

  void Expect(bool condition, const GroupKey& key, const std::string& what);
  void Hear(Instant now, const Event& event);
  void Adopt(const RunRecord& record);
  void HearRecord(Instant now, const RunRecord& record);
  void Order(Instant now, const Action& action, const Groups& groups);
  void OrderRounds(const Action& action, const Groups& groups);
  void OrderCommit(const Action& action);
  static void NoteTold(Instant now, Known& known, const Group& group);
  void OrderEnds(Instant now, const Action& action, const Groups& groups);
  void OrderBeginnings(const Action& action, const Groups& groups);
  void CheckReport(const GroupReport& report, const Groups& groups);
  void CheckAnswers(const Event& event, const Effects& effects, const Core& core);
  void CheckRefusal(const regroup::Order& order, const Groups& groups);
  void CheckSlots(const GroupKey& key, const Group& group, const Groups& groups);
  void CheckGroup(Instant now, const GroupKey& key, const Group& group, const Groups& groups);
  void CheckStopped(Instant now, const GroupKey& key, const Group& group, const Groups& groups);
  void CheckRetiring(Instant now, const GroupKey& key, const Group& group);
  void CheckKept(Instant now, const GroupKey& key, const Group& group);
  void CheckLeaving(Instant now, const Event& event, const Effects& effects);

  const Config config_;
  Epoch epoch_;
  std::map<GroupKey, Known> known_;
  std::map<GroupKey, Before> before_;
  std::map<GroupKey, GroupKey> handing_over_;  // To whom, from whom.
  std::set<std::int64_t> ended_;               // Processes.
  std::optional<Instant> began_, signalled_, signalled_again_, result_;
  bool left_ = false, attached_ = false;
};

}  // namespace regroup::agent::testing
