#pragma once

// One group as its agent knows it: a value, which the rooms of this folder change and nobody else.
//
//   kPreparing → kPrepared → kStarting → kRunning → kStopping → kFree
//                                                        ↘ kUnkillable → kFree
//                      kRunning → kStopping (in place) → kRetired → kFree
//                      kPrepared, with kept ranks      ↗
//
// Any phase may turn into kStopping or, once no process is left, into kFree, which is the end: a
// generation never runs twice. A refused Prepare is a group that was free from its birth on. A
// group that is kRetired turns kFree by being handed over: its shim and its ranks then belong to
// the group of a later generation.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/core/events.h"
#include "common/base/control.h"
#include "common/base/ids.h"
#include "common/base/time.h"

namespace regroup::agent {

// How far the shell has come with the shim of a group. Only goes forward.
enum class ShimStage {
  kNone,       // Nothing of this group is on the disk.
  kDirectory,  // Its run directory exists, in whole or in part.
  kWarming,    // The directory is complete; what its ranks need is being imported.
  kSpawned,
  kReady,  // It answers.
  kGone,   // It lives no more; the directory stays.
};
struct Shim {
  ShimStage stage = ShimStage::kNone;
  bool warm = false;                  // Its ranks are to be forked.
  std::optional<Instant> warm_until;  // Then it is spawned, whatever was imported.
  bool checking = false;              // Its node check runs.
  // Where it accepts while its group is not free, so that others see that this host lives.
  std::optional<Address> witness;
  std::optional<Instant> kill_at;  // By then it should have said that its ranks are gone.
};

// The rendezvous store of the generation, where this node hosts it.
struct Store {
  bool hosted = false;
  bool spawned = false;  // Its start was ordered, in this life of the agent or an earlier one.
  bool closed = false;   // By an order; then its end is no loss.
  bool lost = false;
  std::optional<Address> address;  // Once it is bound.
};

// What is known of the ranks, each by its local rank.
struct Ranks {
  std::map<int, RankStarted> starts;
  // Live since an earlier generation; `starts` has them as well, once this one was started.
  std::map<int, RankStarted> kept;
  std::map<int, RankEnded> exits;  // The first end of a rank counts.
  // What living ranks told of lost peers; it explains an exit that is yet to come.
  std::map<int, std::string> communicator_failed;
};

// The notice that this node or its group will go away, and who of the ranks has heard it.
struct Noticed {
  std::optional<Instant> deadline;  // Never moves later.
  // Ranks that do not speak have had their SIGTERM, in this life or an earlier one of the agent.
  bool signals_sent = false;
  std::map<int, Instant> signalled_at;  // By local rank.
  std::map<int, bool> speaking;  // Local rank → takes_notice, while its connection is open.
  std::set<int> told;            // Local ranks whose present connection has heard it.
};

// While ranks are told to leave their generation alive: the group is kStopping, has no stop
// deadline, and no rank but those that cannot leave was signalled.
struct Retiring {
  Instant until;              // Who has not left by then is killed. Never moves later.
  bool killed = false;        // That has happened; at `until` the group is stopped.
  std::set<int> signalled{};  // Local ranks that could not, or are killed: they retire no more.
  std::optional<Instant> redial_until{};  // Some that could retire before have no connection.
};

// How ranks live through the end of a generation: this one's end, and that of the one before.
struct InPlace {
  std::set<int> able;  // Local ranks with an open connection that can retire.
  // Those that could once, or may have in an earlier life of this agent: they dial again.
  std::set<int> were_able;
  std::optional<Retiring> retiring;
  std::set<int> retired;  // Local ranks that have left and live; empty unless retiring or kRetired.
  bool refused = false;   // Its shim could not be handed over once: that is not tried again.
  // The retired generation whose shim this group gets; the slots of both are counted here.
  std::optional<Generation> from;
  // Subset of the kept ranks that has not said hello in this generation, and has until then.
  std::set<int> awaited;
  Instant awaited_until{};
  std::map<int, std::string> given_up;  // Kept ranks that were killed, and why.
};

// Rounds over the processes that its lost shim left.
struct Killing {
  Instant since;
  int clean = 0;                   // In a row; two end it.
  Duration wait{};                 // Before the next one.
  std::optional<Instant> again{};  // Unset: a round is under way.
};

// What the coordinator has of it.
struct Reporting {
  ReportNo number;     // Of the latest state that was numbered.
  bool dirty = true;   // Something has changed since.
  bool acked = false;  // `number` is durable there.
};

struct Group {
  Phase phase = Phase::kPreparing;
  int workers = 0;
  // One number per worker, in order: which of this node's slots it holds, alone until it is free.
  std::vector<int> slots;
  bool started = false;  // The started mark is (about to be) there. Never goes back.
  Shim shim;
  Store store;
  Ranks ranks;
  Noticed notice;
  InPlace in_place;
  Reporting report;
  std::optional<Instant> words_until;    // Set: it is empty, and its last words are awaited.
  std::optional<Killing> killing;        // Its shim is gone, and it is not known to be empty.
  std::optional<Instant> stop_deadline;  // Never moves later.
  std::optional<Instant> signalled_at;   // First signal of ours to every rank.
  bool supervisor_lost = false;          // Its shim went before its ranks.
  std::string refused;                   // Why it could not be prepared.

  bool busy() const { return phase != Phase::kFree && phase != Phase::kUnkillable; }
  bool holds_slots() const { return phase != Phase::kFree; }
  bool has_shim() const {  // One that was started and is not known to be gone.
    return shim.stage == ShimStage::kSpawned || shim.stage == ShimStage::kReady;
  }
};

// No process of it is left, so its slots can be used. Repeatable.
void MarkFree(Group& group);

// From now on no rank of it retires or is awaited: it ends as a whole.
void ForsakeRanks(Group& group);

// REQUIRES: now is not before any instant of the group.
GroupReport ReportOf(const GroupKey& key, const Group& group, Instant now);

// What an agent makes of a run directory that an earlier life of it left. REQUIRES: of this boot,
// and its shim lives or ranks were started.
Group Adopt(const RunRecord& record);

// For logs: the job's id and the generation.
std::string NameOf(const GroupKey& key);

}  // namespace regroup::agent
