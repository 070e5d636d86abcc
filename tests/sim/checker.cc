#include "tests/sim/checker.h"

#include <algorithm>
#include <utility>

#include "launcher/coordinator/core/failure_policy.h"
#include "launcher/coordinator/core/node.h"

namespace regroup::sim {
using namespace coordinator;  // NOLINT: rows are all this file is about.

namespace {

constexpr Duration kCommitMargin = std::chrono::seconds(1);    // Between a decision and its commit.
constexpr Duration kInFlight = std::chrono::milliseconds(50);  // Network and start of a rank.

template <class T>
const T* RowBefore(const std::map<Key, Value>& rows, const Key& key) {
  auto found = rows.find(key);
  return found == rows.end() ? nullptr : std::get_if<T>(&found->second);
}

bool MayFollow(JobPhase from, JobPhase to) {
  if (from == to) return true;
  switch (from) {
    case JobPhase::kQueued:
    case JobPhase::kGathering:
      return to == JobPhase::kForming || to == JobPhase::kRegrouping ||
             to == JobPhase::kPreempted || to == JobPhase::kEnding || to == JobPhase::kEnded;
    case JobPhase::kForming:
    case JobPhase::kRunning:
    case JobPhase::kRegrouping: return true;
    case JobPhase::kPreempted:
      return to == JobPhase::kGathering || to == JobPhase::kForming ||  // In one step.
             to == JobPhase::kRegrouping || to == JobPhase::kEnding || to == JobPhase::kEnded;
    case JobPhase::kEnding: return to == JobPhase::kEnded;
    case JobPhase::kEnded: return false;
  }
  return false;
}

bool SameRows(const std::vector<Row>& a, const std::vector<Row>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].key != b[i].key || a[i].value->index() != b[i].value->index()) return false;
    if (EstimateBytes(a[i]) != EstimateBytes(b[i])) return false;
    const auto *x = std::get_if<NodeRow>(&*a[i].value), *y = std::get_if<NodeRow>(&*b[i].value);
    if (x && y && !(*x == *y)) return false;
    const auto *s = std::get_if<JobStateRow>(&*a[i].value),
               *t = std::get_if<JobStateRow>(&*b[i].value);
    if (s && t &&
        (s->phase != t->phase || s->last_number != t->last_number ||
         s->ends.charged != t->ends.charged))
      return false;
  }
  return true;
}

}  // namespace

void Checker::Expect(bool condition, const std::string& what) {
  if (!condition && violations.size() < 20) violations.push_back(what);
}

void Checker::OnCoordinatorStart(Instant now, Epoch epoch) {
  epoch_ = epoch;
  seen_ = false;
  lost_.clear();
  started_ = now;
  sessions_.clear();
  open_sessions_.clear();
  opened_.clear();
  lost_at_.clear();
  agents_restarted_.clear();
  deadlines_.clear();  // A recovered wait starts again in full.
  asked_.clear();
  stop_due_.clear();
  stop_reasons_.clear();
  silent_since_.clear();
  own_proposals_.clear();
  preparing_.clear();
  told_to_run_.clear();
  told_to_end_.clear();
  notices_.clear();
  welcomed_.clear();
  incarnations_.clear();
  newest_welcomed_.clear();
  overtaken_.clear();
  brake_until_ = {};
  judging_ = ended_;
  // What was decided and not durable has not been.
  decided_formed_.clear();
  for (const auto& formed : members_) decided_formed_.insert(formed.first);
}

void Checker::OnJournalReplaced() {
  seen_epoch_ = Epoch();
  views_.clear();
}

// 1. No two coordinators write, or are seen, under one epoch. One that dies before its epoch is
// durable was never there.
void Checker::OnCoordinatorSeen() {
  if (std::exchange(seen_, true)) return;
  Expect(epoch_ > seen_epoch_, Text("1: epoch ", epoch_, " after ", seen_epoch_));
  seen_epoch_ = std::max(seen_epoch_, epoch_);
}

// 31. Recovery is the fold of the durable rows.
void Checker::OnRecovery(const std::vector<Row>& durable, const std::vector<Row>& recovered) {
  Expect(SameRows(durable, recovered), "31: recovered state is not the fold of the durable rows");
  launches_.clear();
  for (const Row& row : durable) {
    const auto* node = std::get_if<NodeRow>(&*row.value);
    if (node == nullptr) continue;
    if (node->launch) launches_[node->node] = *node->launch;
    if (node->lost) lost_when_.try_emplace(node->node);
  }
}

