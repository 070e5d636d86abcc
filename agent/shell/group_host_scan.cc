// The half of GroupHost that finds what an earlier life of this agent left.

#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shell/group_host.h"
#include "agent/shell/hosted_group.h"
#include "common/report/text_style.h"

namespace regroup::agent {
namespace {

using boost::system::error_code;
using nlohmann::json;
using namespace std::chrono_literals;

constexpr auto kScanLimit = 1s;

ExecObstacle ObstacleOf(const std::string& exec_stage) {
  if (exec_stage == shim::kStageDirectory) return ExecObstacle::kDirectory;
  return exec_stage == shim::kStageInterpreter ? ExecObstacle::kInterpreter
                                               : ExecObstacle::kProgram;
}

// Another build may have written another type there; no agent must end for that, again and again.
template <class T>
T Noted(const json& object, const char* name, T otherwise) {
  try {
    return object.value(name, otherwise);
  } catch (const json::type_error&) {
    return otherwise;
  }
}

}  // namespace

bool Failed(const shim::RankState& rank) {
  return rank.phase == shim::RankPhase::kEnded && rank.exit_kind != ExitKind::kExecFailed &&
         !(rank.exit_kind == ExitKind::kExited && rank.code == 0);
}

bool Started(const shim::RankState& rank) {
  return rank.phase == shim::RankPhase::kRunning || rank.phase == shim::RankPhase::kKept ||
         (rank.phase == shim::RankPhase::kEnded && rank.exit_kind != ExitKind::kExecFailed);
}

RankEnded EndOf(const shim::RankState& rank, const shim::Spec& spec) {
  RankEnded end{.local_rank = rank.local_rank,
                .kind = rank.exit_kind,
                .code = rank.code,
                .after_stop = rank.after_stop,
                .oom = rank.oom,
                .pid = rank.pid,
                .at = rank.ended_at};
  if (rank.exit_kind == ExitKind::kExecFailed) {
    end.obstacle = ObstacleOf(rank.exec_stage);
    const std::string what =
        end.obstacle == ExecObstacle::kDirectory
            ? absl::StrCat("working directory ", spec.directory)
            : absl::StrCat(rank.exec_stage, " ", spec.command.empty() ? "" : spec.command[0]);
    end.error = absl::StrCat(what, ": ", std::strerror(rank.code));
  }
  return end;
}

std::optional<Address> AddressFrom(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_object()) return std::nullopt;
  return Address{Noted(*found, "host", std::string()), Noted(*found, "port", std::uint16_t{0})};
}

json ParseNotes(const std::string& text) {
  json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return object.is_object() ? object : json::object();
}

// ---- scan ---------------------------------------------------------------------------------------

void GroupHost::Scan(std::function<void(std::vector<RunRecord>)> done) {
  absl::StatusOr<shim::RunScan> scan = shim::ScanRunDirectories(options_.node_base);
  if (!scan.ok()) {
    handler_.warn(std::string(scan.status().message()));
    scan_timer_.expires_after(kScanAgain);
    return scan_timer_.async_wait([this, alive = alive_, done = std::move(done)](error_code error) {
      if (!error && *alive) Scan(done);
    });
  }
  scan_done_ = std::move(done);
  Adopt(*std::move(scan));
  scan_timer_.expires_after(kScanLimit);
  scan_timer_.async_wait([this, alive = alive_](error_code error) {
    if (!error && *alive) CheckScan(true);
  });
  CheckScan(false);
}

void GroupHost::Adopt(shim::RunScan scan) {
  for (shim::RunRecord& record : scan.records) {
    if (record.spec.role == shim::Role::kGroup) AdoptRecord(std::move(record));
  }
  for (shim::UnreadableRun& run : scan.unreadable) AdoptUnreadable(std::move(run));
  for (shim::RunRecord& record : scan.records) {
    if (record.spec.role == shim::Role::kStore) AdoptStore(record);
  }
}

void GroupHost::AdoptStore(const shim::RunRecord& record) {
  Hosted* hosted = Find({record.spec.job, record.spec.generation});
  const std::string path = record.path;
  if (hosted == nullptr) {  // Of a group that is gone.
    auto orphan = MakeProcess({record.spec.job, record.spec.generation}, path, record.spec);
    if (record.shim_alive) orphan->Adopt();
    orphan->Send(shim::Kill{});
    orphan->Drop();
    return runs_.Remove(path);
  }
  hosted->store_path = path;
  hosted->store = AddressFrom(ParseNotes(record.spec.agent_data), "store");
  if (!record.shim_alive) return;
  hosted->store_shim = MakeProcess(hosted->key, path, record.spec);
  hosted->store_shim->Adopt();
}

// Whatever of it lives is ended; until then it is a group whose supervisor was lost.
void GroupHost::AdoptUnreadable(shim::UnreadableRun run) {
  handler_.warn(absl::StrCat("run directory ", run.path, " cannot be read (", run.why,
                             "): ", run.had_shim ? "what lives of it is ended" : "it is removed"));
  if (!run.had_shim) return runs_.Remove(run.path);
  if (run.job.empty() || run.role == shim::Role::kStore)
    return runs_.End(run);  // Nobody has to be told.
  auto hosted = std::make_unique<Hosted>();
  hosted->key = {run.job, run.generation};
  if (run.spec) hosted->spec = *run.spec;
  hosted->spec.boot = options_.boot;
  hosted->spec.workers = run.spec ? run.spec->workers : 0;
  hosted->path = run.path;
  hosted->adopted = hosted->ready = true;
  hosted->unreadable = std::move(run);
  const GroupKey key = hosted->key;
  groups_[key] = std::move(hosted);
}

