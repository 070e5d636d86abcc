#include "agent/core/core.h"

#include <algorithm>
#include <climits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/user_error.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;

constexpr Duration kProgressInterval = 100ms;
// A Hello is 1 MiB at most, and has other things to tell.
constexpr std::size_t kMaxHelloErrorBytes = 512 << 10;
constexpr Duration kCoordinatorRestartInterval = 1s;
constexpr Duration kWelcomeLimit = 5s;  // At least.
constexpr Duration kShimSilence = 2s;   // After the deadline of a stop.

std::string NameOf(const GroupKey& key) {
  return absl::StrCat(key.job.value(), " generation ", key.generation.value());
}

// A run order comes from a peer: it must name every local rank of the group once.
bool CoversGroup(const Run& run, const Group& group) {
  std::set<int> ranks;
  for (const RankAssignment& assignment : run.mine) ranks.insert(assignment.local_rank);
  return static_cast<int>(run.mine.size()) == group.workers && !ranks.empty() &&
         *ranks.begin() == 0 && *ranks.rbegin() == group.workers - 1 &&
         static_cast<int>(ranks.size()) == group.workers;
}

// One minor apart works both ways.
bool IsSpokenBy(const Version& mine, const Version& theirs) {
  return mine.major == theirs.major &&
         std::max(mine.minor, theirs.minor) - std::min(mine.minor, theirs.minor) <= 1;
}

bool AllExitedWell(const Group& group) {
  return static_cast<int>(group.exits.size()) == group.workers &&
         std::all_of(group.exits.begin(), group.exits.end(), [](const auto& entry) {
           return entry.second.kind == ExitKind::kExited && entry.second.code == 0;
         });
}

}  // namespace

Core::Core(Config config, Instant now) : config_(std::move(config)), started_at_(now), now_(now) {}

Effects Core::Step(Instant now, const Event& event) {
  CHECK(now >= now_);
  // Attached, a step comes at least each heartbeat. What was said while this process stood still
  // waits to be read.
  if (attached_ && silent_at_) *silent_at_ += std::max(Duration::zero(), now - now_ - heartbeat_);
  now_ = now;
  effects_ = {};
  if (left_) return {};
  std::visit([this](const auto& e) { On(e); }, event);
  Settle();
  return std::move(effects_);
}

Group* Core::Find(const GroupKey& key) {
  auto it = groups_.find(key);
  return it == groups_.end() ? nullptr : &it->second;
}

void Core::Settle() {
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    Reconcile(it->first, it->second);
    const auto first = groups_.lower_bound({it->first, Generation()});
    const bool any_group = first != groups_.end() && first->first.job == it->first;
    // Nothing is left to be stale against: within a session orders arrive in sequence and are
    // cumulative.
    it = any_group || it->second.prepare || it->second.run ? std::next(it) : jobs_.erase(it);
  }
  KillSilentShims();
  SendReports(/*all=*/false);
  if (attached_) {
    for (auto& [key, progress] : progress_) {
      if (!progress.unsent || progress.not_before > now_) continue;
      progress.unsent = false;
      progress.not_before = now_ + kProgressInterval;
      Do(SendProgress{progress.last});
    }
  }
  BreakIfSilent();
  HeartbeatIfDue();
  CoordinatorIfDue();
  LeaveIfDue();
}

std::optional<Instant> Core::NextDeadline() const {
  std::optional<Instant> next;
  const auto consider = [&next](std::optional<Instant> at) {
    if (at && (!next || *at < *next)) next = at;
  };
  if (left_) return next;
  consider(silent_at_);
  if (attached_) {
    consider(next_heartbeat_);
    for (const auto& [key, progress] : progress_) {
      if (progress.unsent) consider(progress.not_before);
    }
  } else {
    consider(next_coordinator_start_);
  }
  for (const auto& [key, group] : groups_) consider(SilentAt(group));
  for (Instant at : LeaveDeadlines()) {
    if (at > now_) consider(at);
  }
  return next;
}