void Checker::OnEvent(const Event& event, Instant now) {
  const auto* probed = std::get_if<Probed>(&event);
  if (probed && probed->result == ProbeResult::kAccepted) accepted_[probed->node] = now;
  ++events_;
  const auto acks = [&](const NodeId& node, const GroupReport& report) {
    Show(node, report);
    preparing_[node].erase(report.job);
    if (report.phase != Phase::kPreparing && report.refused.empty())
      acked_[{report.job, report.generation}].insert(node);
    const bool runs = report.phase == Phase::kRunning;
    if (runs) running_[{report.job, report.generation}].insert(node);
  };
  if (const auto* opened = std::get_if<SessionOpened>(&event)) {
    const Hello& hello = opened->hello;
    incarnations_[opened->session] = hello.incarnation;
    if (hello.incarnation < newest_welcomed_[hello.node]) {
      overtaken_.insert(opened->session);
      return;
    }
    sessions_[opened->session] = hello.node;
    opened_[hello.node] = events_;
    silent_since_.erase(hello.node);
    preparing_.erase(hello.node);
    auto [agent, first] = agents_.try_emplace(hello.node, hello.incarnation);
    if (std::exchange(agent->second, hello.incarnation) != hello.incarnation)
      agents_restarted_.insert(hello.node);
    shown_[hello.node].clear();
    for (const GroupReport& report : hello.groups) acks(hello.node, report);
    if (!hello.notices.empty()) leaving_.insert(hello.node);
  } else if (const auto* reported = std::get_if<Reported>(&event)) {
    if (broken_.contains(reported->session)) return;  // Too late; the core must not see it either.
    acks(sessions_[reported->session], reported->report);
  } else if (const auto* beat = std::get_if<HeartbeatReceived>(&event)) {
    std::erase_if(preparing_[sessions_[beat->session]],
                  [&](const auto& asked) { return asked.second.first <= beat->obeyed; });
  } else if (const auto* noticed = std::get_if<Noticed>(&event)) {
    leaving_.insert(sessions_[noticed->session]);
  } else if (const auto* leave = std::get_if<LeaveAsked>(&event)) {
    leaving_.insert(sessions_[leave->session]);
  } else if (const auto* broken = std::get_if<SessionBroken>(&event)) {
    broken_.insert(broken->session);
    std::erase_if(open_sessions_, [&](const auto& s) { return s.second == broken->session; });
  } else if (const auto* commit = std::get_if<CommitAsked>(&event)) {
    asked_[commit->session].push_back(commit->request);
  }
}

void Checker::OnDecided(const std::map<Key, Value>& durable, const Effects& effects, Instant now) {
  for (const Action& action : effects.actions) {
    const auto* welcome = std::get_if<SendWelcome>(&action);
    if (welcome == nullptr) continue;
    Expect(!overtaken_.contains(welcome->session), "10: an agent is welcome that has died since");
    const NodeId& node = sessions_[welcome->session];
    newest_welcomed_[node] = std::max(newest_welcomed_[node], incarnations_[welcome->session]);
    open_sessions_[node] = welcome->session;
    welcomed_[welcome->session] = now;
    OnHeard(node, now);
  }
  for (const Row& row : effects.rows) NoteDecided(durable, row, now);
  for (const Row& row : effects.rows) {
    const auto* state = row.value ? std::get_if<JobStateRow>(&*row.value) : nullptr;
    const auto* before = state ? RowBefore<JobStateRow>(durable, row.key) : nullptr;
    if (before != nullptr && state->phase == JobPhase::kPreempted &&
        before->phase != JobPhase::kPreempted)
      CheckPreempted(state->job, now);
  }
  for (const Row& row : effects.rows) {
    const auto* generation = row.value ? std::get_if<GenerationRow>(&*row.value) : nullptr;
    if (generation == nullptr) continue;
    CheckDecided(*generation, RowBefore<GenerationRow>(durable, row.key) != nullptr, now);
  }
  for (const Action& action : effects.actions) {
    const auto* send = std::get_if<SendOrder>(&action);
    if (send == nullptr) continue;
    CheckSent(*send, now);
    if (!send->order.stop) continue;
    CheckEarly(*send);
    CheckStop(*send, now);
  }
  for (const Row& row : effects.rows) {
    const auto* generation = row.value ? std::get_if<GenerationRow>(&*row.value) : nullptr;
    const auto* before = generation ? RowBefore<GenerationRow>(durable, row.key) : nullptr;
    if (before != nullptr && generation->phase == GenerationPhase::kFormed &&
        before->phase != GenerationPhase::kFormed)
      CheckLeftOut(*generation);
  }
  CheckSilence(effects, now);
}

