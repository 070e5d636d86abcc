#include "tests/agent/promises/promises.h"

#include <algorithm>
#include <csignal>
#include <iterator>
#include <set>
#include <sstream>
#include <variant>

namespace regroup::agent::testing {
namespace {

template <class T, class Which>
bool Contains(const Effects& effects, const Which& which) {
  return std::any_of(effects.actions.begin(), effects.actions.end(), [&](const Action& action) {
    const T* wanted = std::get_if<T>(&action);
    return wanted != nullptr && which(*wanted);
  });
}

// The group that gets its shim, and has its slots.
const Group* HeirOf(const std::map<GroupKey, Group>& groups, const GroupKey& key) {
  for (const auto& [other, group] : groups)
    if (other.job == key.job && group.in_place.from == key.generation &&
        group.phase != Phase::kFree)
      return &group;
  return nullptr;
}

bool IsLive(const Group& group, int local_rank) {
  return group.ranks.starts.contains(local_rank) && !group.ranks.exits.contains(local_rank);
}

}  // namespace

void Promises::Expect(bool condition, const GroupKey& key, const std::string& what) {
  if (!condition) broken.push_back(NameOf(key) + ": " + what);
}

void Promises::Check(Instant now, const Event& event, const Effects& effects, const Core& core) {
  const Groups& groups = core.groups();
  if (!began_) began_ = now;
  Hear(now, event);
  CheckAnswers(event, effects, core);
  for (const Action& action : effects.actions) Order(now, action, groups);
  for (const auto& [key, group] : groups) CheckGroup(now, key, group, groups);
  CheckLeaving(now, event, effects);
  std::erase_if(known_, [&](const auto& entry) { return !groups.contains(entry.first); });
  attached_ = core.attached();
  before_.clear();
  for (const auto& [key, group] : groups)
    before_[key] = {group.phase,
                    group.shim.stage,
                    group.started,
                    group.supervisor_lost,
                    group.in_place.retiring.has_value(),
                    group.stop_deadline};
}

// ---- what it is told

void Promises::Adopt(const RunRecord& record) {
  Known& known = known_[record.key];
  known.adopted = true;
  known.empty = record.empty;
  known.store_closed = record.store.closed;
  if (record.stop_deadline) {
    known.told = Instant{};
    known.stop_told = true;
  }
  // Who had ended before that life did was, or was not, told by it.
  for (const RankEnded& exit : record.exits) known.ended_before.insert(exit.local_rank);
  for (int local_rank : record.signalled) known.rank_told[local_rank] = Instant{};
}

void Promises::HearRecord(Instant now, const RunRecord& record) {
  Known& known = known_[record.key];
  for (const RankEnded& exit : record.exits) ended_.insert(exit.pid);
  if (record.store.address && !record.store.alive) known.store_lost |= !known.store_closed;
  known.empty |= record.empty;
  if (record.empty && record.awaits_words && !known.empty_since) known.empty_since = now;
}

void Promises::Hear(Instant now, const Event& event) {
  if (const auto* scanned = std::get_if<Scanned>(&event)) {
    for (const RunRecord& record : scanned->records) {
      Adopt(record);
      HearRecord(now, record);
    }
  } else if (const auto* seen = std::get_if<GroupSeen>(&event)) {
    HearRecord(now, seen->record);
  } else if (const auto* killed = std::get_if<LeftoversKilled>(&event)) {
    Known& known = known_[killed->key];
    if (std::exchange(known.round, false)) known.clean = killed->none ? known.clean + 1 : 0;
  } else if (const auto* failed = std::get_if<PrepareFailed>(&event)) {
    // Its shim was asked to go on with it, and does not.
    const auto asked = handing_over_.find(failed->key);
    const auto next = before_.find(failed->key);
    if (asked != handing_over_.end() && next != before_.end() &&
        next->second.stage == ShimStage::kSpawned)
      known_[asked->second].refused = true;
  } else if (const auto* said = std::get_if<WorkerSaid>(&event)) {
    Connection& rank = known_[said->key].ranks[said->local_rank];
    if (const auto* hello = std::get_if<WorkerHello>(&said->what)) {
      rank.open = rank.could = hello->in_place;
      rank.greeted = now;
      rank.heard = true;
    } else if (const auto* progress = std::get_if<WorkerProgress>(&said->what)) {
      known_[said->key].unsent[progress->rank] = *progress;
    }
  } else if (const auto* hung_up = std::get_if<WorkerHungUp>(&event)) {
    known_[hung_up->key].ranks[hung_up->local_rank].open = false;
  } else if (std::holds_alternative<CoordinatorAway>(event)) {
    for (auto& entry : known_) entry.second.in_flight.reset();
  }
}

// ---- what it orders

void Promises::Order(Instant now, const Action& action, const Groups& groups) {
  OrderBeginnings(action, groups);
  OrderRounds(action, groups);
  OrderEnds(now, action, groups);
  OrderCommit(action);
  if (const auto* hello = std::get_if<SendHello>(&action)) {
    for (const GroupReport& report : hello->hello.groups) CheckReport(report, groups);
  } else if (const auto* report = std::get_if<SendReport>(&action)) {
    CheckReport(report->report, groups);
  } else if (const auto* remember = std::get_if<RememberCoordinator>(&action)) {
    epoch_ = remember->epoch;
  } else if (std::holds_alternative<BreakSession>(action)) {
    for (auto& entry : known_) entry.second.in_flight.reset();
  } else if (const auto* close = std::get_if<CloseStore>(&action)) {
    known_[close->key].store_closed = true;
  } else if (const auto* over = std::get_if<EndNursery>(&action)) {
    for (const auto& [key, group] : groups)
      Expect(key.job != over->job || group.shim.stage == ShimStage::kNone, key,
             "what its ranks are forked from ends");
  }
}

void Promises::OrderBeginnings(const Action& action, const Groups& groups) {
  if (const auto* write = std::get_if<WriteRunDirectory>(&action)) {
    for (const auto& [other, was] : before_) {
      if (other.job != write->key.job) continue;
      Expect(other.generation < write->key.generation, write->key, "is prepared after a later one");
      const auto now = groups.find(other);
      Expect(now == groups.end() || now->second.phase != Phase::kStopping ||
                 was.phase != Phase::kStopping,
             write->key, "is prepared beside ranks that still stop");
    }
  } else if (const auto* over = std::get_if<HandOver>(&action)) {
    Expect(!known_[over->from].refused, over->from, "its shim is asked again to go on elsewhere");
    handing_over_.insert_or_assign(over->to, over->from);
  } else if (const auto* start = std::get_if<StartRanks>(&action)) {
    const Group& group = groups.at(start->key);
    for (int local_rank : start->kept) {
      const auto kept = group.ranks.kept.find(local_rank);
      Expect(kept != group.ranks.kept.end() && !ended_.contains(kept->second.pid), start->key,
             "a rank that has ended is said to be kept");
    }
    for (const auto& [other, older] : groups)
      Expect(other.job != start->key.job || other.generation >= start->key.generation ||
                 older.phase != Phase::kRetired || older.shim.stage != ShimStage::kReady,
             other, "its ranks have retired and live beside a newer generation");
  }
}

void Promises::OrderRounds(const Action& action, const Groups& groups) {
  if (const auto* kill = std::get_if<KillGroup>(&action)) {
    Known& known = known_[kill->key];
    Expect(!known.round, kill->key, "two rounds over what its shim left are under way");
    Expect(!known.empty, kill->key, "it was empty, and is killed");
    known.round = true;
  } else if (const auto* mark = std::get_if<MarkKilled>(&action)) {
    Expect(known_[mark->key].clean >= 2, mark->key, "what was killed may have left others");
  } else if (const auto* shim = std::get_if<KillShim>(&action)) {
    const Group* heir = HeirOf(groups, shim->key);  // Which waits for its answer.
    Expect(!known_[shim->key].empty || heir != nullptr, shim->key,
           "its shim had nothing left to say, and is killed");
  }
}

// Who has ended by the same instant has not been told.
void Promises::NoteTold(Instant now, Known& known, const Group& group) {
  if (known.told) return;
  known.told = now;
  for (const auto& [local_rank, exit] : group.ranks.exits) known.ended_before.insert(local_rank);
}

void Promises::OrderEnds(Instant now, const Action& action, const Groups& groups) {
  if (const auto* stop = std::get_if<StopRanks>(&action)) {
    Known& known = known_[stop->key];
    known.stop_told = true;
    NoteTold(now, known, groups.at(stop->key));
    Expect(HeirOf(groups, stop->key) == nullptr ||
               HeirOf(groups, stop->key)->shim.stage < ShimStage::kSpawned,
           stop->key, "it is stopped, and its shim is another group's");
    if (!stop->finished) return;
    const Group& group = groups.at(stop->key);
    int done = 0;
    for (const auto& [local_rank, exit] : group.ranks.exits)
      done += exit.kind == ExitKind::kExited && exit.code == 0;
    Expect(done == group.workers, stop->key, "it has not ended well");
  } else if (const auto* tell = std::get_if<TellRetire>(&action)) {
    Known& known = known_[tell->key];
    NoteTold(now, known, groups.at(tell->key));
    Expect(!known.rank_told.contains(tell->local_rank), tell->key,
           "a rank that was told to end is told to retire");
  } else if (const auto* signal = std::get_if<SignalRank>(&action)) {
    Known& known = known_[signal->key];
    known.rank_told.try_emplace(signal->local_rank, now);
    if (!groups.at(signal->key).in_place.retiring) return;
    // Nothing was heard yet of one that is older than this agent, or than its generation.
    const Group& group = groups.at(signal->key);
    const bool older = known.adopted || group.ranks.kept.contains(signal->local_rank);
    const auto heard = known.ranks.find(signal->local_rank);
    const bool dials =
        heard == known.ranks.end() ? older : heard->second.could || (older && !heard->second.heard);
    Expect(!dials || !known.redial_due || now >= *known.redial_due, signal->key,
           "a rank that may dial again is signalled at once");
  } else if (const auto* kill = std::get_if<KillRank>(&action)) {
    known_[kill->key].killed.insert(kill->local_rank);
  } else if (const auto* shim = std::get_if<KillShim>(&action)) {
    known_[shim->key].shim_killed = now;
    for (const auto& [heir, group] : groups)  // It may be that one's by now.
      if (heir.job == shim->key.job && group.in_place.from == shim->key.generation)
        known_[heir].shim_killed = now;
  }
}

void Promises::OrderCommit(const Action& action) {
  if (const auto* progress = std::get_if<SendProgress>(&action)) {
    known_[{progress->progress.job, progress->progress.generation}].unsent.erase(
        progress->progress.rank);
  } else if (const auto* send = std::get_if<SendCommit>(&action)) {
    const GroupKey key{send->request.job, send->request.generation};
    Known& known = known_[key];
    Expect(!known.in_flight, key, "two commits are asked for at once");
    Expect(known.unsent.empty(), key, "a commit is asked for before the steps that led to it");
    known.in_flight = send->request;
  } else if (const auto* tell = std::get_if<TellCommit>(&action)) {
    Expect(known_[tell->key].unanswered.erase({tell->answer.attempt, tell->answer.step}) > 0,
           tell->key, "a commit is answered that nobody waits for");
  }
}

// ---- what it says

void Promises::CheckReport(const GroupReport& report, const Groups& groups) {
  const GroupKey key{report.job, report.generation};
  const Known& known = known_[key];
  const Group& group = groups.at(key);
  Expect(!report.store_lost || known.store_lost, key, "its store was not lost");
  Expect(!report.store || !known.store_closed || known.adopted, key,
         "somebody may be sent to a store that is closed");
  for (const RankExit& exit : report.exits) {
    if (exit.after_stop || exit.given_up) continue;
    const Instant at = group.ranks.exits.at(exit.local_rank).at;
    const auto own = known.rank_told.find(exit.local_rank);
    const bool before = known.ended_before.contains(exit.local_rank);
    Expect((before || !known.told || at < *known.told) &&
               (own == known.rank_told.end() || at < own->second),
           key, "the end of a rank that was told to end is called its own");
  }
}

void Promises::CheckAnswers(const Event& event, const Effects& effects, const Core& core) {
  const Groups& groups = core.groups();
  if (const auto* welcomed = std::get_if<Welcomed>(&event)) {
    if (!core.attached() || attached_) return;
    Expect(config_.launched || welcomed->welcome.epoch >= epoch_, {},
           "a coordinator is followed that is older than the last one");
    for (const auto& [key, group] : groups) {
      const ReportNo number = group.report.number;
      Expect(group.report.acked || Contains<SendReport>(effects,
                                                        [number](const SendReport& send) {
                                                          return send.report.number == number;
                                                        }),
             key, "what it had reported may be lost, and is not said again");
    }
  } else if (const auto* said = std::get_if<WorkerSaid>(&event)) {
    const auto group = groups.find(said->key);
    if (group == groups.end()) return;
    if (const auto* request = std::get_if<CommitRequest>(&said->what))
      known_[said->key].unanswered.emplace(request->attempt, request->step);
    const auto* hello = std::get_if<WorkerHello>(&said->what);
    const auto& retiring = group->second.in_place.retiring;
    const bool may = retiring && !retiring->signalled.contains(said->local_rank) &&
                     !group->second.in_place.retired.contains(said->local_rank);
    if (hello == nullptr || !hello->in_place || !may || said->local_rank >= group->second.workers)
      return;
    Expect(Contains<TellRetire>(effects,
                                [&](const TellRetire& tell) {
                                  return tell.key == said->key &&
                                         tell.local_rank == said->local_rank;
                                }),
           said->key, "a rank that has dialled again is not told to retire");
  } else if (const auto* answered = std::get_if<CommitAnswered>(&event)) {
    std::optional<CommitRequest>& asked =
        known_[{answered->answer.job, answered->answer.generation}].in_flight;
    if (asked && asked->attempt == answered->answer.attempt && asked->step == answered->answer.step)
      asked.reset();
  } else if (const auto* ordered = std::get_if<Ordered>(&event)) {
    if (ordered->order.prepare) CheckRefusal(ordered->order, groups);
  } else if (const auto* seen = std::get_if<GroupSeen>(&event)) {
    const auto group = groups.find(seen->record.key);
    if (group == groups.end() || !group->second.started || !seen->record.started ||
        group->second.phase == Phase::kFree)
      return;
    for (const RankStarted& start : seen->record.starts) {
      const auto known = group->second.ranks.starts.find(start.local_rank);
      Expect(known != group->second.ranks.starts.end() && known->second.pid == start.pid,
             group->first, "it takes another process for its rank");
    }
  }
}

// One that fits beside all the others is not refused for want of slots.
void Promises::CheckRefusal(const regroup::Order& order, const Groups& groups) {
  const GroupKey key{order.job, order.prepare->generation};
  const auto refused = groups.find(key);
  if (refused == groups.end() || before_.contains(key)) return;
  if (refused->second.refused.find("slots are taken") == std::string::npos) return;
  int taken = order.prepare->spec.workers;
  for (const auto& [other, group] : groups) {
    const bool goes_on = other.job == key.job && group.phase == Phase::kRetired &&
                         group.workers == order.prepare->spec.workers;
    if (other != key && group.phase != Phase::kFree && !goes_on && HeirOf(groups, other) == nullptr)
      taken += group.workers;
  }
  Expect(taken > config_.slots, key, "it is refused, and has room");
}

// A slot is of one group at a time, or of those that its ranks go through.
void Promises::CheckSlots(const GroupKey& key, const Group& group, const Groups& groups) {
  if (group.phase == Phase::kFree) return;
  const std::set<int> slots(group.slots.begin(), group.slots.end());
  Expect(std::ssize(slots) == group.workers, key, "it has not as many slots as workers");
  for (const auto& [other, another] : groups) {
    if (other.job == key.job || another.phase == Phase::kFree) continue;
    for (const int slot : another.slots)
      Expect(!slots.contains(slot), key,
             "another group has slot " + std::to_string(slot) + " as well");
  }
}

// ---- what it is in the middle of

void Promises::CheckGroup(Instant now, const GroupKey& key, const Group& group,
                          const Groups& groups) {
  Known& known = known_[key];
  Expect(group.started || group.signalled_at || group.ranks.exits.empty(), key,
         "ranks have ended that were never started");
  const auto was = before_.find(key);
  if (group.supervisor_lost && was != before_.end() && !was->second.supervisor_lost)
    Expect(was->second.started || group.started || !was->second.stop_deadline, key,
           "the shim of what was withdrawn is called lost");
  if (known.empty_since) {
    const Duration wait = config_.launched ? config_.waits.output : config_.waits.words;
    Expect(now < *known.empty_since + wait || group.phase == Phase::kFree, key,
           "it is empty, and its last words are awaited for ever");
  }
  CheckSlots(key, group, groups);
  CheckStopped(now, key, group, groups);
  CheckRetiring(now, key, group);
  CheckKept(now, key, group);
}

void Promises::CheckStopped(Instant now, const GroupKey& key, const Group& group,
                            const Groups& groups) {
  Known& known = known_[key];
  if (known.deadline != group.stop_deadline) {
    known.deadline = group.stop_deadline;
    known.deadline_since = now;
  }
  if (!group.stop_deadline || group.phase != Phase::kStopping || known.empty) return;
  const Group* heir = HeirOf(groups, key);
  const bool asked = heir != nullptr && heir->shim.stage == ShimStage::kSpawned;
  Expect(group.shim.stage != ShimStage::kReady || asked || known.stop_told, key,
         "its shim is not told to stop");
  const auto was = before_.find(key);
  const bool awaited = group.shim.stage == ShimStage::kReady ||
                       (group.shim.stage == ShimStage::kSpawned && !group.in_place.from);
  if (!awaited || was == before_.end() || was->second.phase != Phase::kStopping) return;
  const Instant due =
      std::max(*known.deadline_since, *group.stop_deadline) + config_.waits.shim_silence;
  Expect(now < due || known.shim_killed >= due, key, "its shim is silent, and is not killed");
}

void Promises::CheckRetiring(Instant now, const GroupKey& key, const Group& group) {
  Known& known = known_[key];
  const std::optional<Retiring>& retiring = group.in_place.retiring;
  if (!retiring) {
    known.redial_due.reset();
    return;
  }
  for (int local_rank : group.in_place.retired)
    Expect(!known.rank_told.contains(local_rank), key, "a rank that was told to end has retired");
  if (retiring->killed) return;
  if (!known.redial_due) {
    known.retiring_since = now;
    known.redial_due =
        now + std::min(config_.waits.redial, std::max(Duration::zero(), retiring->until - now) / 2);
    known.away.clear();
    for (const auto& [local_rank, start] : group.ranks.starts)
      if (!known.ranks[local_rank].open) known.away.insert(local_rank);
  }
  if (now < *known.redial_due) return;
  for (int local_rank : known.away) {
    if (!IsLive(group, local_rank) || group.in_place.retired.contains(local_rank)) continue;
    Expect(known.ranks[local_rank].greeted >= known.retiring_since ||
               known.rank_told.contains(local_rank),
           key, "a rank does not dial again, and is not signalled");
  }
}

// Each that lives on takes its generation in time, or is killed.
void Promises::CheckKept(Instant now, const GroupKey& key, const Group& group) {
  Known& known = known_[key];
  if (group.started && !known.begun) known.begun = now;
  if (group.phase != Phase::kStarting && group.phase != Phase::kRunning) return;
  if (now < *known.begun + config_.waits.adopt) return;
  for (const auto& [local_rank, start] : group.ranks.kept) {
    if (!IsLive(group, local_rank) || known.ranks[local_rank].greeted >= *known.begun) continue;
    Expect(known.killed.contains(local_rank), key, "a kept rank is waited for without an end");
  }
}

void Promises::CheckLeaving(Instant now, const Event& event, const Effects& effects) {
  const bool again =
      Contains<ShowLeaving>(effects, [](const ShowLeaving& show) { return show.again; });
  if (const auto* caught = std::get_if<SignalCaught>(&event); caught != nullptr && !left_) {
    const bool leaves =
        config_.launched || (config_.sigterm_is_notice && caught->signal == SIGTERM);
    const bool second = signalled_ && now >= *signalled_ + config_.waits.same_signal;
    // A command that leaves as nobody joined in time has no grace that a signal could shorten.
    const bool late = config_.join_timeout && now >= *began_ + *config_.join_timeout;
    if (leaves && !signalled_again_)
      Expect(again == second || (second && late), {},
             again ? "one signal counts twice" : "a second signal is not heard");
    if (leaves && !signalled_) signalled_ = now;
    if (again) signalled_again_ = now;
  }
  if (std::holds_alternative<JobOver>(event) && !result_) result_ = now;
  left_ |= Contains<Leave>(effects, [](const Leave&) { return true; });
  if (left_ || !signalled_) return;
  const Instant end = result_ ? *result_ : signalled_again_.value_or(*signalled_ + config_.grace);
  Expect(now < end + config_.waits.slack + config_.waits.kill, {}, "it does not leave");
}

}  // namespace regroup::agent::testing