// ---- the coordinator ----------------------------------------------------------------------------

void Core::On(const Scanned& scanned) {
  CHECK(!scanned_);
  scanned_ = true;
  for (const RunRecord& record : scanned.records) {
    // Another boot killed everything in it. A directory without a shim that never started a rank is
    // an unfinished prepare: nothing runs, and the coordinator, which sees no such group in our
    // Hello, prepares again or gives up.
    const bool nothing_runs = !record.shim_alive && !record.started && !record.checking;
    if (record.boot != config_.boot || nothing_runs) {
      Note(
          absl::StrCat("removing the run directory of ", NameOf(record.key),
                       record.boot != config_.boot ? ": of another boot" : ": its shim never ran"));
      Do(RemoveRunDirectory{record.key});
      continue;
    }
    Group& group = groups_.emplace(record.key, Adopt(record)).first->second;
    if (group.workers == 0) group.workers = config_.slots;
    Job& job = jobs_[record.key.job];
    job.highest = std::max(job.highest, record.key.generation);
    if (group.started) ever_ran_ = true;
    Note(absl::StrCat("adopted ", NameOf(record.key)));
    if (group.supervisor_lost && group.busy()) {
      group.signalled_at = now_;
      Do(KillGroup{record.key});
    } else if (group.phase == Phase::kPreparing) {
      if (group.host_store && (!group.store || !record.store_alive)) {
        group.store.reset();
        group.store_lost = false;
        Do(SpawnStore{record.key});
      }
      MaybePrepared(group);
    }
  }
  SayHello();
}

void Core::On(const CoordinatorFound& found) {
  found_ = found;
  silent_at_ = now_ + std::max(lease_, kWelcomeLimit);
  SayHello();
}

void Core::SayHello() {
  if (!scanned_ || !found_) return;
  if (config_.launched && groups_.empty()) {
    // A launch command follows one coordinator only as long as it has something of it.
    config_.cluster = ClusterId();
    config_.highest_epoch = Epoch();
  }
  Hello hello{.cluster = config_.cluster,
              .highest_epoch = config_.highest_epoch,
              .node = config_.node,
              .incarnation = config_.incarnation,
              .boot = config_.boot,
              .name = config_.name,
              .name_explicit = config_.name_explicit,
              .slots = config_.slots,
              .version = config_.version,
              .address = found_->address,
              .dialled = found_->dialled,
              .launched = config_.launched,
              .groups = {},
              .notices = {},
              .no_cgroup = config_.no_cgroup};
  SendReports(
      /*all=*/false);  // Numbers what has changed since; nothing leaves while we are not attached.
  std::size_t room = kMaxHelloErrorBytes;
  for (auto& [key, group] : groups_) {
    GroupReport& report = hello.groups.emplace_back(ReportOf(key, group, now_));
    for (RankExit& exit : report.exits) {
      exit.error.resize(std::min(exit.error.size(), room));
      room -= exit.error.size();
    }
  }
  if (leaving_ && leaving_->signal != 0) {
    hello.notices.push_back({.source = NoticeSource::kSignal,
                             .signal = leaving_->signal,
                             .left = std::max(Duration::zero(), leaving_->deadline - now_),
                             .withdrawn = false});
  }
  Do(SendHello{std::move(hello)});
}

std::optional<std::string> Core::WhyNot(const Welcome& welcome) const {
  const Version& mine = config_.version;
  const Version& theirs = welcome.version;
  if (!IsSpokenBy(mine, theirs)) {
    return absl::StrFormat("the coordinator speaks protocol %d.%d (%s), this agent %d.%d (%s)",
                           theirs.major, theirs.minor, theirs.build, mine.major, mine.minor,
                           mine.build);
  }
  if (!config_.cluster.empty() && welcome.cluster != config_.cluster) {
    return absl::StrFormat(
        "this node belongs to cluster %s (epoch %d), the coordinator that answers leads cluster %s "
        "(epoch %d)",
        config_.cluster.value(), config_.highest_epoch.value(), welcome.cluster.value(),
        welcome.epoch.value());
  }
  if (welcome.epoch < config_.highest_epoch) {
    return absl::StrFormat(
        "cluster %s: this node has followed epoch %d, the coordinator that answers is of epoch %d: "
        "its journal is older than the fleet",
        welcome.cluster.value(), config_.highest_epoch.value(), welcome.epoch.value());
  }
  return std::nullopt;
}