void Checker::NoteDecided(const std::map<Key, Value>& durable, const Row& row, Instant now) {
  if (!row.value) {
    if (row.key.ends_with('/')) CheckPurged(row.key);
    const auto* gone = RowBefore<NodeRow>(durable, row.key);
    if (gone == nullptr) return;
    OnLost(gone->node, now);
    open_sessions_.erase(gone->node);
    launches_.erase(gone->node);
  } else if (const auto* node = std::get_if<NodeRow>(&*row.value)) {
    const auto* before = RowBefore<NodeRow>(durable, row.key);
    auto [lost, fresh] = lost_.try_emplace(node->node, before != nullptr && before->lost);
    launches_.erase(node->node);
    if (node->launch) launches_[node->node] = *node->launch;
    if (!node->lost) lost_when_.erase(node->node);
    if (!lost->second && node->lost) {
      lost_when_[node->node] = lost_last_[node->node] = now;
      CheckProof(*node);
      CheckLost(*node, now);
      OnLost(node->node, now);
    }
    lost->second = node->lost;
    if (node->lost) open_sessions_.erase(node->node);
    lost_how_[node->node] = node->lost_how;
  } else if (const auto* state = std::get_if<JobStateRow>(&*row.value)) {
    if (state->verdict) judged_.insert(state->job);
    if (state->phase == JobPhase::kQueued) queued_.insert(state->job);
    if (state->phase != JobPhase::kEnded && state->phase != JobPhase::kPreempted)
      over_when_.erase(state->job);
    else
      over_when_.emplace(state->job, now);
    for (const ExcludedNode& node : state->excluded) excluded_[state->job].insert(node.node);
  } else if (const auto* ended = std::get_if<GenerationRow>(&*row.value)) {
    if (ended->ended) judging_[ended->job][ended->generation] = *ended;
  }
}

// 67, and what else holds for a proposal and for an end.
void Checker::CheckDecided(const GenerationRow& row, bool known, Instant now) {
  const GenerationId id{row.job, row.generation};
  const std::string name = Text("67: ", row.job, " generation ", row.generation);
  if (row.phase == GenerationPhase::kFormed)
    Expect(!decided_formed_.insert(id).second || own_proposals_.contains(id),
           name + " was proposed by a coordinator before");
  if (row.voided && known)
    Expect(own_proposals_.contains(id) || now <= started_ + kInFlight || stalled_until_ >= started_,
           name + " of a coordinator before is voided late");
  if (row.phase == GenerationPhase::kOver && decided_over_.insert(id).second) CheckHold(row, now);
  if (known || row.phase != GenerationPhase::kProposed) return;
  CheckProposed(row);
  CheckSurvivors(row);
  own_proposals_.insert(id);
  CheckRoom(row);
  CheckBudget(row);
  CheckAllStopped(row, now);
  CheckAble(row);
}

// 9. Whoever was lost comes back by a Hello.
void Checker::CheckProposed(const GenerationRow& row) {
  for (const GenerationMember& member : row.members) {
    auto opened = opened_.find(member.node);
    auto lost = lost_at_.find(member.node);
    const bool here =
        opened != opened_.end() && (lost == lost_at_.end() || opened->second >= lost->second);
    Expect(here, Text("9: ", member.node, " of ", row.job, " generation ", row.generation,
                      " was not heard of since it was lost"));
  }
}

// 19. Of a generation's members, until a crash, after which what waits begins again. What else a
// node has left has no deadline here: its grace counts from each order, and agents keep the
// earliest.
void Checker::CheckStop(const SendOrder& send, Instant now) {
  const Stop& stop = *send.order.stop;
  const NodeId& node = sessions_[send.session];
  const GenerationId formed{send.order.job, formed_[send.order.job]};
  if (formed.second <= stop.up_to && IsMember(formed, node)) noticed_.try_emplace(formed, now);
  if (stop.reason == StopReason::kSuperseded) return;
  if (!IsMember({send.order.job, stop.up_to}, node)) return;
  const Instant deadline = now + stop.grace;
  if (stop.grace > Duration{}) stop_due_.try_emplace({send.order.job, stop.up_to}, deadline);
  stop_reasons_.try_emplace({send.order.job, stop.up_to}, stop.reason, now);
  auto [told, first] = deadlines_.try_emplace({node, send.order.job, stop.up_to}, deadline);
  Expect(deadline <= std::max(told->second, now),  // One that has passed is told as none left.
         Text("19: ", node, " may stop ", send.order.job, " up to ", stop.up_to, " ",
              Seconds(deadline - told->second), " s later"));
  told->second = std::min(told->second, deadline);
}

bool Checker::IsMember(const GenerationId& id, const NodeId& node) const {
  auto members = members_.find(id);
  return members != members_.end() && members->second.contains(node);
}

