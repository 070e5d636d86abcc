#include "launcher/coordinator/core/links.h"

#include <algorithm>
#include <set>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/core/accounts.h"
#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/leases.h"
#include "launcher/coordinator/core/members.h"
#include "launcher/coordinator/core/news.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/node_in_job.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/slots.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {
namespace {

// Probes are spread out when very many nodes are away at once.
constexpr int kProbedAtFullRate = 64;

// A node that dies takes its session along first, and its groups within milliseconds; an agent that
// restarts needs longer. So the first probes come soon, each after as long as the node is away.
Duration UntilNextProbe(const Step& step, const Away& away) {
  const LeaseConfig& leases = step.config().leases;
  const Duration rate =
      std::clamp(step.now() - away.broken_at, leases.first_probe_interval, leases.probe_interval);
  return rate * (1 + step.state.fleet.broken / kProbedAtFullRate);
}

// A launched agent that has nothing to come back to, and said so: its name is free for the next
// command at once. Else a fixed-size job that is started again at once would find its own names
// taken.
bool CommandIsOver(const State& state, const Node& node) {
  if (!node.row.launch) return false;
  const Job* job = state.FindJob(node.row.launch->job);
  if (job == nullptr) return true;
  return SlotsFree(*job, node) && node.row.launch->left;
}

// A node's lease is over. True: so many others fell silent with it that silence is not believed for
// a while; most likely it is this coordinator that is cut off.
bool PullBrake(Step& step) {
  const Instant from = step.now() - step.config().leases.lease - step.config().leases.heartbeat;
  const Instant silent_since = step.now() - 2 * step.config().leases.heartbeat;
  int silent = 0, sessions = 0;
  for (const auto& entry : step.state.nodes) {
    const Node& node = entry.second;
    const bool lost_now = node.lost() && node.row.lost_how == kHowSilent && node.lost()->at > from;
    if (node.attached() || lost_now) ++sessions;
    // Steps that keep a node make its lease begin anew; it is as silent as the others.
    const Instant heard = node.lease.kept_until
                              ? *node.lease.kept_until - step.config().holds.unreachable
                              : node.lease.from;
    const bool fell_silent = node.attached() && heard >= from && heard < silent_since;
    if (fell_silent || lost_now) ++silent;
  }
  if (silent < step.config().brake.nodes || silent < step.config().brake.share * sessions)
    return false;
  step.state.fleet.brake = {step.now() + step.config().brake.lasts, silent, sessions};
  step.Say(Severity::kWarning,
           "many nodes fell silent at once: silence is not believed for a while",
           {{"silent", absl::StrCat(silent)},
            {"sessions", absl::StrCat(sessions)},
            {"seconds", absl::StrCat(Seconds(step.config().brake.lasts))}});
  return true;
}

void ProbeWitnesses(Step& step, Node& node) {
  for (auto& entry : node.watches) {
    Watch& watch = entry.second;
    // A port that never answered may be closed by a firewall: its refusal would prove nothing.
    // After a recovery an answer is still worth having.
    const bool counts = watch.verified || node.Is<Awaited>();
    if (watch.in_flight || watch.dead || !counts) continue;
    watch.in_flight = true;
    step.Do(Probe{node.row.node, entry.first, watch.generation, watch.witness});
  }
}

// Whether something of the node may live that no witness speaks for, so that refusals of the others
// do not prove the node dead. A group that only prepares has no ranks, and ends with its agent.
bool HoldsUnwatched(const State& state, const Node& node) {
  const auto watched = [&](const JobId& job, Generation generation) {
    auto watch = node.watches.find(job);
    return watch != node.watches.end() && watch->second.generation == generation;
  };
  for (const auto& [job, groups] : node.groups)
    for (const auto& [generation, group] : groups)
      if (group.phase != Phase::kFree && group.phase != Phase::kPreparing &&
          !watched(job, generation))
        return true;
  if (!node.Is<Awaited>()) return false;
  // Of an awaited node nothing was shown: it may hold what the rows say.
  for (const JobId& id : node.jobs) {
    const Job* job = state.FindJob(id);
    if (job == nullptr) continue;
    for (const auto& [generation, soft] : job->soft) {
      const Over* over = std::get_if<Over>(&soft.state);
      const bool runs = CourseOf(soft) != nullptr && soft.members.contains(node.row.node);
      const bool holds = over ? over->waiting.contains(node.row.node) : runs;
      if (holds && !watched(id, generation)) return true;
    }
  }
  return false;
}

void DeleteNode(Step& step, Node& node) {
  step.Arm(node, std::nullopt);
  SetLink(step, node, Lost{});
  const std::set<JobId> jobs = node.jobs;
  for (const JobId& id : jobs)
    if (Job* job = step.state.FindJob(id)) Untouch(*job, node);
  for (const JobId& id : node.claims)
    if (Job* job = step.state.FindJob(id)) {
      CountHeld(step.state, *job);
      job->nodes.claimed.erase(node.row.node);
    }
  step.Delete(NodeKey(node.row.node));
}

}  // namespace