void Core::On(const Welcomed& welcomed) {
  if (!found_ || attached_) return;
  const Welcome& welcome = welcomed.welcome;
  if (std::optional<std::string> why = WhyNot(welcome)) {
    Note(*why);
    found_.reset();
    silent_at_.reset();
    // Nobody has started anything that would be worth waiting for the right one.
    if (config_.launched && !ever_ran_ && !IsSpokenBy(config_.version, welcome.version)) {
      return LeaveNow(
          125, RenderUserError(UserError(absl::StatusCode::kFailedPrecondition,
                                         "this command cannot follow the coordinator that answers",
                                         *why, "install the same Regroup on all nodes")));
    }
    Do(RefuseCoordinator{*std::move(why)});
    return;
  }
  if (config_.cluster != welcome.cluster || config_.highest_epoch != welcome.epoch) {
    config_.cluster = welcome.cluster;
    config_.highest_epoch = welcome.epoch;
    Do(RememberCoordinator{welcome.cluster, welcome.epoch});
  }
  attached_ = true;
  next_coordinator_start_.reset();
  obeyed_ = OrderNo();
  heartbeat_ = std::clamp<Duration>(welcome.heartbeat, 10ms, 1min);
  next_heartbeat_ = now_ + heartbeat_;
  lease_ = std::max<Duration>(welcome.lease, 2 * heartbeat_);
  silent_at_.reset();
  if (welcome.answers_heartbeats) silent_at_ = now_ + lease_;
  if (config_.launched) Do(SendLaunch{});
  // Whatever was unacknowledged may have been lost with the session or the coordinator: all of it
  // again.
  SendReports(/*all=*/true);
  for (auto& [key, progress] : progress_) progress.unsent = true;
  for (auto& [key, commit] : commits_) AskCommit(commit);
  SayLeaving();
}

void Core::On(const CoordinatorRefused& refused) {
  // A launch command that has nothing running ends here; running workers are nobody's business but
  // the coordinator's that formed them, so with any we dial on.
  if (config_.launched && !ever_ran_) LeaveNow(125, refused.why);
}

void Core::On(const CoordinatorAway&) {
  if (attached_) Note("the coordinator is away");
  attached_ = false;
  found_.reset();
  silent_at_.reset();
  next_heartbeat_.reset();
  for (auto& [key, commit] : commits_) commit.in_flight.reset();
  for (auto& [job, state] : jobs_) {  // The next one compares, then orders.
    state.prepare.reset();
    state.run.reset();
  }
  if (config_.starts_coordinator && !next_coordinator_start_) next_coordinator_start_ = now_;
  if (leaving_) StopEverything(leaving_->now ? now_ : leaving_->deadline);
}

void Core::On(const CoordinatorSpoke&) {
  if (attached_ && silent_at_) silent_at_ = now_ + lease_;
}

// TCP alone would notice a host that is gone after minutes.
void Core::BreakIfSilent() {
  if (!silent_at_ || *silent_at_ > now_) return;
  const Duration silence = attached_ ? lease_ : std::max(lease_, kWelcomeLimit);
  std::string why =
      absl::StrFormat("nothing was heard from the coordinator for %g s", Seconds(silence));
  Note(why);
  Do(BreakSession{std::move(why)});
  On(CoordinatorAway{});
}

void Core::CoordinatorIfDue() {
  if (attached_ || result_ || !next_coordinator_start_ || *next_coordinator_start_ > now_) return;
  next_coordinator_start_ = now_ + kCoordinatorRestartInterval;
  Do(StartCoordinator{});
}

