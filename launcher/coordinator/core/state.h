#pragma once

// What the coordinator knows: its rows, indices over them, and soft state that recovery starts
// afresh. Rows reach it through Apply alone, in a step as in recovery, so a crash loses nothing but
// what is soft. It decides nothing: the rooms above it are functions over it. Private to this
// folder.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/lookup.h"
#include "launcher/coordinator/core/config.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/placement.h"
#include "launcher/coordinator/core/rows.h"

namespace regroup::coordinator {

struct Moment {
  Instant now;
  WallTime wall;
};

// Which jobs there are, by each word that means one.
struct JobIndex {
  std::map<std::uint64_t, JobId> by_sequence;
  std::map<std::string, JobId> by_key;          // Idempotency keys of submits.
  std::map<std::string, JobId> newest_by_name;  // Launched, not standalone.
  std::set<std::uint64_t> over;                 // Ended and preempted jobs.
};

// Silence expires no node before `until`.
struct Brake {
  Instant until{};
  int silent = 0, sessions = 0;  // What it was pulled for.
};

// Which nodes there are, and how they are reached.
struct Fleet {
  Lookup<SessionId, Node*> sessions;  // Of `nodes`, those that are attached.
  std::set<NodeId> attached_daemons;
  std::map<std::string, std::set<NodeId>> names;  // Nodes that are not lost.
  std::map<std::uint64_t, NodeId> lost;           // By Loss::order; without those that must go.
  std::uint64_t losses = 0;
  int broken = 0;  // Nodes that are probed or awaited.
  Brake brake;
  std::optional<Instant> last_join;  // When a daemon came last.

  bool IsBraked(Instant now) const { return now < brake.until; }
};

enum class DueKind { kNode, kJob };

// What has to be looked at, now or at its time.
struct Agenda {
  std::set<std::uint64_t> dirty;  // Jobs to look at, oldest first.
  std::set<JobId> orders_dirty;   // Jobs of which a node's order may have changed.
  std::set<NodeId> slots_dirty;   // Nodes that may have another number of free slots than placed.
  std::set<std::tuple<Instant, DueKind, std::string>> deadlines;
};

// What is kept of jobs that are over, and whether anybody still needs an ad-hoc coordinator.
struct Retention {
  std::deque<JobId> purging;
  std::optional<Instant> next_sweep;  // The next look at ages.
  // When a job ended or was preempted, or a launch command was told so, in this life.
  std::optional<Instant> last_told;
  std::optional<Instant> idle_since;  // Ad-hoc: no agent is attached since then.
};

struct State {
  State(Config config, Epoch epoch, Instant now);
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // ---- rows: the only way in which durable state changes ---------------------------------------
  void Apply(const Row& row);
  Key KeyOf(const Value& value) const;
  std::vector<Row> Rows() const;  // All that is known of durable state, ordered by key.

  // ---- look-ups --------------------------------------------------------------------------------
  Job* FindJob(const JobId& id);
  const Job* FindJob(const JobId& id) const;
  Node* FindNode(const NodeId& id);
  const Node* FindNode(const NodeId& id) const;
  Node& NodeAt(const NodeId& id);  // REQUIRES: it is known.
  const Node& NodeAt(const NodeId& id) const;
  Node* NodeOf(SessionId session);  // Null: not the node's current session.
  std::string NameOf(const NodeId& id) const;
  std::uint64_t newest_number() const;  // Of a job; 0: there is none.
  Moment moment() const { return {now, wall}; }

  // Before the next look at free slots this node's are counted again.
  void SlotsChanged(const Node& node) { agenda.slots_dirty.insert(node.row.node); }

  const Config config;
  const Epoch epoch;
  Instant recovered_at;
  Instant now;      // Of the step in hand, or of the last one.
  WallTime wall{};  // Likewise.
  bool first_step_done = false, stepped_down = false, finished = false;

  MetaRow meta;
  std::map<NodeId, Node> nodes;  // In order. One is looked up by FindNode.
  std::map<JobId, Job> jobs;
  JobIndex index;
  Placement placement;  // Free slots as of the last count.
  Fleet fleet;
  Agenda agenda;
  Retention retention;
  std::map<CallId, JobId> waiting_calls;

 private:
  void ApplyValue(const Value& value);
  void ApplyDeletion(const Key& key);
  void IndexNode(const NodeRow* before, const NodeRow* after);
  void IndexJob(const Job& job);
  void IndexDemand(const Job& job);

  Lookup<NodeId, Node*> node_at_;  // Of `nodes`.
};

}  // namespace regroup::coordinator
