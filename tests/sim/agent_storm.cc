#include "tests/sim/agent_storm.h"

#include <algorithm>
#include <csignal>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "agent/core/core.h"
#include "common/base/check.h"
#include "common/base/rng.h"
#include "tests/agent/sights.h"
#include "tests/sim/text.h"

namespace regroup::sim {
namespace {

using namespace agent;                 // NOLINT: events and actions are all this file is about.
using namespace agent::testing;        // NOLINT
using namespace std::chrono_literals;  // NOLINT

// What the shell would have of one group.
struct Seen {
  int workers = 1;
  bool warming = false, spawned = false, ready = false, gone = false, empty = false;
  bool store = false, bound = false;
  std::optional<GroupKey> from;  // Its shim is that one's until it is ready.
};
enum class Line { kDown, kOpen, kAttached };

class Storming {
 public:
  Storming(std::uint64_t seed, bool keep_text) : rng_(seed), keep_text_(keep_text) {
    storm_.hash = kNothingFolded;
  }

  Storm Run(int steps) {
    const Config config = RandomConfig();
    agent::Core core(config, now_);
    core_ = &core;
    Scanned scanned;
    for (std::uint64_t i = rng_.Below(4); i > 0; --i) scanned.records.push_back(RandomRecord());
    Feed(scanned);
    for (int i = 0; i < steps && !left_; ++i) {
      Pass();
      if (!left_) Feed(RandomEvent());
    }
    core_ = nullptr;
    return std::move(storm_);
  }

 private:
  bool Chance(std::uint64_t one_in) { return rng_.Below(one_in) == 0; }
  int Draw(int bound) { return static_cast<int>(rng_.Below(static_cast<std::uint64_t>(bound))); }
  GroupKey RandomKey() { return {JobId(Chance(2) ? "a-1" : "b-2"), Generation(1 + rng_.Below(5))}; }
  GroupKey KnownKey() {
    if (seen_.empty()) return RandomKey();
    auto at = seen_.begin();
    std::advance(at, rng_.Below(seen_.size()));
    return at->first;
  }

  Config RandomConfig() {
    Config config;
    config.node = NodeId("node");
    config.incarnation = Incarnation(1);
    config.boot = BootId("boot");
    config.name = "a";
    config.slots = 1 + Draw(4);
    config.launched = Chance(2);
    config.sigterm_is_notice = Chance(2);
    config.starts_coordinator = config.launched && Chance(2);
    if (config.launched && Chance(3)) config.join_timeout = 20s;
    if (Chance(2)) {
      config.cluster = ClusterId("c");
      config.highest_epoch = Epoch(3);
    }
    return config;
  }

  RankEnded RandomEnd(int local_rank) {
    RankEnded end;
    end.local_rank = local_rank;
    end.kind = static_cast<ExitKind>(Draw(3));
    end.code = end.kind == ExitKind::kSignaled ? (Chance(2) ? SIGABRT : SIGTERM) : Draw(3);
    end.after_stop = Chance(4);
    end.pid = 100 + local_rank;
    end.at = now_ - std::chrono::milliseconds(Draw(500));
    if (Chance(3)) end.error = std::string(Chance(4) ? 9000 : 20, 'e');
    if (Chance(3)) end.evidence = ErrorEvidence::kErrorFile;
    return end;
  }