// Whatever it is a member of may end for that.
void Checker::OnLost(const NodeId& node, Instant now) {
  lost_at_[node] = events_;
  for (const auto& formed : members_)
    if (formed.second.contains(node)) disturbed_.try_emplace(formed.first, now);
  // Also one that has formed a moment ago, which is not durable yet.
  for (const GenerationId& formed : decided_formed_)
    if (std::find(placed_[formed].begin(), placed_[formed].end(), node) != placed_[formed].end())
      disturbed_.try_emplace(formed, now);
}

// 43, and 44: preemptions are counted, each once, and one beyond the limit ends the job. Once the
// whole batch is there: its rows have an order of their own.
void Checker::CheckEnded(const std::vector<Row>& batch) {
  for (const Row& row : batch) {
    const auto* state = row.value ? std::get_if<JobStateRow>(&*row.value) : nullptr;
    if (state == nullptr) continue;
    const auto preempted = static_cast<int>(
        std::count_if(ended_[state->job].begin(), ended_[state->job].end(), [](const auto& past) {
          return !past.second.verdict_open && std::holds_alternative<Preempted>(*past.second.ended);
        }));
    const int limit = specs_[state->job].max_preemptions.value_or(preempted);
    Expect(state->ends.preemptions == preempted,
           Text("44: ", state->job, " counts ", state->ends.preemptions, " of ", preempted,
                " preemptions"));
    Expect(preempted <= limit || state->verdict,
           Text("44: ", state->job, " goes on after ", preempted, " preemptions"));
    CheckCharges(*state);
    if (state->phase != JobPhase::kEnded) continue;
    Expect(open_[state->job].empty(), Text("43: ", state->job, " ended with an open verdict"));
  }
}

void Checker::OnCommit(const std::map<Key, Value>& before, const std::vector<Row>& batch,
                       Instant now) {
  if (!batch.empty()) OnCoordinatorSeen();
  Expect(batch.size() <= kMaxRowsPerStep, Text("a step wrote ", batch.size(), " rows"));
  for (const Row& row : batch) {  // First, whatever the order of the rows: they are one moment.
    const auto* past = row.value ? std::get_if<GenerationRow>(&*row.value) : nullptr;
    if (past != nullptr && past->ended) ended_[past->job][past->generation] = *past;
  }
  for (const Row& row : batch) {
    if (!row.value) {
      if (row.key.ends_with('/')) OnPurged(row.key);
      continue;
    }
    if (const auto* spec = std::get_if<JobSpecRow>(&*row.value)) {
      Expect(!specs_.contains(spec->job), Text("26: ", spec->job, " was admitted twice"));
      specs_[spec->job] = spec->spec;
      if (spec->standalone) standalone_.insert(spec->job);
    } else if (const auto* state = std::get_if<JobStateRow>(&*row.value)) {
      if (!state->cancel.key.empty()) cancels_.insert(state->cancel.key);
      CheckState(RowBefore<JobStateRow>(before, row.key), *state, now);
    } else if (const auto* generation = std::get_if<GenerationRow>(&*row.value)) {
      const auto* known = RowBefore<GenerationRow>(before, row.key);
      CheckGeneration(known, *generation);
      const bool was_open =
          known != nullptr && (known->phase != GenerationPhase::kOver || known->verdict_open);
      if (was_open && generation->ended && !generation->verdict_open) {
        CheckReason(*generation, now);
        OnClosed(*generation);
      }
      if (known == nullptr && !generation->elective)  // 36. Decided a little before it is durable.
        Expect(now >= not_before_[generation->job],
               Text("36: ", generation->job, " restarts ",
                    Seconds(not_before_[generation->job] - now), " s too early"));
      const bool ends = known != nullptr && known->phase == GenerationPhase::kFormed &&
                        generation->phase == GenerationPhase::kOver;
      const auto* state = RowBefore<JobStateRow>(before, JobStateKey(generation->job));
      if (ends && state != nullptr) BackOff(*state, *generation);
    } else if (const auto* commit = std::get_if<CommitRow>(&*row.value)) {
      CheckCommitRow(RowBefore<CommitRow>(before, row.key), *commit);
    } else if (const auto* node = std::get_if<NodeRow>(&*row.value)) {
      CheckNode(RowBefore<NodeRow>(before, row.key), *node);
    } else if (const auto* event = std::get_if<JobEventRow>(&*row.value)) {
      std::uint64_t& last = last_event_[event->job];  // 30. Gap-free.
      Expect(event->event.number == last + 1,
             Text("30: event ", event->event.number, " of ", event->job, " after ", last));
      last = event->event.number;
      ++coverage.job_events[event->event.body.index()];
      if (const auto* running = std::get_if<GenerationRunning>(&event->event.body)) {
        CheckKept(event->job, *running);
        CheckAnew(event->job, *running);
      }
      const auto* ended = std::get_if<JobEnded>(&event->event.body);
      if (ended && ended->state != "preempted")
        Expect(++ends_[event->job] == 1, Text("27: ", event->job, " ended twice"));
    }
  }
  CheckEnded(batch);
  CheckCounts(before, batch);
}

