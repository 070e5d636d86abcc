#include "launcher/coordinator/core/sessions.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/user_error.h"
#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/admission.h"
#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/leases.h"
#include "launcher/coordinator/core/links.h"
#include "launcher/coordinator/core/members.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/node_in_job.h"
#include "launcher/coordinator/core/orders.h"
#include "launcher/coordinator/core/proposal.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/slots.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {
namespace {

// The agent is told why, and its operator: this log may be on another host than the
// one who has to act.
void Refuse(Step& step, SessionId session, absl::Status why) {
  step.Say(Severity::kWarning, "refused a session",
           {{"session", absl::StrCat(session.value())},
            {"why", std::string(why.message())},
            {"because", PartsOf(why).because}});
  step.Do(CloseSession{session, std::move(why)});
}

bool AdmitEpoch(Step& step, const SessionOpened& event) {
  const Hello& hello = event.hello;
  const Node* known = step.state.FindNode(hello.node);
  // Anybody may make up a node; only one that left something in this journal proves
  // that a newer journal exists.
  const bool proved =
      known && (known->recovered || !known->jobs.empty() || !known->row.taken.empty());
  const Fence fence = CheckFence(step.state.meta.cluster, step.state.epoch, hello, proved);
  if (fence == Fence::kJournalTooOld) {
    MetaRow meta = step.state.meta;
    // Durable before it steps down, so that a restart by an init system does not
    // serve the old journal after all.
    meta.older_than = hello.highest_epoch;
    step.Put(meta);
    StepDownNow(step);
    return false;
  }
  if (fence == Fence::kUnprovedEpoch) {
    Refuse(
        step, event.session,
        UserError(absl::StatusCode::kFailedPrecondition,
                  "this agent follows a newer coordinator than this one",
                  absl::StrCat("it follows epoch ", hello.highest_epoch.value(), ", this is epoch ",
                               step.state.epoch.value(),
                               "; its node is not in this journal, so its word alone "
                               "ends nothing"),
                  "the newest state directory for the coordinator, or a new one for this agent"));
    return false;
  }
  if (fence == Fence::kOtherCluster) {
    Refuse(
        step, event.session,
        UserError(absl::StatusCode::kFailedPrecondition, "this coordinator serves another cluster",
                  absl::StrCat("the agent follows cluster ", hello.cluster.value(),
                               ", this journal is cluster ", step.state.meta.cluster.value()),
                  "start the coordinator with the state directory of that cluster, or, if that is "
                  "lost, this agent with a new one (a launch command: just again)"));
    return false;
  }
  return true;
}

// Nothing is stopped for being unknown: another journal may know it.
absl::Status CheckUnknown(const State& state, const Hello& hello) {
  std::set<JobId> unknown;
  for (const GroupReport& group : hello.groups)
    if (state.FindJob(group.job) == nullptr) unknown.insert(group.job);
  if (unknown.size() <= kMaxUnknownJobsPerNode) return absl::OkStatus();
  return UserError(absl::StatusCode::kFailedPrecondition,
                   "this node holds too many jobs that the journal does not know",
                   absl::StrCat("groups: of ", unknown.size(), " unknown jobs, at most ",
                                kMaxUnknownJobsPerNode, " are taken; nothing was stopped"),
                   "the newest state directory for the coordinator, or a new one for this agent");
}

bool AdmitSession(Step& step, const SessionOpened& event, std::string* name) {
  const Hello& hello = event.hello;
  if (!AdmitEpoch(step, event)) return false;
  if (absl::Status version = CheckVersion(step.config().version, hello.version); !version.ok()) {
    Refuse(step, event.session, version);
    return false;
  }
  for (const GroupReport& group : hello.groups) {
    const Job* job = step.state.FindJob(group.job);
    // Its number would be given a second time, and the group that has it could not be
    // told from the new one.
    if (job == nullptr || group.generation <= job->state.last_number) continue;
    Refuse(step, event.session,
           UserError(absl::StatusCode::kFailedPrecondition, "the journal is older than this agent",
                     absl::StrCat("the agent holds generation ", group.generation.value(), " of ",
                                  group.job.value(), ", this journal gave ",
                                  job->state.last_number.value()),
                     "restore the newest state directory; nothing was stopped"));
    return false;
  }
  if (absl::Status unknown = CheckUnknown(step.state, hello); !unknown.ok()) {
    Refuse(step, event.session, unknown);
    return false;
  }
  // Names go into rows, logs and lists of everybody else.
  const bool fits =
      hello.node.value().size() <= kMaxNodeIdBytes && hello.name.size() <= kMaxNodeNameBytes &&
      hello.address.size() <= kMaxAddressBytes && hello.dialled.size() <= kMaxAddressBytes;
  if (!fits || hello.node.empty() || hello.name.empty()) {
    Refuse(step, event.session,
           absl::InvalidArgumentError("a node's id, name or address is empty or too long"));
    return false;
  }
  const Node* known = step.state.FindNode(hello.node);
  // An older process of the same agent, delayed by the network: the newer one holds the node.
  if (known && hello.incarnation < known->row.incarnation) {
    Refuse(step, event.session,
           absl::AbortedError(absl::StrCat(
               "a newer agent of node ", known->row.name, " is known: incarnation ",
               known->row.incarnation.value(), ", this one is ", hello.incarnation.value())));
    return false;
  }
  std::optional<std::string> current;
  // The name of a lost node may have been given to another one.
  if (known && !known->row.lost) current = known->row.name;
  auto taken = [&](const std::string& asked) -> std::optional<std::string> {
    auto named = step.state.fleet.names.find(asked);
    if (named == step.state.fleet.names.end()) return std::nullopt;
    for (const NodeId& id : named->second)
      if (id != hello.node) return step.state.NodeAt(id).row.address;
    return std::nullopt;
  };
  absl::StatusOr<std::string> admitted = AdmitName(hello, current, taken);
  if (!admitted.ok()) {
    Refuse(step, event.session, admitted.status());
    return false;
  }
  *name = *admitted;
  return true;
}

NodeRow RowOf(const Hello& hello, const std::string& name, const Node* known) {
  NodeRow row;
  row.node = hello.node;
  row.name = name;
  row.name_explicit = hello.name_explicit;
  row.incarnation = hello.incarnation;
  row.boot = hello.boot;
  row.address = hello.address;
  row.dialled = hello.dialled;
  row.slots = hello.slots;
  row.gpu_slots = hello.gpu_slots;
  row.launched = hello.launched;
  row.version = hello.version;
  if (known == nullptr) return row;
  // A launched agent is its launch command: another incarnation is another command, and says so by
  // LaunchAsked.
  if (known->row.launch && hello.launched && hello.incarnation == known->row.incarnation)
    row.launch = known->row.launch;
  for (const TakenSlots& taken : known->row.taken) {
    // What its agent shows free, or no longer shows, is not taken any more.
    const bool held =
        std::any_of(hello.groups.begin(), hello.groups.end(), [&](const GroupReport& group) {
          return group.job == taken.job && group.phase != Phase::kFree;
        });
    if (held) row.taken.push_back(taken);
  }
  return row;
}

void Attach(Step& step, Node& node, const SessionOpened& event) {
  const Hello& hello = event.hello;
  const bool came = node.Is<Lost>();
  SetLink(step, node, Attached{event.session, step.now()});
  node.lease.last_heard = node.lease.from = step.now();
  node.lease.kept_until.reset();
  node.no_cgroup = hello.no_cgroup;
  // An order may have been lost with the session that it was sent on: all that is
  // still wanted is sent again.
  node.orders.sent.clear();
  node.orders.unanswered.clear();
  node.orders.last = node.orders.obeyed = OrderNo();
  node.told_result.reset();
  // A Hello is the whole inventory: what it does not show is not there.
  node.groups.clear();
  node.leaving.reset();
  step.Do(SendWelcome{event.session, Welcome{.cluster = step.state.meta.cluster,
                                             .epoch = step.state.epoch,
                                             .name = node.row.name,
                                             .version = step.config().version,
                                             .heartbeat = step.config().leases.heartbeat,
                                             .lease = step.config().leases.lease,
                                             .agent_restart = step.config().leases.agent_restart,
                                             .answers_heartbeats = true}});
  step.Say(Severity::kInfo, "node attached",
           {{"node", node.row.name}, {"address", node.row.address}});
  for (const GroupReport& group : hello.groups) {
    if (!KeepReport(step, node, group)) continue;
    if (Job* job = step.state.FindJob(group.job)) Touch(*job, node);
    WatchGroup(step, node, group);
  }
  for (const GroupReport& group : hello.groups)
    if (step.state.FindJob(group.job) == nullptr) StopUnknown(step, node, group.job);
  std::erase_if(node.watches, [&](const auto& watch) {
    auto shown = node.groups.find(watch.first);
    return shown == node.groups.end() || !shown->second.contains(watch.second.generation);
  });
  // A witness refused while the agent was away, yet the agent shows its group: what
  // it shows counts.
  for (auto& watch : node.watches) watch.second.dead = false;
  if (came && !hello.launched) step.state.fleet.last_join = step.now();
  for (const Notice& notice : hello.notices) SetLeaving(step, node, notice);
  RefreshJobs(step, node);
  OfferAgain(step);  // Who waits for it to come back may have no slots there.
  step.Arm(node, LeaseEnd(step.state, node));
}

}  // namespace