  RunRecord RandomRecord() {
    RunRecord record;
    record.key = RandomKey();
    record.boot = BootId(Chance(6) ? "older" : "boot");
    record.workers = Draw(4);
    record.store.hosted = Chance(2);
    record.started = Chance(2);
    for (int rank = 0; record.started && rank < record.workers; ++rank)
      if (Chance(8)) record.signalled.insert(rank);
    record.shim_alive = Chance(2);
    record.store.alive = record.store.hosted && Chance(2);
    record.checking = !record.started && Chance(3);
    record.empty = Chance(3);
    record.killed = !record.shim_alive && Chance(4);
    record.unkillable = Chance(8);
    if (Chance(8)) record.check_failed = "bad memory";
    if (Chance(4)) record.stop_deadline = now_ + std::chrono::milliseconds(Draw(4000));
    if (record.store.hosted && Chance(2)) record.store.address = Address{"10.0.0.2", 4000};
    if (Chance(2)) record.witness = Address{"10.0.0.2", 5000};
    for (int i = 0; record.started && i < record.workers; ++i) {
      if (!Chance(5)) record.starts.push_back({i, 100 + i, now_ - 5s});
      if (Chance(4)) record.exits.push_back(RandomEnd(i));
      if (Chance(4)) record.kept.insert(i);
    }
    if (!record.started && Chance(4)) record.starts.push_back({0, 100, now_ - 5s});
    std::uint64_t& newest = newest_[record.key.job];
    newest = std::max(newest, record.key.generation.value());
    Seen& seen = seen_[record.key];
    seen.workers = std::max(1, record.workers);
    seen.spawned = seen.ready = true;
    seen.gone = !record.shim_alive;
    seen.empty = record.empty;
    seen.store = record.store.hosted;
    seen.bound = record.store.address.has_value();
    sights_.Begin(record);
    return record;
  }