void SetLink(Step& step, Node& node, Link link) {
  Fleet& fleet = step.state.fleet;
  if (const Lost* lost = node.lost()) fleet.lost.erase(lost->order);
  if (const Attached* before = node.attached()) fleet.sessions.Erase(before->session);
  if (AwayOf(node.link)) --fleet.broken;
  if (AwayOf(link)) ++fleet.broken;
  const auto* attached = std::get_if<Attached>(&link);
  if (attached) fleet.sessions.Set(attached->session, &node);
  // Launched nodes serve their own job only and are offered to nobody.
  if (attached && !node.row.launched) {
    fleet.attached_daemons.insert(node.row.node);
  } else {
    fleet.attached_daemons.erase(node.row.node);
  }
  step.state.SlotsChanged(node);
  node.link = link;
}

void On(Step& step, const SessionBroken& event) {
  Node* node = step.state.NodeOf(event.session);
  if (node == nullptr) return;
  // Of jobs that this journal does not know: its next Hello shows them again, however fat they are.
  std::erase_if(node->groups,
                [&](const auto& entry) { return step.state.FindJob(entry.first) == nullptr; });
  SetLink(step, *node, Suspected{{step.now(), step.now()}});
  for (auto& watch : node->watches) watch.second.in_flight = false;
  step.Say(Severity::kInfo, "session broken", {{"node", node->row.name}});
  if (CommandIsOver(step.state, *node)) return LoseNode(step, *node, kHowOver, /*proved=*/true);
  // Whoever can say hello can make nodes faster than leases expire.
  const bool holds = !node->jobs.empty() || !node->claims.empty() || !node->row.taken.empty();
  if (step.state.fleet.broken > step.config().limits.away_nodes && !holds)
    return LoseNode(step, *node, kHowCrowded, /*proved=*/false);
  RefreshJobs(step, *node);
  OnNodeDeadline(step, *node);
}

void Heard(Step& step, Node& node) {
  node.lease.last_heard = step.now();
  node.lease.kept_until.reset();
  node.lease.from = std::max(node.lease.from, step.now());
}

void On(Step& step, const HeartbeatReceived& event) {
  Node* node = step.state.NodeOf(event.session);
  if (node == nullptr) return;
  Heard(step, *node);
  if (Attached* attached = std::get_if<Attached>(&node->link)) {
    attached->warm_bytes = event.warm_bytes;
    if (event.gpus) attached->gpus = *event.gpus;
  }
  // An order that was obeyed with nothing to report is settled by this: its slots are
  // no longer taken.
  if (event.obeyed <= node->orders.obeyed) return;
  node->orders.obeyed = event.obeyed;
  step.state.SlotsChanged(*node);
  std::erase_if(node->orders.unanswered, [&](const auto& entry) {
    auto sent = node->orders.sent.find(entry.first);
    const bool withdrawn = sent != node->orders.sent.end() && sent->second.prepare == Generation();
    return withdrawn && sent->second.number <= node->orders.obeyed;
  });
  for (const JobId& id : node->jobs) {
    Job* job = step.state.FindJob(id);
    if (job != nullptr && !FormedOf(*job)) step.LookAt(*job);
  }
}

void OnNodeDeadline(Step& step, Node& node) {
  if (node.Is<Lost>()) {
    if (node.row.taken.empty() && node.jobs.empty()) {
      DeleteNode(step, node);
    } else {
      step.Arm(node, step.now() + step.config().retention.lost_nodes);
    }
    return;
  }
  if (*LeaseEnd(step.state, node) <= step.now()) {
    // Its lease begins anew at each of its ends, as long as steps go on, up to the
    // first time plus the hold.
    if (StepsKeep(step.state, node)) {
      if (!node.lease.kept_until)
        node.lease.kept_until = node.lease.from + step.config().holds.unreachable;
      node.lease.from = step.now();
      if (Away* away = AwayOf(node.link)) {
        away->broken_at = step.now();
        away->awaited_until = step.now() + step.config().leases.lease;
      }
    } else if (node.Is<AgentAway>() || !PullBrake(step)) {
      LoseNode(step, node, node.Is<AgentAway>() ? kHowAway : kHowSilent, false);
      return;
    }
  }
  Instant next = *LeaseEnd(step.state, node);
  Away* away = AwayOf(node.link);
  if (away && !node.watches.empty()) {
    if (away->probe_at <= step.now()) {
      ProbeWitnesses(step, node);
      away->probe_at = step.now() + UntilNextProbe(step, *away);
    }
    next = std::min(next, away->probe_at);
  }
  step.Arm(node, next);
}

void WatchGroup(Step& step, Node& node, const GroupReport& report) {
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
  // While the node is alive, so that the answer is known before it is needed.
  if (watch.verified || watch.in_flight) return;
  watch.in_flight = true;
  step.Do(Probe{node.row.node, report.job, report.generation, *report.witness});
}