// 27. Along the graph, verdicts final. 35. Counted restarts within the budget, and its window,
// which a restart of the coordinator may only widen. 43. A job ends with no verdict of a generation
// open.
void Checker::CheckState(const JobStateRow* before, const JobStateRow& after, Instant now) {
  const JobSpec& spec = specs_[after.job];
  if (after.verdict) verdicts_.insert(after.job);
  std::vector<Instant>& charges = charged_at_[after.job];
  while (static_cast<int>(charges.size()) < after.ends.charged) charges.push_back(now);
  const auto counted = std::count_if(charges.begin(), charges.end(), [&](Instant at) {
    return !spec.restart_window || now - at < *spec.restart_window - kCommitMargin;
  });
  Expect(counted <= spec.max_restarts,
         Text("35: ", after.job, " charged ", counted, " of ", spec.max_restarts));
  if (before == nullptr) return;
  coverage.OnState(*before, after);
  Expect(MayFollow(before->phase, after.phase),
         Text("27: ", after.job, " from phase ", static_cast<int>(before->phase), " to ",
              static_cast<int>(after.phase)));
  Expect(after.last_number >= before->last_number, Text("3: numbers of ", after.job, " fell"));
  Expect(after.ends.charged >= before->ends.charged, Text("35: charges of ", after.job, " fell"));
  Expect(after.reached.step >= before->reached.step &&
             after.reached.samples >= before->reached.samples &&
             after.reached.tokens >= before->reached.tokens,
         Text("57: ", after.job, " came less far than before"));
  if (before->verdict) {
    const bool same = after.verdict && after.verdict->state == before->verdict->state &&
                      after.verdict->exit_code == before->verdict->exit_code;
    Expect(same, Text("27: the verdict of ", after.job, " changed"));
  }
}

// 3. Numbers rise and are never used twice. 4. One formed generation. 5. Its members stay.
void Checker::CheckGeneration(const GenerationRow* before, const GenerationRow& after) {
  const std::string name = Text(after.job, " generation ", after.generation);
  if (before == nullptr) {
    Expect(after.phase == GenerationPhase::kProposed, "3: " + name + " was not proposed first");
    Expect(after.generation > proposed_[after.job], "3: " + name + " was used before");
    proposed_[after.job] = after.generation;
    if (after.elective) elective_[after.job] = after.generation;
  } else {
    bool same = before->members.size() == after.members.size();
    for (std::size_t i = 0; same && i < after.members.size(); ++i)
      same = before->members[i].node == after.members[i].node;
    Expect(same, "5: members of " + name + " changed");
    Expect(before->phase <= after.phase, "3: " + name + " went back");
  }
  coverage.OnGeneration(before, after);
  if (after.phase == GenerationPhase::kOver) over_.emplace(after.job, after.generation);
  if (after.verdict_open) open_[after.job].insert(after.generation);
  if (!after.verdict_open) open_[after.job].erase(after.generation);
  if (after.phase == GenerationPhase::kOver && formed_[after.job] == after.generation)
    formed_[after.job] = Generation();
  if (after.phase != GenerationPhase::kFormed ||
      (before && before->phase == GenerationPhase::kFormed))
    return;
  Expect(formed_[after.job] == Generation(),
         Text("4: ", name, " formed beside ", formed_[after.job]));
  formed_[after.job] = after.generation;
  ++formed;
  ++formed_of_[after.job];
  worlds_[{after.job, after.generation}] = WorldOf(after);
  queued_.erase(after.job);
  CheckFormed(after);
}

// 6. World within bounds. 7. Every member acked and is not lost. 21. It resumes from the last
// commit.
void Checker::CheckFormed(const GenerationRow& after) {
  const std::string name = Text(after.job, " generation ", after.generation);
  const JobSpec& spec = specs_[after.job];
  const int nodes = static_cast<int>(after.members.size());
  Expect(nodes >= spec.min_nodes && nodes <= spec.max_nodes && nodes % spec.unit == 0,
         Text("6: ", name, " has ", nodes));
  std::set<NodeId>& members = members_[{after.job, after.generation}];
  for (const GenerationMember& member : after.members) {
    members.insert(member.node);
    Expect(acked_[{after.job, after.generation}].contains(member.node),
           Text("7: ", member.node, " never prepared ", name));
  }
  Expect(members.size() == after.members.size(), "6: a node is twice in " + name);
  Expect(after.store.has_value(), "5: " + name + " has no store");
  Expect(after.resume_step == committed_[after.job],
         Text("21: ", name, " resumes from step ", after.resume_step, ", committed was ",
              committed_[after.job]));
}