  // Time passes, with a Tick at each deadline, or none where the process stands still.
  void Pass() {
    const Duration by = std::chrono::milliseconds(Chance(8) ? Draw(8000) : Draw(300));
    const Instant until = now_ + by;
    if (!Chance(20)) {
      for (int ticks = 0; !left_ && core_->NextDeadline() && *core_->NextDeadline() <= until;
           ++ticks) {
        CHECK(ticks < 1'000);  // The core must come to rest.
        now_ = std::max(now_, *core_->NextDeadline());
        Feed(Tick{});
      }
    }
    now_ = until;
    if (!left_) Feed(Tick{});
  }

  Event RandomEvent() {
    const int what = Draw(24);
    if (what < 3) return OfLine();
    if (what < 9 && line_ == Line::kAttached) return Ordered{RandomOrder()};
    if (what < 18) return OfShim();
    if (what < 22) return OfWorker();
    if (what == 22 && Chance(12)) return OfEnd();
    return Tick{};
  }

  Event OfLine() {
    switch (line_) {
      case Line::kDown: line_ = Line::kOpen; return CoordinatorFound{"10.0.0.2", "10.0.0.1"};
      case Line::kOpen: {
        if (Chance(6)) return CoordinatorSpoke{};
        if (Chance(8)) return Lost();
        Welcome welcome{.cluster = ClusterId(Chance(20) ? "other" : "c"),
                        .epoch = Epoch(Chance(20) ? 1 : 4),
                        .name = "a",
                        .version = {},
                        .heartbeat = 1s,
                        .lease = 5s};
        welcome.answers_heartbeats = Chance(2);
        if (Chance(20)) welcome.version.minor = kProtocolMinor + 2;
        line_ = Line::kAttached;
        return Welcomed{welcome};
      }
      default: break;
    }
    switch (Draw(5)) {
      case 0: return Chance(3) ? Lost() : CoordinatorSpoke{};
      case 1: return CommitAnswered{AnswerTo(RandomCommit())};
      case 2: return CoordinatorSpoke{};
      default:
        return ReportAcked{ReportNo(numbers_.empty() ? 1 : numbers_[rng_.Below(numbers_.size())])};
    }
  }
  Event Lost() {
    line_ = Line::kDown;
    return CoordinatorAway{};
  }

  Order RandomOrder() {
    Order order;
    if (!Chance(12)) ++order_;
    order.number = OrderNo(Chance(12) ? 1 : order_);
    order.job = RandomKey().job;
    std::uint64_t& newest = newest_[order.job];
    if (Chance(6)) {
      order.stop = Stop{Generation(rng_.Below(newest + 2)), std::chrono::milliseconds(Draw(3000)),
                        static_cast<StopReason>(Draw(5)), !Chance(4)};
    }
    if (Chance(6)) order.forget = Forget{Generation(rng_.Below(newest + 1))};
    if (Chance(3)) {
      Prepare prepare;
      prepare.generation = Generation(Chance(6) ? 1 + rng_.Below(newest + 1) : ++newest);
      prepare.spec.workers = Chance(8) ? Draw(6) : 1;
      prepare.host_store = Chance(2);
      if (prepare.generation.value() % 3 == 0) prepare.spec.job.warm.emplace();
      order.prepare = prepare;
    } else if (Chance(2)) {
      const GroupKey known = KnownKey();
      order.job = known.job;
      regroup::Run run;
      run.generation = known.generation;
      const auto seen = seen_.find(known);
      const int workers = Chance(15) || seen == seen_.end() ? 7 : seen->second.workers;
      for (int i = 0; i < workers; ++i) run.mine.push_back({i, i + 2});
      order.run = run;
    } else if (Chance(2)) {
      const GroupKey known = KnownKey();
      order.job = known.job;
      order.notice = WorkerNotice{known.generation, std::chrono::milliseconds(Draw(5000))};
    }
    return order;
  }

  // Of a shim nothing is heard before it is spawned, nor anything but its end after that.
  Event OfShim() {
    if (seen_.empty()) return Tick{};
    const GroupKey key = KnownKey();
    Seen& seen = seen_[key];
    if (seen.warming && !seen.spawned) return WarmedUp{key};
    if (!seen.spawned) {
      return Chance(6) ? Event(PrepareFailed{key, std::string(Chance(4) ? 3000 : 9, 'w')})
                       : Event(RunDirectoryWritten{key});
    }
    if (seen.gone || seen.empty) {
      if (seen.gone && !seen.empty && Chance(2)) return LeftoversKilled{key, Chance(2)};
      if (!seen.gone && Chance(2)) return Gone(key);
      if (Chance(4)) return Told(GroupEmpty{key, /*awaits_words=*/true});
      seen.empty = true;
      return Told(GroupEmpty{key});
    }
    if (seen.store && !seen.bound && Chance(2)) {
      seen.bound = true;
      return Told(StoreBound{key, Address{"10.0.0.2", 4000}});
    }
    if (!seen.ready) {
      if (Chance(10)) return PrepareFailed{key, "the shim ended"};
      seen.ready = true;
      if (seen.from) seen_[*seen.from].empty = true;
      return Told(ShimReady{key, Address{"10.0.0.2", 5000}, Chance(4)});
    }
    switch (Draw(12)) {
      case 0: return Chance(3) ? Gone(key) : Told(NodeChecked{key});
      case 1:
        if (!Chance(3)) return Told(NodeChecked{key});
        seen.empty = true;
        return Told(GroupEmpty{key});
      case 2: return Chance(3) ? Told(GroupStuck{key}) : Told(NodeChecked{key});
      case 3: return Told(StoreGone{key});
      case 4: return Told(NodeChecked{key});
      case 5: return Chance(3) ? Event(PrepareFailed{key, "check failed"}) : Event(Tick{});
      case 6:
      case 7: return Told(RankExited{key, RandomEnd(Draw(seen.workers))});
      case 8:
        return RankErrorRead{key, Draw(seen.workers), Chance(5) ? "" : "ValueError: boom",
                             static_cast<ErrorEvidence>(Draw(3))};
      default: {
        RanksStarted started{key, {}};
        for (int i = 0; i < seen.workers; ++i)
          if (!Chance(9)) started.starts.push_back({i, 100 + i, now_});
        return Told(started);
      }
    }
  }
  template <class Happened>
  Event Told(const Happened& happened) {
    return sights_(happened);
  }
  Event Gone(const GroupKey& key) {
    seen_[key].gone = true;
    return Told(ShimGone{key});
  }

  CommitRequest RandomCommit() {
    const GroupKey key = KnownKey();
    CommitRequest request;
    request.job = key.job;
    request.generation = key.generation;
    request.attempt = rng_.Below(3);
    request.step = Draw(3);
    return request;
  }
  CommitAnswer AnswerTo(const CommitRequest& request) {
    const CommitRequest& asked = asked_.empty() || Chance(4) ? request : asked_.back();
    CommitAnswer answer;
    answer.job = asked.job;
    answer.generation = asked.generation;
    answer.attempt = asked.attempt;
    answer.step = asked.step;
    answer.accepted = Chance(2);
    return answer;
  }

  Event OfWorker() {
    if (!told_.empty() && !Chance(3)) {
      const auto [key, local_rank] = told_.back();
      told_.pop_back();
      return WorkerSaid{key, 2 + local_rank, local_rank, WorkerRetired{}};
    }
    const GroupKey key = KnownKey();
    const auto seen = seen_.find(key);
    const int local_rank = Draw(Chance(6) || seen == seen_.end() ? 5 : seen->second.workers);
    WorkerSaid said{key, 2 + local_rank, local_rank, WorkerHello{Chance(2), !Chance(8)}};
    switch (Draw(9)) {
      case 0: return WorkerHungUp{key, local_rank};
      case 1:
      case 6: return said;
      case 7: said.what = WorkerRetired{}; return said;
      case 8:
        if (Chance(4)) said.what = WorkerCannotGoOn{std::string(Chance(4) ? 9000 : 20, 'c')};
        return said;
      case 2: said.what = CommunicatorFailed{"NCCL"}; return said;
      case 3: {
        CommitRequest request = RandomCommit();
        said.key = {request.job, request.generation};
        said.what = request;
        return said;
      }
      default: {
        WorkerProgress progress;
        progress.job = key.job;
        progress.generation = key.generation;
        progress.rank = said.rank;
        progress.step = ++step_;
        said.what = progress;
        return said;
      }
    }
  }

  Event OfEnd() {
    switch (Draw(6)) {
      case 3: return LaunchAccepted{};
      case 0: return EnoughJoined{};
      case 1: return JobOver{Draw(3)};
      case 2: return CoordinatorRefused{"no"};
      default: return SignalCaught{Chance(2) ? SIGTERM : SIGINT};
    }
  }

  void Feed(const Event& event) {
    const Effects effects = core_->Step(now_, event);
    std::string text = "at ";
    Write(text, now_);
    text += " event " + std::to_string(event.index()) + '\n';
    WriteLines(text, "action ", effects.actions);
    WriteLines(text, "note ", effects.notes);
    text += "next ";
    Write(text, core_->NextDeadline());
    text += core_->attached() ? " attached\n" : "\n";
    ++storm_.steps;
    storm_.hash = Fold(storm_.hash, text);
    if (keep_text_) storm_.text += text;
    for (const Action& action : effects.actions) {
      ++storm_.actions[action.index()];
      std::visit([this](const auto& a) { Learn(a); }, action);
    }
  }

  void Learn(const WriteRunDirectory& a) {
    sights_.Forget(a.key);
    Seen& seen = seen_[a.key] = {};
    seen.workers = std::max(1, a.prepare.spec.workers);
    seen.store = a.prepare.host_store;
  }
  void Learn(const WarmUp& a) { seen_[a.key].warming = true; }
  void Learn(const SpawnShim& a) { seen_[a.key].spawned = true; }
  void Learn(const HandOver& a) {
    seen_[a.to].spawned = true;
    seen_[a.to].from = a.from;
  }
  void Learn(const TellRetire& a) { told_.emplace_back(a.key, a.local_rank); }
  void Learn(const RemoveRunDirectory& a) { seen_.erase(a.key); }
  void Learn(const SendReport& a) { numbers_.push_back(a.report.number.value()); }
  void Learn(const SendCommit& a) { asked_.push_back(a.request); }
  void Learn(const SendHello&) { order_ = 0; }
  void Learn(const RefuseCoordinator&) { line_ = Line::kDown; }
  void Learn(const BreakSession&) { line_ = Line::kDown; }
  void Learn(const Leave&) { left_ = true; }
  template <class Other>
  void Learn(const Other&) {}

  Rng rng_;
  const bool keep_text_;
  Storm storm_;
  Instant now_{1000s};
  agent::Core* core_ = nullptr;
  Line line_ = Line::kDown;
  bool left_ = false;
  std::map<GroupKey, Seen> seen_;
  Sights sights_;
  std::vector<std::uint64_t> numbers_;
  std::vector<CommitRequest> asked_;
  std::vector<std::pair<GroupKey, int>> told_;  // To retire.
  std::map<JobId, std::uint64_t> newest_;       // Generation that was ordered or found.
  std::uint64_t order_ = 0;
  std::int64_t step_ = 0;
};

}  // namespace

Storm RunStorm(std::uint64_t seed, int steps, bool keep_text) {
  return Storming(seed, keep_text).Run(steps);
}

}  // namespace regroup::sim
