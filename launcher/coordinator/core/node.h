#pragma once

// A node: its row, and what is known of it in this life of the coordinator: how it is reached, what
// it showed of each job's groups, and what it was told last. Private to this folder.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "common/base/control.h"
#include "common/base/ids.h"
#include "common/base/time.h"
#include "launcher/coordinator/core/rows.h"

namespace regroup::coordinator {

// How a node was lost: NodeLost.how. Only silence proves nothing.
inline constexpr char kHowSilent[] = "silent";
inline constexpr char kHowCrowded[] = "its session broke while too many others were away";
inline constexpr char kHowOver[] = "its command ended";
inline constexpr char kHowRefused[] = "connection refused";
inline constexpr char kHowAway[] = "agent away for too long";
inline constexpr char kHowForgotten[] = "forgotten by an operator";
inline constexpr char kHowWiped[] = "came back without its group";

// ---- how a node is reached -------------------------------------------------------------------
//
//   Awaited ──────────────> AgentAway <────────────────> Suspected <────────────────── Attached
//     a witness accepts       it falls silent, accepts again       its session breaks
//
// A session makes it Attached from any state. Too long a silence, or a proof of its death, makes it
// Lost. Soft, but for the fact that a node is lost.

// Without a session: its witnesses are probed.
struct Away {
  Instant broken_at{};  // Since when; after a recovery since that.
  Instant probe_at{};
  // What recovery gives the fleet to dial again; whoever has dialled since then has none of it.
  Instant awaited_until{};
};

struct Lost {
  Instant at{};
  bool proved = false;      // Nothing of the node can run any more.
  std::uint64_t order = 0;  // Rises with each loss; no instant, because a stall shifts those.
};
struct Awaited {  // Known from the journal, not heard since recovery.
  Away away;
};
struct Attached {
  SessionId session;
  Instant since{};
  // As its heartbeats have said.
  std::uint64_t warm_bytes = 0;
  std::vector<Gpu> gpus{};
};
struct Suspected {  // Session broken; the lease runs.
  Away away;
};
struct AgentAway {  // Session broken, a witness accepts: only the agent is away.
  Away away;
};
using Link = std::variant<Lost, Awaited, Attached, Suspected, AgentAway>;

// Null: it has a session, or the node is lost.
template <class AnyLink>
auto AwayOf(AnyLink& link) -> decltype(&std::get_if<Awaited>(&link)->away) {
  if (auto* awaited = std::get_if<Awaited>(&link)) return &awaited->away;
  if (auto* suspected = std::get_if<Suspected>(&link)) return &suspected->away;
  if (auto* agent = std::get_if<AgentAway>(&link)) return &agent->away;
  return nullptr;
}

// The witness port of one job's group on a node.
struct Watch {
  Generation generation;
  Address witness;
  bool verified = false;   // It answered once: a refusal then means that the group is gone.
  bool in_flight = false;  // A Probe has not been answered.
  bool dead = false;       // Refused while no session was open.
};

struct Leaving {
  Notice notice;
  Instant until{};  // The node is gone by then.
};

// What the last order on this session asked for; a new one is sent when this changes.
struct SentOrder {
  OrderNo number;
  Generation forget, stop, prepare, run, notice;  // 0: not asked.
  StopReason stop_reason = StopReason::kFailure;
  bool stop_in_place = false;
  Instant stop_deadline{};
  friend bool operator==(const SentOrder& a, const SentOrder& b) {
    return a.forget == b.forget && a.stop == b.stop && a.prepare == b.prepare && a.run == b.run &&
           a.notice == b.notice && a.stop_reason == b.stop_reason &&
           a.stop_in_place == b.stop_in_place && a.stop_deadline == b.stop_deadline;
  }
};

// When a node was heard, and how long it is kept without; leases.h says which of them counts.
struct Lease {
  Instant last_heard{};
  Instant from{};  // The lease runs since then: last heard, or a step of its job since.
  // Silent for more than a lease, but its job steps: that vouches for it until then.
  std::optional<Instant> kept_until;
};

// What this session was told, and what it did.
struct NodeOrders {
  std::map<JobId, SentOrder> sent;
  OrderNo last, obeyed;
  // A Prepare of this generation was sent, and nothing as new was reported yet.
  std::map<JobId, Generation> unanswered;
};

struct Node {
  // Null, or false: its link is in another state.
  const Attached* attached() const { return std::get_if<Attached>(&link); }
  const Lost* lost() const { return std::get_if<Lost>(&link); }
  template <class State>
  bool Is() const {
    return std::holds_alternative<State>(link);
  }

  NodeRow row;

  Link link;
  Lease lease;
  std::string no_cgroup;   // As its last Hello said.
  bool rebooted = false;   // This session's Hello showed a new boot id.
  bool recovered = false;  // Its row was there when this coordinator started.
  std::optional<Leaving> leaving;
  std::map<JobId, std::map<Generation, GroupReport>> groups;  // As this session showed them.
  std::map<JobId, Watch> watches;
  NodeOrders orders;
  std::set<JobId> claims;  // Jobs that have a right to slots here, whatever the groups show.
  std::set<JobId> jobs;    // Jobs that have touched this node.
  std::optional<JobId> told_result;  // On this session.
  std::optional<Instant> wake;       // Its deadline in the agenda.
};

}  // namespace regroup::coordinator