// 36. The first own fault and the first after progress are followed at once; each further one waits
// 1 s, 2 s, ... less a fifth, from when it was noticed: by the first stop at the latest, and after
// it happened. A free end waits when its node caused the free one before, too, or from the third
// on.
void Checker::BackOff(const JobStateRow& state, const GenerationRow& ended) {
  const EndKind kind = KindOf(*ended.ended);
  // Free ends in a row that one node caused; own faults between them do not count, and progress
  // begins a new row.
  int same = 0;
  const std::map<Generation, GenerationRow>& past = ended_[ended.job];
  for (auto end = past.rbegin(); kind == EndKind::kFree && end != past.rend(); ++end) {
    const bool free_end = KindOf(*end->second.ended) == EndKind::kFree;
    if (free_end && NodeOfReason(*end->second.ended) != NodeOfReason(*ended.ended)) break;
    same += free_end;
    if (end->second.progressed) break;
  }
  const int own = (ended.progressed ? 0 : state.ends.own) + 1;
  const int free = (ended.progressed ? 0 : state.ends.free) + 1;
  auto happened = disturbed_.find({ended.job, ended.generation});
  auto noticed = noticed_.find({ended.job, ended.generation});
  Instant since = Instant::max();
  if (happened != disturbed_.end()) since = happened->second;
  if (noticed != noticed_.end()) since = std::min(since, noticed->second);
  not_before_[ended.job] = Instant{};
  const int further = kind == EndKind::kOwn ? own - 2 : std::max(free - 3, same - 2);
  if (further < 0 || kind == EndKind::kNeutral || since == Instant::max()) return;
  const Duration delay =
      std::min<Duration>(first_backoff * (1 << std::min(further, 6)), backoff_limit);
  not_before_[ended.job] = since + delay * 4 / 5;
}

// 10. An older agent of a node changes nothing.
void Checker::CheckNode(const NodeRow* before, const NodeRow& after) {
  if (after.lost && (before == nullptr || !before->lost)) coverage.OnLost(after.lost_how);
  dead_.erase(after.node);
  if (after.lost && after.lost_how == kHowRefused) dead_.insert(after.node);
  if (before != nullptr)
    Expect(after.incarnation >= before->incarnation,
           Text("10: incarnation ", after.incarnation, " of ", after.name, " after ",
                before->incarnation));
}

// 20, 21. Commits of the current generation only, steps rising within it.
void Checker::CheckCommitRow(const CommitRow* before, const CommitRow& after) {
  manifests_[{{after.job, after.generation}, after.step}] = after.manifest_hash;
  committed_[after.job] = after.step;
  if (before && before->generation == after.generation)
    Expect(after.step > before->step,
           Text("21: commit of step ", after.step, " after ", before->step));
  if (before) Expect(after.generation >= before->generation, "20: a commit of an older generation");
}

// 32. Nobody is lost by silence before a lease has passed, nor soon after recovery.
void Checker::CheckLost(const NodeRow& after, Instant now) {
  if (after.lost_how != "silent") return;
  const Instant heard = std::max(heard_[after.node], started_);
  Expect(now - heard >= lease,
         Text("32: ", after.name, " lost after ", Seconds(now - heard), " s"));
  silent_since_[after.node] = std::max(heard, accepted_[after.node]);
  CheckBrake(after, now - heard, now);
}

// 37. Nobody is lost by silence while many fell silent within one lease. Counted are open sessions
// of which nothing was heard for more than two beats, and for no longer than a lease.
void Checker::CheckBrake(const NodeRow& lost, Duration silent_for, Instant now) {
  // It was kept for another reason, or its session was closed before.
  if (silent_for > lease + kCommitMargin || !open_sessions_.contains(lost.node)) return;
  int silent = 0, sessions = 0;
  for (const auto& [node, session] : open_sessions_) {
    ++sessions;
    const Duration age = now - std::max(heard_[node], accepted_[node]);
    if (age > 2 * heartbeat && (age <= lease || node == lost.node)) ++silent;
  }
  Expect(silent < 3 || silent < 0.2 * sessions || stalled_ > Duration{},
         Text("37: ", lost.name, " lost while ", silent, " of ", sessions, " are silent"));
}