void GroupHost::AdoptRecord(shim::RunRecord record) {
  auto hosted = std::make_unique<Hosted>();
  hosted->key = {record.spec.job, record.spec.generation};
  hosted->spec = record.spec;
  hosted->path = record.path;
  hosted->adopted = hosted->ready = true;
  const json data = ParseNotes(record.spec.agent_data), notes = ParseNotes(record.agent_notes);
  hosted->slots = Noted(data, "slots", std::vector<int>());
  // Slots of this life may stand for others than those of the one that started it.
  const auto devices = Noted(data, "devices", std::vector<std::string>());
  if (devices != DevicesOfSlots(options_.devices, options_.slots, hosted->slots))
    hosted->slots = SlotsOfDevices(options_.devices, options_.slots, devices);
  hosted->host_store = Noted(data, "host_store", false);
  hosted->store_members = Noted(data, "store_members", std::vector<std::string>());
  hosted->worker_secret = Noted(data, "worker_secret", std::string());
  hosted->since = Generation(Noted(data, "since", record.spec.generation.value()));
  if (record.started && record.spec.keeps_ranks) {
    const absl::StatusOr<shim::RunDirectory> directory = shim::OpenRunDirectory(record.path);
    absl::StatusOr<shim::StartRanks> start =
        directory.ok() ? shim::ReadStarted(*directory) : directory.status();
    if (start.ok())
      for (shim::RankPlan& plan : start->ranks) hosted->plans[plan.local_rank] = std::move(plan);
  }
  hosted->worker = options_.worker;
  hosted->worker.numa_binding = Noted(data, "numa_binding", hosted->worker.numa_binding);
  hosted->worker.virtual_local_rank =
      Noted(data, "virtual_local_rank", hosted->worker.virtual_local_rank);
  if (data.contains("warm")) hosted->warm = Noted(data, "warm", std::vector<std::string>());
  hosted->worker.sets_master_port =
      Noted(data, "sets_master_port", hosted->worker.sets_master_port);
  hosted->witness = AddressFrom(data, "witness");
  hosted->signalled = Noted(notes, "signalled", std::set<int>());
  // An older agent did not name them.
  if (Noted(notes, "noticed", false) && hosted->signalled.empty())
    for (int rank = 0; rank < record.spec.workers; ++rank) hosted->signalled.insert(rank);
  hosted->killed = Noted(notes, "killed", false);
  hosted->store_closed = Noted(notes, "store_closed", false);
  hosted->state = record.state;
  const GroupKey key = hosted->key;
  if (record.shim_alive) {
    hosted->state.reset();  // It answers itself.
    hosted->shim = MakeProcess(key, record.path, record.spec);
  } else {
    hosted->end = std::move(record);
  }
  Hosted& placed = *(groups_[key] = std::move(hosted));
  if (placed.shim) placed.shim->Adopt();
}

void GroupHost::CheckScan(bool time_is_up) {
  if (!scan_done_) return;
  for (const auto& [key, hosted] : groups_) {
    if (hosted->shim && !hosted->state && !hosted->end && !time_is_up) return;
  }
  scan_timer_.cancel();
  auto done = std::exchange(scan_done_, {});
  std::vector<RunRecord> records;
  for (auto& [key, hosted] : groups_) {
    if (!hosted->state && hosted->end) hosted->state = hosted->end->state;
    // Of a shim that does not answer, or is gone, nobody knows better.
    hosted->checking = hosted->state && !hosted->end
                           ? hosted->state->phase == Phase::kPreparing
                           : hosted->spec.node_check.wanted() && !hosted->killed;
    hosted->seen = Describe(*hosted);
    records.push_back(*hosted->seen);
  }
  done(std::move(records));
  for (auto& [key, hosted] : groups_) {
    if (!hosted->state) continue;
    words_.Read(key, hosted->path, hosted->spec, *hosted->state, hosted->end.has_value());
    if (!hosted->end && hosted->state->phase == Phase::kRunning) KeepNursery(*hosted);
  }
}

RunRecord GroupHost::Describe(const Hosted& hosted) const {
  RunRecord record;
  record.key = hosted.key;
  record.boot = hosted.spec.boot;
  record.workers = hosted.spec.workers;
  record.slots = hosted.slots;
  record.signalled = hosted.signalled;
  record.killed = hosted.killed;
  record.store = {.hosted = hosted.host_store,
                  .alive = hosted.store_shim && hosted.store_shim->alive(),
                  .closed = hosted.store_closed,
                  .address = hosted.store};
  // As long as it is not known who has its ranks now, it is what it was.
  const bool awaits_successor = AwaitsSuccessor(hosted);
  const bool ended = hosted.end && (!awaits_successor || hosted.end->supervisor_lost());
  record.unheard = !hosted.ready;
  record.shim_alive = hosted.ready && hosted.shim && !ended;
  record.witness = hosted.witness;
  record.started = hosted.unreadable || (hosted.end && hosted.end->started);
  record.checking = hosted.checking;
  if (!hosted.state) return record;
  record.started = record.started || hosted.state->ever_started;
  record.check_failed = EscapeControls(hosted.state->check_failed);
  record.empty = hosted.state->phase == Phase::kFree && !awaits_successor;
  record.awaits_words = record.empty && AwaitsWords(hosted);
  record.unkillable = hosted.state->phase == Phase::kUnkillable;
  record.stop_deadline = hosted.state->stop_deadline;
  for (const shim::RankState& rank : hosted.state->ranks) {
    if (Started(rank)) record.starts.push_back({rank.local_rank, rank.pid, rank.started_at});
    if (Started(rank) && rank.inherited) record.kept.insert(rank.local_rank);
    if (rank.phase == shim::RankPhase::kEnded) record.exits.push_back(EndOf(rank, hosted.spec));
  }
  return record;
}

}  // namespace regroup::agent
