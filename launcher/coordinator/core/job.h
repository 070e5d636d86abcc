#pragma once

// A job: its rows, and the soft state of its generations and of its gathering, which recovery
// starts afresh. Private to this folder.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/check.h"
#include "common/base/control.h"
#include "common/base/reasons.h"
#include "launcher/coordinator/core/causes.h"
#include "launcher/coordinator/core/placement.h"
#include "launcher/coordinator/core/progress.h"
#include "launcher/coordinator/core/rows.h"

namespace regroup::coordinator {

struct MemberTrial {  // A node that voided proposals of this job, or was too slow for a restart.
  int failures = 0;
  Instant until{};
  std::string why;
};

// ---- the life of a generation ----------------------------------------------------------------
//
//   Proposed ──> Formed ──> Ending ──> Over ──> its verdict is closed, and only its row is left
//       └─> void    └─> ended by the job's own verdict, without one of its own
//
// What is known in one state cannot be read in another. The row has the same, durable: its phase is
// kProposed, kFormed in the two in the middle, kOver.

// Who was asked to prepare, and what came of it.
struct Proposed {
  bool recovered = false;    // Its Prepares may have been lost with the process before: void it.
  Instant proposed_at{};     // Unless recovered.
  std::set<NodeId> asked;    // Members that were told to prepare.
  std::set<NodeId> unacked;  // Subset of `asked` that has not answered yet.
  std::size_t fewest_unacked = 0;  // So far: with each that is fewer the wait begins anew.
  Instant wait_began{};
  Instant ack_deadline{};
  std::map<NodeId, std::string> failed;  // Members that were lost or refused, and why.
  std::optional<Address> store;
};

struct Done {
  int ranks = 0;              // How many have exited with 0.
  std::optional<Instant> at;  // When the last of them ended, as its agent tells.
};

// How a generation goes: what its account and its verdict will need, so that it is kept while the
// generation ends.
struct Course {
  std::optional<Instant> running_at;  // All ranks had started.
  Done done;
  Progress progress;
  Causes causes;
};

// Which members have started, and how long ago their ranks did.
struct Starts {
  std::set<NodeId> not_started;
  std::map<NodeId, std::vector<RankStart>> started;
  // Members that were not heard when their time to start was over, and since when they are heard:
  // they get that time once more.
  std::map<NodeId, std::optional<Instant>> returned;
};

// Losses by silence that are not believed yet.
struct Silence {
  bool held = false;       // One is not believed, so nothing else is decided.
  bool unheard = false;    // No member was heard when one was lost by silence.
  Instant return_until{};  // One is heard again: the others may follow until then.
};

struct Notices {
  std::set<NodeId> leaving;  // Members that were told to go.
  std::set<NodeId> told;     // Members whose notice the job has heard of.
};

// A save that a notice or a growth waits for.
struct Saving {
  std::string node;  // Who leaves; empty: for a growth.
  Instant until{};
  bool saved = false;
  bool stopped = false;  // Workers that a notice ends have ended: nothing goes on any more.
};

// Where its members' ranks begin. Of a row, whose members stay as they were proposed.
struct GroupShape {
  std::vector<int> first_ranks;  // By group rank.
  int world = 0;
  bool many_hosts = false;
};

// It starts and runs, until a rule of formed.h ends it.
struct Formed {
  Course course;
  std::optional<GroupShape> shape;  // Once a member was told to run.
  Starts starts;
  std::map<NodeId, Instant> lost;  // Members that are lost, and since when.
  std::set<NodeId> blinked;        // Members that came back without their group.
  Silence silence;
  Notices notices;
  std::optional<Saving> saving;
};

// Its members are told to stop.
struct Ending {
  Course course;
  Instant give_up{};         // Survivors that are not free by then are left behind.
  std::set<NodeId> waiting;  // Members that have neither shown their slots free nor are lost.
};

// Its row says so; its cause is still weighed, because members that are waited for may know better.
struct Over {
  Causes causes;
  std::set<NodeId> waiting;
  Instant close_by{};  // The verdict is closed by then, whoever is still waited for.
};

using GenerationState = std::variant<Proposed, Formed, Ending, Over>;

// Soft state of a generation that is proposed, formed or has an open verdict.
struct GenerationSoft {
  std::map<NodeId, int> members;  // Node → group rank.
  Instant since{};                // Proposed, formed, or recovered.
  GenerationState state;
};

// What survivors of the ended generation, and everything below it, are told.
struct StopOrder {
  Generation up_to;
  StopReason reason = StopReason::kFailure;
  Instant deadline{};
  Instant give_up{};      // Who has not stopped by then is left behind.
  bool in_place = false;  // Ranks that can live through it keep their process (KeepsRanks).
};

// The interruption that the next running generation ends; for its phases.
struct Outage {
  std::optional<Instant> event_at;  // The cause. Unset in an elective change.
  std::optional<Instant> detected_at, free_at, proposed_at, formed_at;
  int nodes = 0;  // Of the generation that it ended.
  // Of nodes held since it was detected, up to held_until.
  NodeTime held{};
  Instant held_until{};
};

// The launch commands that serve a launched job.
struct Launch {
  std::set<NodeId> nodes;
  std::optional<NodeId> first;  // It is sent what the others need not print.
  std::optional<Instant> last_join;
};

// Nodes that have lately failed to take part.
struct Unsteady {
  struct Newcomer {
    Instant since{};     // When it came, or was lost: it may be back at once. For `newcomer_trial`.
    bool flaps = false;  // It was lost as a newcomer.
  };
  std::map<NodeId, MemberTrial> trials;
  std::map<NodeId, Newcomer> newcomers;
  int lost_newcomers = 0;  // Each doubles the time that growth waits for.
};

// What ties a job to nodes.
struct JobNodes {
  std::set<NodeId> claimed;      // Nodes that carry a claim of this job.
  std::set<NodeId> touched;      // Nodes that may still have processes of this job.
  std::set<NodeId> order_dirty;  // Nodes whose order may have changed in this step.
  bool claims_dirty = false;
};

// What the next generation waits for.
struct Gathering {
  bool membership_known = false;  // After a loss or failure: all are known, so no last call.
  std::optional<Instant> below_since;
  // There are enough nodes since then; the last call's limit counts from it.
  std::optional<Instant> enough_since;
  std::optional<Generation> done;  // All its ranks were, as a node shows that was lost then.
  Instant not_before{};
  Instant awaited_until{};  // Members that blinked are waited for until then.
};

struct JobWait {
  std::optional<WaitReason> reason;
  Instant since{};
  std::optional<Instant> until;
};

// In this life of the coordinator.
struct JobTimes {
  std::optional<Instant> created, ended, over_at, last_change;
};

struct Job {
  const JobId& id() const { return spec.job; }
  bool launched() const { return spec.spec.origin == JobOrigin::kLaunched; }

