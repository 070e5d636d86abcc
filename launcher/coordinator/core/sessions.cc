// Who is there: sessions, leases, witnesses, notices. PROTOCOL §4.

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/user_error.h"
#include "launcher/coordinator/core/engine.h"

namespace regroup::coordinator {
namespace {

// Probes are spread out when very many nodes are away at once.
constexpr int kProbedAtFullRate = 64;

bool IsBroken(Link link) {
  return link == Link::kAwaited || link == Link::kSuspected || link == Link::kAgentAway;
}

}  // namespace

// ---- sessions --------------------------------------------------------------------------------

void Engine::On(const SessionOpened& event) {
  std::string name;
  if (!AdmitSession(event, &name)) return;
  const Hello& hello = event.hello;
  Node* known = FindNode(hello.node);
  const bool rebooted = known && !known->row.boot.empty() && known->row.boot != hello.boot;
  if (known && known->session) {
    Do(CloseSession{*known->session,
                    absl::AbortedError(absl::StrCat("node ", name, " opened a newer session"))});
    Detach(*known);
  }
  NodeRow row = RowOf(hello, name, known);
  if (!known || row != known->row) Put(row);
  Node& node = nodes_.at(hello.node);
  node.rebooted = rebooted;
  Attach(node, event);
}

bool Engine::AdmitEpoch(const SessionOpened& event) {
  const Hello& hello = event.hello;
  const Node* known = FindNode(hello.node);
  const bool proved =
      known && (known->recovered || !known->jobs.empty() || !known->row.taken.empty());
  const Fence fence = CheckFence(meta_.cluster, epoch_, hello, proved);
  if (fence == Fence::kJournalTooOld) {
    MetaRow meta = meta_;
    meta.older_than = hello.highest_epoch;
    Put(meta);
    StepDownNow();
    return false;
  }
  if (fence == Fence::kUnprovedEpoch) {
    Refuse(
        event.session,
        UserError(absl::StatusCode::kFailedPrecondition,
                  "this agent follows a newer coordinator than this one",
                  absl::StrCat("it follows epoch ", hello.highest_epoch.value(), ", this is epoch ",
                               epoch_.value(),
                               "; its node is not in this journal, so its word alone "
                               "ends nothing"),
                  "the newest state directory for the coordinator, or a new one for this agent"));
    return false;
  }
  if (fence == Fence::kOtherCluster) {
    Refuse(
        event.session,
        UserError(absl::StatusCode::kFailedPrecondition, "this coordinator serves another cluster",
                  absl::StrCat("the agent follows cluster ", hello.cluster.value(),
                               ", this journal is cluster ", meta_.cluster.value()),
                  "start the coordinator with the state directory of that cluster"));
    return false;
  }
  return true;
}

bool Engine::AdmitSession(const SessionOpened& event, std::string* name) {
  const Hello& hello = event.hello;
  if (!AdmitEpoch(event)) return false;
  if (absl::Status version = CheckVersion(config_.version, hello.version); !version.ok()) {
    Refuse(event.session, version);
    return false;
  }
  for (const GroupReport& group : hello.groups) {
    const Job* job = FindJob(group.job);
    if (job == nullptr || group.generation <= job->state.last_number) continue;
    Refuse(event.session,
           UserError(absl::StatusCode::kFailedPrecondition, "the journal is older than this agent",
                     absl::StrCat("the agent holds generation ", group.generation.value(), " of ",
                                  group.job.value(), ", this journal gave ",
                                  job->state.last_number.value()),
                     "restore the newest state directory; nothing was stopped"));
    return false;
  }
  if (absl::Status unknown = CheckUnknown(hello); !unknown.ok()) {
    Refuse(event.session, unknown);
    return false;
  }
  const bool fits =
      hello.node.value().size() <= kMaxNodeIdBytes && hello.name.size() <= kMaxNodeNameBytes &&
      hello.address.size() <= kMaxAddressBytes && hello.dialled.size() <= kMaxAddressBytes;
  if (!fits || hello.node.empty() || hello.name.empty()) {
    Refuse(event.session,
           absl::InvalidArgumentError("a node's id, name or address is empty or too long"));
    return false;
  }
  const Node* known = FindNode(hello.node);
  if (known && hello.incarnation < known->row.incarnation) {
    Refuse(event.session,
           absl::AbortedError(absl::StrCat(
               "a newer agent of node ", known->row.name, " is known: incarnation ",
               known->row.incarnation.value(), ", this one is ", hello.incarnation.value())));
    return false;
  }
  std::optional<std::string> current;
  if (known && !known->row.lost) current = known->row.name;
  auto taken = [&](const std::string& asked) -> std::optional<std::string> {
    auto named = names_.find(asked);
    if (named == names_.end()) return std::nullopt;
    for (const NodeId& id : named->second)
      if (id != hello.node) return nodes_.at(id).row.address;
    return std::nullopt;
  };
  absl::StatusOr<std::string> admitted = AdmitName(hello, current, taken);
  if (!admitted.ok()) {
    Refuse(event.session, admitted.status());
    return false;
  }
  *name = *admitted;
  return true;
}

absl::Status Engine::CheckUnknown(const Hello& hello) const {
  std::set<JobId> unknown;
  for (const GroupReport& group : hello.groups)
    if (FindJob(group.job) == nullptr) unknown.insert(group.job);
  if (unknown.size() <= kMaxUnknownJobsPerNode) return absl::OkStatus();
  return UserError(absl::StatusCode::kFailedPrecondition,
                   "this node holds too many jobs that the journal does not know",
                   absl::StrCat("groups: of ", unknown.size(), " unknown jobs, at most ",
                                kMaxUnknownJobsPerNode, " are taken; nothing was stopped"),
                   "the newest state directory for the coordinator, or a new one for this agent");
}

void Engine::Refuse(SessionId session, absl::Status why) {
  Say(Severity::kWarning, "refused a session",
      {{"session", absl::StrCat(session.value())},
       {"why", std::string(why.message())},
       {"because", PartsOf(why).because}});
  Do(CloseSession{session, std::move(why)});
}

NodeRow Engine::RowOf(const Hello& hello, const std::string& name, const Node* known) const {
  NodeRow row;
  row.node = hello.node;
  row.name = name;
  row.name_explicit = hello.name_explicit;
  row.incarnation = hello.incarnation;
  row.boot = hello.boot;
  row.address = hello.address;
  row.dialled = hello.dialled;
  row.slots = hello.slots;
  row.launched = hello.launched;
  row.version = hello.version;
  if (known == nullptr) return row;
  // A launched agent is its launch command: another incarnation is another command, and says so by
  // LaunchAsked.
  if (known->row.launch && hello.launched && hello.incarnation == known->row.incarnation)
    row.launch = known->row.launch;
  for (const TakenSlots& taken : known->row.taken) {
    const bool held =
        std::any_of(hello.groups.begin(), hello.groups.end(), [&](const GroupReport& group) {
          return group.job == taken.job && group.phase != Phase::kFree;
        });
    if (held) row.taken.push_back(taken);
  }
  return row;
}

void Engine::Attach(Node& node, const SessionOpened& event) {
  const Hello& hello = event.hello;
  const bool came = node.link == Link::kLost;
  SetLink(node, Link::kAttached);
  node.session = event.session;
  sessions_[event.session] = hello.node;
  node.attached_at = node.last_heard = node.lease_from = now_;
  node.proved_dead = false;
  node.kept_until.reset();
  node.no_cgroup = hello.no_cgroup;
  node.sent.clear();
  node.unanswered.clear();
  node.last_order = node.obeyed = OrderNo();
  node.told_result.reset();
  node.groups.clear();
  node.leaving.reset();
  Do(SendWelcome{event.session, Welcome{.cluster = meta_.cluster,
                                        .epoch = epoch_,
                                        .name = node.row.name,
                                        .version = config_.version,
                                        .heartbeat = config_.heartbeat,
                                        .lease = config_.lease,
                                        .agent_restart = config_.agent_restart,
                                        .answers_heartbeats = true}});
  Say(Severity::kInfo, "node attached", {{"node", node.row.name}, {"address", node.row.address}});
  for (const GroupReport& group : hello.groups) {
    if (!Keep(node, group)) continue;
    if (Job* job = FindJob(group.job)) Touch(*job, node);
    WatchGroup(node, group);
  }
  for (const GroupReport& group : hello.groups)
    if (FindJob(group.job) == nullptr) StopUnknown(node, group.job);
  std::erase_if(node.watches, [&](const auto& watch) {
    auto shown = node.groups.find(watch.first);
    return shown == node.groups.end() || !shown->second.contains(watch.second.generation);
  });
  for (auto& watch : node.watches) watch.second.dead = false;
  if (came && !hello.launched) fleet_join_ = now_;
  for (const Notice& notice : hello.notices) SetLeaving(node, notice);
  RefreshJobs(node);
  MarkHungry();  // Who waits for it to come back may have no slots there.
  ArmNode(node, LeaseEnd(node));
}

void Engine::SetLink(Node& node, Link link) {
  if (node.link == Link::kLost) lost_.erase(node.lost_order);
  if (IsBroken(node.link)) --broken_;
  if (IsBroken(link)) ++broken_;
  if (link == Link::kAttached && !node.row.launched) {
    attached_daemons_.insert(node.row.node);
  } else {
    attached_daemons_.erase(node.row.node);
  }
  SlotsChanged(node);
  node.link = link;
}

void Engine::Detach(Node& node) {
  if (!node.session) return;
  sessions_.erase(*node.session);
  node.session.reset();
}

void Engine::On(const SessionBroken& event) {
  Node* node = NodeOf(event.session);
  if (node == nullptr) return;
  Detach(*node);
  // Of jobs that this journal does not know: its next Hello shows them again, however fat they are.
  std::erase_if(node->groups, [&](const auto& entry) { return FindJob(entry.first) == nullptr; });
  SetLink(*node, Link::kSuspected);
  node->broken_at = now_;
  node->probe_at = now_;
  for (auto& watch : node->watches) watch.second.in_flight = false;
  Say(Severity::kInfo, "session broken", {{"node", node->row.name}});
  if (CommandIsOver(*node)) return LoseNode(*node, kHowOver, /*proved=*/true);
  // Whoever can say hello can make nodes faster than leases expire.
  const bool holds = !node->jobs.empty() || !node->claims.empty() || !node->row.taken.empty();
  if (broken_ > config_.max_away_nodes && !holds)
    return LoseNode(*node, kHowCrowded, /*proved=*/false);
  RefreshJobs(*node);
  OnNodeDeadline(*node);
}

// A launched agent that has nothing to come back to: its name is free for the next command at once.
bool Engine::CommandIsOver(const Node& node) const {
  if (!node.row.launch) return false;
  const Job* job = FindJob(node.row.launch->job);
  if (job == nullptr) return true;
  return SlotsFree(*job, node) && (node.row.launch->left || job->state.phase == JobPhase::kEnded ||
                                   job->state.phase == JobPhase::kPreempted);
}

void Engine::Heard(Node& node) {
  node.last_heard = now_;
  node.kept_until.reset();
  node.lease_from = std::max(node.lease_from, now_);
}

void Engine::On(const HeartbeatReceived& event) {
  Node* node = NodeOf(event.session);
  if (node == nullptr) return;
  Heard(*node);
  if (event.obeyed <= node->obeyed) return;
  node->obeyed = event.obeyed;
  SlotsChanged(*node);
  std::erase_if(node->unanswered, [&](const auto& entry) {
    auto sent = node->sent.find(entry.first);
    const bool withdrawn = sent != node->sent.end() && sent->second.prepare == Generation();
    return withdrawn && sent->second.number <= node->obeyed;
  });
  for (const JobId& id : node->jobs) {
    Job* job = FindJob(id);
    if (job != nullptr && !FormedOf(*job)) MarkDirty(*job);
  }
}

// ---- leases and witnesses --------------------------------------------------------------------

std::optional<Instant> Engine::LeaseEnd(const Node& node) const {
  switch (node.link) {
    case Link::kAttached:
    case Link::kSuspected: return std::max(node.lease_from + config_.lease, brake_.until);
    case Link::kAgentAway: return std::max(node.broken_at + AwayLimit(node), node.awaited_until);
    case Link::kAwaited: return std::max(node.awaited_until, brake_.until);
    case Link::kLost: return std::nullopt;
  }
  return std::nullopt;
}

Duration Engine::AwayLimit(const Node& node) const {
  if (!node.row.launched) return config_.agent_restart;
  Duration grace{};
  for (const JobId& id : node.jobs)
    if (const Job* job = FindJob(id)) grace = std::max(grace, job->spec.spec.grace);
  return grace + config_.launched_restart_margin;
}

// A synchronous job that began and finished a step since then proves that all of its ranks live.
bool Engine::JobStepsWithout(const Node& node) const {
  for (const JobId& id : node.jobs) {
    const Job* job = FindJob(id);
    const GenerationRow* row = job ? FormedOf(*job) : nullptr;
    if (row == nullptr) continue;
    const GenerationSoft& soft = job->soft.at(row->generation);
    if (!soft.ending && soft.members.contains(node.row.node) && soft.step_before_at &&
        *soft.step_before_at > node.lease_from)
      return true;
  }
  return false;
}

// Steps vouch for a silent member, but not for ever: a job that is not synchronous steps on without
// it.
bool Engine::StepsKeep(const Node& node) const {
  return (!node.kept_until || now_ < *node.kept_until) && JobStepsWithout(node);
}

// A node's lease is over. True: so many others fell silent with it that silence is not believed for
// a while; most likely it is this coordinator that is cut off.
bool Engine::Brake() {
  const Instant from = now_ - config_.lease - config_.heartbeat;
  const Instant silent_since = now_ - 2 * config_.heartbeat;
  int silent = 0, sessions = 0;
  for (const auto& entry : nodes_) {
    const Node& node = entry.second;
    const bool lost_now =
        node.link == Link::kLost && node.row.lost_how == kHowSilent && node.lost_at > from;
    if (node.session || lost_now) ++sessions;
    // Steps that keep a node make its lease begin anew; it is as silent as the others.
    const Instant heard =
        node.kept_until ? *node.kept_until - config_.unreachable_hold : node.lease_from;
    const bool fell_silent = node.session && heard >= from && heard < silent_since;
    if (fell_silent || lost_now) ++silent;
  }
  if (silent < config_.brake_nodes || silent < config_.brake_share * sessions) return false;
  brake_ = {now_ + config_.brake, silent, sessions};
  Say(Severity::kWarning, "many nodes fell silent at once: silence is not believed for a while",
      {{"silent", absl::StrCat(silent)},
       {"sessions", absl::StrCat(sessions)},
       {"seconds", absl::StrCat(Seconds(config_.brake))}});
  return true;
}

void Engine::OnNodeDeadline(Node& node) {
  if (node.link == Link::kLost) {
    if (node.row.taken.empty() && node.jobs.empty()) {
      DeleteNode(node);
    } else {
      ArmNode(node, now_ + config_.keep_lost_nodes);
    }
    return;
  }
  if (*LeaseEnd(node) <= now_) {
    if (StepsKeep(node)) {
      if (!node.kept_until) node.kept_until = node.lease_from + config_.unreachable_hold;
      node.lease_from = node.broken_at = now_;
      node.awaited_until = now_ + config_.lease;
    } else if (node.link == Link::kAgentAway || !Brake()) {
      LoseNode(node, node.link == Link::kAgentAway ? kHowAway : kHowSilent, false);
      return;
    }
  }
  Instant next = *LeaseEnd(node);
  if (node.link != Link::kAttached && !node.watches.empty()) {
    if (node.probe_at <= now_) {
      ProbeWitnesses(node);
      node.probe_at = now_ + config_.probe_interval * (1 + broken_ / kProbedAtFullRate);
    }
    next = std::min(next, node.probe_at);
  }
  ArmNode(node, next);
}

void Engine::ProbeWitnesses(Node& node) {
  for (auto& entry : node.watches) {
    Watch& watch = entry.second;
    const bool counts = watch.verified || node.link == Link::kAwaited;
    if (watch.in_flight || watch.dead || !counts) continue;
    watch.in_flight = true;
    Do(Probe{node.row.node, entry.first, watch.generation, watch.witness});
  }
}

void Engine::WatchGroup(Node& node, const GroupReport& report) {
  auto found = node.watches.find(report.job);
  if (report.phase == Phase::kFree || !report.witness) {
    if (found != node.watches.end() && found->second.generation == report.generation)
      node.watches.erase(found);
    return;
  }
  if (found != node.watches.end() && found->second.generation > report.generation) return;
  if (found == node.watches.end() || found->second.generation < report.generation ||
      found->second.witness != *report.witness) {
    node.watches[report.job] = Watch{report.generation, *report.witness, false, false, false};
    found = node.watches.find(report.job);
  }
  Watch& watch = found->second;
  if (watch.verified || watch.in_flight) return;
  watch.in_flight = true;
  Do(Probe{node.row.node, report.job, report.generation, *report.witness});
}

void Engine::On(const Probed& event) {
  Node* node = FindNode(event.node);
  if (node == nullptr) return;
  auto found = node->watches.find(event.job);
  if (found == node->watches.end() || found->second.generation != event.generation) return;
  Watch& watch = found->second;
  watch.in_flight = false;
  if (event.result == ProbeResult::kAccepted) watch.verified = true;
  if (!IsBroken(node->link)) return;
  const bool redials = node->link == Link::kAwaited && now_ < recovered_at_ + config_.redial;
  if (event.result == ProbeResult::kAccepted) {
    node->lease_from = now_;
    SetLink(*node, Link::kAgentAway);
    if (Job* job = FindJob(event.job)) MarkDirty(*job);
    ArmNode(*node, std::min(*LeaseEnd(*node), std::max(node->probe_at, now_)));
  } else if (event.result == ProbeResult::kSilent && node->link == Link::kAgentAway) {
    SetLink(*node, Link::kSuspected);
    ArmNode(*node, std::min(*LeaseEnd(*node), std::max(node->probe_at, now_)));
  } else if (event.result == ProbeResult::kRefused && watch.verified && !redials) {
    watch.dead = true;
    const bool all = std::all_of(node->watches.begin(), node->watches.end(),
                                 [](const auto& entry) { return entry.second.dead; });
    if (all) {
      LoseNode(*node, kHowRefused, true);
    } else {
      RefreshJobs(*node);
    }
  }
}

void Engine::LoseNode(Node& node, const std::string& how, bool proved) {
  const bool left = how == kHowOver;
  Say(left ? Severity::kInfo : Severity::kWarning, left ? "node left" : "node lost",
      {{"node", node.row.name}, {"how", how}});
  NodeRow row = node.row;
  row.lost = true;
  row.lost_how = how;
  // Of an awaited node nothing was shown: its row and its memberships say what it may hold.
  const bool awaited = node.link == Link::kAwaited;
  if (proved || !awaited) row.taken.clear();
  for (const JobId& id : node.jobs) {
    const Job* job = FindJob(id);
    const bool known = std::any_of(row.taken.begin(), row.taken.end(),
                                   [&](const TakenSlots& taken) { return taken.job == id; });
    if (proved || known || job == nullptr) continue;
    if (awaited ? !node.claims.contains(id) : SlotsFree(*job, node)) continue;
    row.taken.push_back({id, job->state.last_formed, WorkersOn(*job, node), false});
  }
  if (node.session) {
    Do(CloseSession{*node.session,
                    absl::DeadlineExceededError(absl::StrCat(
                        "nothing heard for ", absl::StrCat(Seconds(config_.lease)), " s"))});
    Detach(node);
  }
  SetLink(node, Link::kLost);
  node.proved_dead = proved;
  node.kept_until.reset();
  node.lost_at = now_;
  node.leaving.reset();
  node.watches.clear();
  Put(row);
  RefreshJobs(node);
  if (row.launch) {
    Job* job = FindJob(row.launch->job);
    const bool waits = job && !job->state.verdict && !FormedOf(*job);
    if (waits && !row.launch->left) AddEvent(*job, NodeLeft{row.name, how});
    if (job) MarkDirty(*job);
  }
  node.groups.clear();
  node.unanswered.clear();
  if (now_ < recovered_at_ + config_.redial) MarkHungry();  // Until then it is waited for.
  RememberLost(node);
}

// Whoever can say hello can make nodes: those that left nothing behind are kept for a while, and
// not in any number.
void Engine::RememberLost(Node& node) {
  ArmNode(node, now_ + config_.keep_lost_nodes);
  node.lost_order = ++losses_;
  lost_.emplace(node.lost_order, node.row.node);
  if (lost_.size() <= config_.max_lost_nodes) return;
  ArmNode(nodes_.at(lost_.begin()->second), now_);  // Goes unless it holds something.
  lost_.erase(lost_.begin());
}

void Engine::DeleteNode(Node& node) {
  ArmNode(node, std::nullopt);
  SetLink(node, Link::kLost);
  Detach(node);
  const std::set<JobId> jobs = node.jobs;
  for (const JobId& id : jobs)
    if (Job* job = FindJob(id)) Untouch(*job, node);
  for (const JobId& id : node.claims)
    if (Job* job = FindJob(id)) {
      CountHeld(*job);
      job->claimed.erase(node.row.node);
    }
  Delete(NodeKey(node.row.node));
}

// ---- notices ---------------------------------------------------------------------------------

void Engine::On(const Noticed& event) {
  Node* node = NodeOf(event.session);
  if (node == nullptr) return;
  Heard(*node);
  SetLeaving(*node, event.notice);
  RefreshJobs(*node);
}

void Engine::SetLeaving(Node& node, const Notice& notice) {
  SlotsChanged(node);
  if (notice.withdrawn) {
    node.leaving.reset();
    return;
  }
  const bool news = !node.leaving;
  const Instant until = now_ + notice.left;
  if (!news && until >= node.leaving->until) return;  // A deadline never moves later.
  node.leaving = Leaving{notice, until};
  if (news)
    Say(Severity::kInfo, "node will leave",
        {{"node", node.row.name}, {"left", absl::StrCat(Seconds(notice.left))}});
}

// ---- what depends on a node ------------------------------------------------------------------

void Engine::RefreshJobs(Node& node) {
  const std::set<JobId> jobs = node.jobs;
  for (const JobId& id : jobs) {
    Job* job = FindJob(id);
    if (job == nullptr) continue;
    Refresh(*job, node);
    MarkDirty(*job);
    MarkOrder(*job, node.row.node);
  }
}

void Engine::Touch(Job& job, Node& node) {
  job.touched.insert(node.row.node);
  node.jobs.insert(job.id());
}

void Engine::Untouch(Job& job, Node& node) {
  job.touched.erase(node.row.node);
  node.jobs.erase(job.id());
  node.sent.erase(job.id());
}

// Every soft instant that waits for somebody else: nobody could be heard while the loop stood
// still. Not here: what passes by itself (back-off, settling, a notice's time), and deadlines that
// agents keep on clocks of their own.
void Engine::ForEachWait(const std::function<void(Instant&)>& extend) {
  const auto extend_if = [&](std::optional<Instant>& at) {
    if (at) extend(*at);
  };
  extend(recovered_at_);
  extend(brake_.until);
  extend_if(fleet_join_);
  extend_if(idle_since_);
  for (auto& [id, node] : nodes_) {
    for (Instant* at :
         {&node.lease_from, &node.broken_at, &node.awaited_until, &node.attached_at, &node.lost_at})
      extend(*at);
    extend_if(node.kept_until);
  }
  for (auto& [id, job] : jobs_) {
    extend(job.awaited_until);
    for (auto* at : {&job.below_since, &job.enough_since, &job.last_join, &job.wait_until})
      extend_if(*at);
    for (auto& trial : job.trials) extend(trial.second.until);
    for (auto& newcomer : job.newcomers) extend(newcomer.second.since);
    if (job.stop) extend(job.stop->give_up);
    for (auto& [generation, soft] : job.soft) {
      extend(soft.ack_deadline);
      extend(soft.since);
      extend(soft.return_until);
      extend(soft.close_by);
      for (auto& lost : soft.lost) extend(lost.second);
      if (soft.ending) extend(soft.ending->give_up);
      if (soft.saving && soft.saving->node.empty()) extend(soft.saving->until);
    }
  }
}

void Engine::On(const Stalled& event) {
  ForEachWait([&](Instant& at) { at += event.gap; });
}

}  // namespace regroup::coordinator