// 42. A generation of which no member is heard is not ended for that before the hold, unless one is
// proved dead. One that was heard has been told to stop.
void Checker::CheckHold(const GenerationRow& over, Instant now) {
  const GenerationId id{over.job, over.generation};
  const auto* lost = over.ended ? std::get_if<NodeLost>(&*over.ended) : nullptr;
  if (lost == nullptr || lost->how != "silent" || !members_.contains(id) || noticed_.contains(id))
    return;
  Instant heard{};
  for (const NodeId& node : members_.at(id)) {
    auto how = lost_how_.find(node);
    if (!lost_[node] || how == lost_how_.end() || how->second != "silent" ||
        leaving_.contains(node))
      return;
    heard = std::max({heard, heard_[node], started_});
  }
  Expect(now - heard >= unreachable_hold,
         Text("42: ", over.job, " generation ", over.generation, " ended for a silence of ",
              Seconds(now - heard), " s"));
}

void Checker::OnOrder(const Node& node, const Order& order, Instant now) {
  if (order.notice) saved_.try_emplace({order.job, order.notice->generation}, epoch_);
  if (!order.run) return;
  auto cancelled = cancelled_.find(order.job);
  Expect(cancelled == cancelled_.end() || now <= cancelled->second,
         Text("28: ", order.job, " is ordered to run after a cancel"));
  const Run& run = *order.run;
  // 5. Every member of a generation is told the same world.
  const std::string world = Text(run.world_size, "/", run.group_size, "/", run.store.host, ":",
                                 run.store.port, "/", run.restart_count, "/", run.resume_step);
  auto [told, fresh] = told_.try_emplace({order.job, run.generation}, world);
  Expect(fresh || told->second == world, Text("5: ", order.job, " generation ", run.generation,
                                              ": ", told->second, " and ", world));
  for (const RankAssignment& mine : run.mine) {
    auto [owner, first] = ranks_[{order.job, run.generation}].try_emplace(mine.rank, node.id());
    Expect(first || owner->second == node.id(),
           Text("6: rank ", mine.rank, " of ", order.job, " given to two nodes"));
    Expect(mine.rank >= 0 && mine.rank < run.world_size,
           Text("6: rank ", mine.rank, " of world ", run.world_size));
  }
}

void Checker::OnRankStarted(const Node& node, const Group& group, const Rank& rank, Instant now) {
  const std::string name =
      Text(group.job, " generation ", group.generation, " rank ", rank.rank, " on ", node.name());
  const int local = static_cast<int>(&rank - group.ranks.data());
  // 12. A rank starts once.
  Expect(started_ranks_[{group.job, group.generation}].emplace(node.id(), local).second,
         "12: started twice: " + name);
  // 8. Only generations that formed start, and only their members.
  const GenerationId id{group.job, group.generation};
  boots_[id][node.id()] = node.boot_id();
  began_[id].try_emplace(node.id(), now);
  CheckAgain(id, name);
  Expect(members_.contains(id), "8: started without a formed generation: " + name);
  Expect(!members_.contains(id) || IsMember(id, node.id()),
         "8: started on a node that is no member: " + name);
  // 14. Nothing older of this job lives on this node. 13, 41. Slots hold. 73. Each by itself.
  int live = 0;
  std::map<int, int> living;  // By the number of their slot.
  for (const auto& job : node.groups()) {
    for (const auto& entry : job.second) {
      const auto alive = std::count_if(entry.second.ranks.begin(), entry.second.ranks.end(),
                                       [](const Rank& r) { return r.alive; });
      live += static_cast<int>(alive);
      const bool older = job.first == group.job && entry.first < group.generation;
      Expect(!older || alive == 0, "14: started beside an older generation: " + name);
      if (alive == 0) continue;
      for (const int slot : entry.second.slots) ++living[slot];
    }
  }
  for (const int slot : group.slots)
    Expect(living[slot] == 1, Text("73: others live on slot ", slot, " of ", name));
  Expect(node.options().launched || live <= node.options().slots,
         Text("41: ", live, " ranks on ", node.name()));
  // 28. Nothing starts after an acknowledged cancel, but what was ordered before it and then held
  // back by a network that was silent: nobody can take that back.
  auto cancelled = cancelled_.find(group.job);
  const bool held_back = node.silent_until() && now <= *node.silent_until() + kInFlight;
  Expect(cancelled == cancelled_.end() || now <= cancelled->second + kInFlight || held_back,
         "28: started after a cancel: " + name);
}

void Checker::OnDisturbed(const Group& group, Instant now) {
  disturbed_.try_emplace({group.job, group.generation}, now);
}

// Is there a reason to end it? What happened to it, an end that was decided, a growth, a member
// that leaves, or that did not tell that its ranks run.
bool Checker::IsDisturbed(const GenerationId& id) const {
  auto elective = elective_.find(id.first);
  if (disturbed_.contains(id) || over_.contains(id) || verdicts_.contains(id.first)) return true;
  if (elective != elective_.end() && elective->second > id.second) return true;
  auto members = members_.find(id);
  if (members == members_.end()) return true;  // 8 says so.
  auto running = running_.find(id);
  for (const NodeId& member : members->second) {
    if (leaving_.contains(member)) return true;
    if (running == running_.end() || !running->second.contains(member)) return true;
  }
  return false;
}