  // Durable.
  JobSpecRow spec;
  JobStateRow state;
  std::map<Generation, GenerationRow> generations;
  std::map<NodeId, DoneRow> done;  // Of any generation; only those of the formed one count.
  std::optional<CommitRow> commit;
  std::vector<JobEvent> events;  // By number.

  // Soft.
  std::map<Generation, GenerationSoft> soft;
  std::optional<StopOrder> stop;
  Outage outage;
  Launch launch;
  JobNodes nodes;
  Gathering gather;
  Unsteady unsteady;
  JobWait wait;
  JobTimes times;
  std::vector<Instant> charge_times;  // With a restart window.
  std::set<CallId> waiters;           // Clients that wait for its end.
  std::optional<Instant> wake;        // Its deadline in the agenda.
  Instant rests_until{};              // Step::Rests.
};

// Names of nodes in one reason or note; more would tell nobody anything.
inline constexpr std::size_t kMaxNames = 16;

const GenerationRow* FormedOf(const Job& job);    // Null: none is formed.
const GenerationRow* ProposedOf(const Job& job);  // Null: none is proposed.

// REQUIRES: the generation is in this state.
template <class State, class AnySoft>
auto& As(AnySoft& soft) {
  auto* state = std::get_if<State>(&soft.state);
  CHECK(state != nullptr);
  return *state;
}

// Of the generation with this number. Null: it is in another state, or nothing soft is left of it.
template <class State, class AnyJob>
auto* In(AnyJob& job, Generation generation) {
  auto soft = job.soft.find(generation);
  return soft == job.soft.end() ? nullptr : std::get_if<State>(&soft->second.state);
}

// Of a generation that is formed or ends. Null: it is in another state.
template <class AnySoft>
auto CourseOf(AnySoft& soft) -> decltype(&std::get_if<Formed>(&soft.state)->course) {
  if (auto* formed = std::get_if<Formed>(&soft.state)) return &formed->course;
  if (auto* ending = std::get_if<Ending>(&soft.state)) return &ending->course;
  return nullptr;
}
const Course* CourseOf(const Job& job, Generation generation);

// Null: it has not formed, or nothing soft is left of it.
const Causes* CausesOf(const Job& job, Generation generation);

// The formed generation's members are told to stop.
bool IsEnding(const Job& job);

// With scale-up `never`, what was lost may be made good, and no more.
int MaxNodesNow(const Job& job);

// nullopt: it wants none of the nodes that jobs share. Launched jobs bring their own.
std::optional<Demand> DemandOf(const Job& job);

// How long ago each charge was, for the job's row: rows hold no instants.
std::vector<Duration> ChargeAges(const Job& job, Instant now);

}  // namespace regroup::coordinator