void On(Step& step, const Probed& event) {
  Node* node = step.state.FindNode(event.node);
  if (node == nullptr) return;
  auto found = node->watches.find(event.job);
  if (found == node->watches.end() || found->second.generation != event.generation) return;
  Watch& watch = found->second;
  watch.in_flight = false;
  if (event.result == ProbeResult::kAccepted) watch.verified = true;
  if (!AwayOf(node->link)) return;
  const Away away = *AwayOf(node->link);
  // A group that ended while no coordinator could be told has closed its witness, too; its agent
  // comes and tells, if it gets the time to dial.
  const bool redials =
      node->Is<Awaited>() && step.now() < step.state.recovered_at + step.config().leases.redial;
  if (event.result == ProbeResult::kAccepted) {
    node->lease.from = step.now();
    SetLink(step, *node, AgentAway{away});
    if (Job* job = step.state.FindJob(event.job)) step.LookAt(*job);
    step.Arm(*node, std::min(*LeaseEnd(step.state, *node), std::max(away.probe_at, step.now())));
  } else if (event.result == ProbeResult::kSilent && node->Is<AgentAway>()) {
    SetLink(step, *node, Suspected{away});
    step.Arm(*node, std::min(*LeaseEnd(step.state, *node), std::max(away.probe_at, step.now())));
  } else if (event.result == ProbeResult::kRefused && watch.verified && !redials) {
    watch.dead = true;
    // Groups of other jobs on this node may live on; then only the job of this one is told.
    const bool all = std::all_of(node->watches.begin(), node->watches.end(),
                                 [](const auto& entry) { return entry.second.dead; });
    if (all && !HoldsUnwatched(step.state, *node)) {
      LoseNode(step, *node, kHowRefused, true);
    } else {
      RefreshJobs(step, *node);
    }
  }
}

void LoseNode(Step& step, Node& node, const std::string& how, bool proved) {
  const bool left = how == kHowOver;
  step.Say(left ? Severity::kInfo : Severity::kWarning, left ? "node left" : "node lost",
           {{"node", node.row.name}, {"how", how}});
  NodeRow row = node.row;
  row.lost = true;
  row.lost_how = how;
  // Of an awaited node nothing was shown: its row and its memberships say what it may hold.
  const bool awaited = node.Is<Awaited>();
  if (proved || !awaited) row.taken.clear();
  for (const JobId& id : node.jobs) {
    const Job* job = step.state.FindJob(id);
    const bool known = std::any_of(row.taken.begin(), row.taken.end(),
                                   [&](const TakenSlots& taken) { return taken.job == id; });
    if (proved || known || job == nullptr) continue;
    if (awaited ? !node.claims.contains(id) : SlotsFree(*job, node)) continue;
    row.taken.push_back({id, job->state.last_formed, WorkersOn(*job, node), false});
  }
  if (const Attached* attached = node.attached()) {
    step.Do(CloseSession{
        attached->session,
        absl::DeadlineExceededError(absl::StrCat(
            "nothing heard for ", absl::StrCat(Seconds(step.config().leases.lease)), " s"))});
  }
  SetLink(step, node, Lost{step.now(), proved});
  node.lease.kept_until.reset();
  node.leaving.reset();
  node.watches.clear();
  step.Put(row);
  RefreshJobs(step, node);
  if (row.launch) {
    Job* job = step.state.FindJob(row.launch->job);
    const bool waits = job && !job->state.verdict && !FormedOf(*job);
    // Where a generation runs, its end tells of the loss.
    if (waits && !row.launch->left) AddEvent(step, *job, NodeLeft{row.name, how});
    if (job) step.LookAt(*job);
  }
  node.groups.clear();
  node.orders.unanswered.clear();
  if (step.now() < step.state.recovered_at + step.config().leases.redial)
    OfferAgain(step);  // Until then it is waited for.
  RememberLost(step, node);
}

void RememberLost(Step& step, Node& node) {
  step.Arm(node, step.now() + step.config().retention.lost_nodes);
  const std::uint64_t order = std::get<Lost>(node.link).order = ++step.state.fleet.losses;
  step.state.fleet.lost.emplace(order, node.row.node);
  if (step.state.fleet.lost.size() <= step.config().limits.lost_nodes) return;
  step.Arm(step.state.NodeAt(step.state.fleet.lost.begin()->second),
           step.now());  // Goes unless it holds something.
  step.state.fleet.lost.erase(step.state.fleet.lost.begin());
}

void On(Step& step, const Noticed& event) {
  Node* node = step.state.NodeOf(event.session);
  if (node == nullptr) return;
  Heard(step, *node);
  SetLeaving(step, *node, event.notice);
  RefreshJobs(step, *node);
}

void SetLeaving(Step& step, Node& node, const Notice& notice) {
  step.state.SlotsChanged(node);
  const bool news = !node.leaving;
  const Instant until = step.now() + notice.left;
  if (!news && until >= node.leaving->until) return;  // A deadline never moves later.
  node.leaving = Leaving{notice, until};
  if (news)
    step.Say(Severity::kInfo, "node will leave",
             {{"node", node.row.name}, {"left", absl::StrCat(Seconds(notice.left))}});
}

}  // namespace regroup::coordinator