void Core::HeartbeatIfDue() {
  if (!attached_ || !next_heartbeat_ || *next_heartbeat_ > now_) return;
  next_heartbeat_ = now_ + heartbeat_;
  Do(SendHeartbeat{obeyed_});
}

// ---- orders -------------------------------------------------------------------------------------

void Core::On(const Ordered& ordered) {
  const Order& order = ordered.order;
  if (!attached_ || order.number < obeyed_) return;
  obeyed_ = order.number;
  Job& job = jobs_[order.job];
  if (order.stop) {
    job.stopped_up_to = std::max(job.stopped_up_to, order.stop->up_to);
    for (auto& [key, group] : groups_) {
      if (key.job != order.job || key.generation > order.stop->up_to) continue;
      StopGroup(key, group, now_ + order.stop->grace, order.stop->reason);
    }
  }
  if (order.forget) job.forgotten_up_to = std::max(job.forgotten_up_to, order.forget->up_to);
  job.prepare = order.prepare;
  job.run = order.run;
  if (order.notice) {
    const GroupKey key{order.job, order.notice->generation};
    if (Group* group = Find(key); group != nullptr && group->busy()) {
      const Instant deadline = now_ + order.notice->left;
      group->notice_deadline =
          group->notice_deadline ? std::min(*group->notice_deadline, deadline) : deadline;
      NotifyWorkers(key, *group);
    }
  }
}

void Core::Reconcile(const JobId& job, Job& state) {
  for (auto it = groups_.lower_bound({job, Generation()});
       it != groups_.end() && it->first.job == job;) {
    const GroupKey key = it->first;
    const bool gone = key.generation <= state.forgotten_up_to && it->second.phase == Phase::kFree;
    ++it;
    if (gone) Remove(key);
  }
  const auto stale = [&state](Generation g) {
    return g <= state.stopped_up_to || g <= state.forgotten_up_to || g < state.highest;
  };
  if (state.prepare && !stale(state.prepare->generation)) {
    StartPreparing(job, *state.prepare);
  }
  if (state.run && !stale(state.run->generation)) {
    const GroupKey key{job, state.run->generation};
    Group* group = Find(key);
    if (group == nullptr || group->started || group->phase != Phase::kPrepared || leaving_) return;
    if (!CoversGroup(*state.run, *group)) {
      Note(absl::StrCat("the run order of ", NameOf(key), " does not name each of ", group->workers,
                        " local ranks once"));
      state.run.reset();
      return;
    }
    state.prepare.reset();
    group->started = true;
    group->phase = Phase::kStarting;
    group->dirty = true;
    ever_ran_ = true;
    Do(StartRanks{key, *state.run});
  }
}

void Core::StartPreparing(const JobId& job, const Prepare& prepare) {
  const GroupKey key{job, prepare.generation};
  if (Find(key) != nullptr) return;
  int taken = 0, freeing = 0;
  for (const auto& [other, group] : groups_) {
    if (group.holds_slots()) taken += group.workers;
    if (group.phase == Phase::kStopping) freeing += group.workers;
  }
  const int needed = prepare.spec.workers;
  if (needed < 1 || needed > config_.slots) {
    return Refuse(
        key, needed,
        absl::StrFormat("%d workers asked for, this node has %d slots", needed, config_.slots));
  }
  if (leaving_) return Refuse(key, needed, "this node is leaving");
  if (taken + needed > config_.slots) {
    if (taken - freeing + needed <= config_.slots) return;  // Waits for what is stopping.
    return Refuse(key, needed,
                  absl::StrFormat("%d workers asked for, %d of %d slots are taken", needed, taken,
                                  config_.slots));
  }
  Job& state = jobs_[job];
  state.highest = std::max(state.highest, prepare.generation);
  Group group;
  group.workers = needed;
  group.host_store = prepare.host_store;
  group.has_directory = true;
  groups_.emplace(key, std::move(group));
  Do(WriteRunDirectory{key, prepare});
}