void StepDownNow(Step& step) {
  step.state.stepped_down = true;
  step.Do(StepDown{UserError(
      absl::StatusCode::kFailedPrecondition, "the journal is older than the fleet",
      absl::StrCat("an agent of cluster ", step.state.meta.cluster.value(), " follows epoch ",
                   step.state.meta.older_than.value(), ", this journal gave epoch ",
                   step.state.epoch.value()),
      "restore the newest state directory, or regroup coordinator --accept-journal; nothing was "
      "stopped")});
}

void On(Step& step, const SessionOpened& event) {
  std::string name;
  if (!AdmitSession(step, event, &name)) return;
  const Hello& hello = event.hello;
  Node* known = step.state.FindNode(hello.node);
  // Another boot of its host: no process of before can live, which is another cause
  // than a lost supervisor.
  const bool rebooted = known && !known->row.boot.empty() && known->row.boot != hello.boot;
  if (known && known->attached()) {
    step.Do(
        CloseSession{known->attached()->session,
                     absl::AbortedError(absl::StrCat("node ", name, " opened a newer session"))});
  }
  const bool same_agent = known && known->row.incarnation == hello.incarnation;
  NodeRow row = RowOf(hello, name, known);
  if (!known || row != known->row) step.Put(row);
  Node& node = step.state.NodeAt(hello.node);
  node.rebooted = rebooted;
  Attach(step, node, event);
  if (!same_agent) return;  // One that dies while it prepares has had its time.
  for (const JobId& id : node.jobs)
    if (Job* job = step.state.FindJob(id)) AskAgain(step, *job, node.row.node);
}

}  // namespace regroup::coordinator