// 17, 18. That an agent or the coordinator was started again is no reason to stop a rank.
void Checker::OnStopped(const Node& node, const Group& group) {
  const bool agent = agents_restarted_.contains(node.id());
  Expect(IsDisturbed({group.job, group.generation}),
         Text(agent ? "17: " : "18: ", node.name(), " stops ", group.job, " generation ",
              group.generation, " for no reason"));
}

// 25, 26. One key, one job.
void Checker::OnSubmitAnswered(const std::string& key, const JobId& job) {
  auto [known, fresh] = submitted_.try_emplace(key, job);
  Expect(fresh || known->second == job, Text("26: key ", key, " is ", known->second, " and ", job));
  Expect(specs_.contains(job), Text("25: ", job, " was answered before it was durable"));
}

void Checker::OnCancelAnswered(const JobId& job, Instant now) { cancelled_.try_emplace(job, now); }

// 20. Accepted only for the generation that formed last. 24. What is accepted is what was recorded:
// the same twice is one record, and nothing else becomes that step.
void Checker::OnCommitAnswered(SessionId session, const CommitAnswer& answer) {
  std::deque<CommitRequest>& asked = asked_[session];
  const CommitRequest request = asked.empty() ? CommitRequest{} : asked.front();
  if (!asked.empty()) asked.pop_front();
  if (!answer.accepted) return;
  const auto& recorded = manifests_[{{answer.job, answer.generation}, answer.step}];
  Expect(recorded == request.manifest_hash,
         Text("24: step ", answer.step, " of ", answer.job, " is accepted as ",
              request.manifest_hash, " and recorded as ", recorded));
  const bool older = formed_[answer.job] > answer.generation;
  Expect(!older,
         Text("20: accepted a commit of generation ", answer.generation, " of ", answer.job));
}

// 29. What a reader has seen does not become undone.
void Checker::OnRead(const ReadReply& reply) {
  std::map<JobId, JobView> seen = std::exchange(views_, {});
  for (const JobView& view : reply.jobs) {
    views_[view.id] = view;
    if (view.why) ++coverage.wait_reasons[view.why->index()];
    CheckWait(view);
    auto found = seen.find(view.id);
    if (found == seen.end()) continue;
    const JobView& before = found->second;
    const bool over =
        before.state == "succeeded" || before.state == "failed" || before.state == "cancelled";
    Expect(view.generation >= before.generation && view.regroups >= before.regroups &&
               view.restarts_charged >= before.restarts_charged,
           Text("29: generation, regroups or restarts of ", view.id, " fell"));
    Expect(!over || view.state == before.state,
           Text("29: ", view.id, " was ", before.state, " and is ", view.state));
    Expect(!before.committed_step || view.committed_step >= before.committed_step,
           Text("29: the committed step of ", view.id, " fell"));
    seen.erase(found);
  }
  for (const auto& gone : seen) Expect(false, Text("29: ", gone.first, " is not read any more"));
}

// Nobody would take care of a job that goes on.
void Checker::OnFinished(const std::map<Key, Value>& rows) {
  for (const auto& row : rows) {
    const auto* state = std::get_if<JobStateRow>(&row.second);
    if (state == nullptr) continue;
    Expect(state->phase == JobPhase::kEnded || state->phase == JobPhase::kPreempted,
           Text("L3: the coordinator left ", state->job, " in phase ",
                static_cast<int>(state->phase)));
  }
}

// Behind a cut a launch command waits, and its ranks run on. One without an endpoint starts its
// coordinator again; one that was lost before very many others is forgotten.
void Checker::OnLeft(const std::map<Key, Value>& rows, const Node& node, Instant now) {
  if (!rows.contains(NodeKey(node.id())) || !node.running() || !node.launched_job ||
      node.leaving() || node.result)
    return;
  if (standalone_.contains(*node.launched_job) && (!node.attached() || lost_[node.id()])) return;
  const std::string& how = lost_how_[node.id()];
  const bool proved =
      lost_[node.id()] && how != kHowSilent && how != kHowAway && how != kHowCrowded;
  Expect(
      proved || now - over_when_[*node.launched_job] >= unreachable_hold || node.only_told_is_cut(),
      Text("L3: the coordinator left before ", node.name(), " had its result"));
}

void Checker::AtEnd(const std::map<Key, Value>& rows) {
  for (const auto& entry : submitted_) {
    Expect(rows.contains(JobSpecKey(entry.second)),
           Text("25: the acknowledged ", entry.second, " is lost"));
  }
}

}  // namespace regroup::sim