// A refusal is a group that is free from birth: reported until acknowledged, then forgotten like
// any other.
void Core::Refuse(const GroupKey& key, int workers, std::string why) {
  Note(absl::StrCat("refused to prepare ", NameOf(key), ": ", why));
  jobs_[key.job].highest = std::max(jobs_[key.job].highest, key.generation);
  Group group;
  group.phase = Phase::kFree;
  group.workers = std::max(0, workers);
  group.refused = std::move(why);
  groups_.emplace(key, std::move(group));
}

void Core::Remove(const GroupKey& key) {
  const Group& group = groups_.at(key);
  if (group.has_directory) Do(RemoveRunDirectory{key});
  groups_.erase(key);
  commits_.erase(key);
  progress_.erase(progress_.lower_bound({key, INT_MIN}), progress_.upper_bound({key, INT_MAX}));
}

void Core::StopGroup(const GroupKey& key, Group& group, Instant deadline, StopReason reason) {
  if (group.phase == Phase::kFree) return;
  const bool breaks = reason == StopReason::kFailure || reason == StopReason::kCancelled ||
                      reason == StopReason::kSuperseded;
  if (breaks && group.host_store && !group.store_closed) {
    // Stops nobody; keeps stragglers elsewhere from rendezvousing in a generation that is over.
    group.store_closed = true;
    if (group.shim_spawned) Do(CloseStore{key});
    group.dirty = true;
  }
  if (group.stop_deadline && *group.stop_deadline <= deadline) return;
  group.stop_deadline = deadline;
  group.kill_shim_at.reset();
  if (!group.signalled_at) group.signalled_at = now_;
  if (group.phase != Phase::kUnkillable && group.phase != Phase::kStopping) {
    group.phase = Phase::kStopping;
    group.dirty = true;
  }
  // A generation with a rank that has exited 0 neither grows nor moves: that stop ends the job.
  const bool finished = reason == StopReason::kElective && AllExitedWell(group);
  if (group.shim_ready && !group.shim_gone) Do(StopRanks{key, deadline, finished});
}

void Core::StopEverything(Instant deadline) {
  for (auto& [key, group] : groups_) StopGroup(key, group, deadline, StopReason::kNotice);
}

// A live shim kills its ranks at the deadline and says so; then its group is free or unkillable.
std::optional<Instant> Core::SilentAt(const Group& group) {
  const bool awaited = group.phase == Phase::kStopping && group.shim_spawned && !group.shim_gone;
  return awaited ? group.kill_shim_at : std::nullopt;
}

void Core::KillSilentShims() {
  for (auto& [key, group] : groups_) {
    if (group.stop_deadline && !group.kill_shim_at)
      group.kill_shim_at = std::max(now_, *group.stop_deadline) + kShimSilence;
    const std::optional<Instant> at = SilentAt(group);
    if (!at || now_ < *at) continue;
    Note(absl::StrCat("the shim of ", NameOf(key), " does not answer and is killed"));
    group.kill_shim_at = now_ + kShimSilence;
    Do(KillShim{key});
  }
}

// ---- reports ------------------------------------------------------------------------------------

void Core::SendReports(bool all) {
  for (auto& [key, group] : groups_) {
    if (group.dirty) {
      group.dirty = false;
      group.acked = false;
      group.number = last_report_ = last_report_.Next();
    } else if (!all || group.acked) {
      continue;
    }
    if (attached_) Do(SendReport{ReportOf(key, group, now_)});
  }
}

void Core::On(const ReportAcked& acked) {
  for (auto& [key, group] : groups_) {
    if (group.number != acked.number || group.dirty) continue;
    group.acked = true;
    // Until now a refused witness would have said that this node died with it.
    if (group.phase == Phase::kFree && group.shim_spawned) Do(ReleaseShim{key});
  }
}

}  // namespace regroup::agent
