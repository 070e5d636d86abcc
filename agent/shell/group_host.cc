#include "agent/shell/group_host.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shell/group_warnings.h"
#include "agent/shell/hosted_group.h"
#include "agent/shell/in_place_site.h"
#include "agent/shell/numa.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "common/report/text_style.h"
#include "common/rpc/proof.h"

namespace regroup::agent {
namespace {

namespace asio = boost::asio;
using nlohmann::json;

constexpr std::size_t kShimLogBytes = 4096;
constexpr int kServiceOomAdjustment = 500;  // Workers go before the agent does.

json ToJson(const Address& address) { return {{"host", address.host}, {"port", address.port}}; }

mode_t CurrentUmask() {
  const mode_t mask = ::umask(022);
  ::umask(mask);
  return mask;
}

}  // namespace

GroupHost::GroupHost(asio::io_context& loop, asio::thread_pool& disk, Options options,
                     Handler handler)
    : loop_(loop),
      disk_(disk),
      options_(std::move(options)),
      handler_(std::move(handler)),
      logs_(loop, disk, options_.log_root,
            {[this](const GroupKey& key, const shim::Shown& shown) {
               const Hosted* hosted = Find(key);
               if (hosted != nullptr && hosted->shim) hosted->shim->Send(shown);
             },
             [this](std::string text) {
               if (handler_.tell) handler_.tell(std::move(text));
             }}),
      words_(loop, disk,
             [this](const GroupKey& key, int local_rank, const ExitError& said) {
               if (!said.text.empty())
                 handler_.post(RankErrorRead{key, local_rank, said.text, said.evidence});
               if (Hosted* hosted = Find(key)) See(*hosted);
             }),
      nurseries_(loop, options_.shim_program, handler_.tell ? handler_.tell : handler_.warn),
      meeting_(loop, disk, handler_.tell ? handler_.tell : handler_.warn),
      runs_(loop, handler_.warn),
      scan_timer_(loop),
      alive_(std::make_shared<bool>(true)) {
  if (options_.launched) {
    absl::StatusOr<shim::Lifeline> lifeline = shim::MakeLifeline();
    if (lifeline.ok()) lifeline_ = *std::move(lifeline);
  }
}

GroupHost::~GroupHost() {
  *alive_ = false;
  for (auto& [key, hosted] : groups_) {
    if (hosted->shim) hosted->shim->Drop();
    if (hosted->store_shim) hosted->store_shim->Drop();
  }
}

GroupHost::Hosted* GroupHost::Find(const GroupKey& key) const {
  const auto found = groups_.find(key);
  return found == groups_.end() ? nullptr : found->second.get();
}

void GroupHost::Follow(const ClusterId& cluster, Epoch epoch) {
  cluster_ = cluster;
  epoch_ = epoch;
}

void GroupHost::Fail(const GroupKey& key, const absl::Status& why) {
  handler_.post(PrepareFailed{key, std::string(why.message())});
}

// ---- prepare ------------------------------------------------------------------------------------

shim::Spec GroupHost::SpecOf(const GroupKey& key, const Prepare& prepare,
                             const WorkerOptions& worker,
                             const std::vector<std::string>& devices) const {
  shim::Spec spec;
  spec.nonce = io::RandomHex(16);
  spec.boot = options_.boot;
  spec.cluster = cluster_;
  spec.epoch = epoch_;
  spec.node = options_.node;
  spec.job = key.job;
  spec.generation = key.generation;
  spec.workers = prepare.spec.workers;
  spec.keeps_ranks = prepare.spec.job.keeps_ranks();
  GroupProgram program = options_.program(prepare);
  ShowDevices(devices, options_.devices, program.environment);
  AddGroupEnvironment(key, spec.workers, static_cast<int>(options_.cpus.size()),
                      options_.worker_socket, program, worker);
  spec.command = std::move(program.command);
  spec.program = std::move(program.program);
  if (spec.keeps_ranks) {
    PutFirstOnPythonPath(
        SiteFolder(absl::StrCat(options_.node_base, "/",
                                shim::RunDirectoryName(key.job, key.generation, spec.role))),
        program.environment);
  }
  spec.environment = ToEntries(program.environment);
  spec.directory = std::move(program.directory);
  spec.node_check = std::move(program.node_check);
  if (spec.node_check.command == kGpuCheck)
    spec.node_check.command = BuiltInGpuCheck(options_.shim_program);
  spec.log_root = options_.log_root;
  spec.lifeline_grace = prepare.spec.job.grace;
  spec.agent_patience = agent_restart_;
  spec.log_limits = LimitsOf(prepare.spec.job, /*kept_apart=*/false);
  if (options_.launched) {
    spec.log_limits = options_.log_limits;
    spec.passing = shim::PassingDirectory(options_.node_base, key.job, key.generation);
    spec.umask = CurrentUmask();
    spec.limits = {};
  } else {
    spec.oom_score_adj = kServiceOomAdjustment;
  }
  if (options_.descriptors) spec.limits.push_back(*options_.descriptors);
  if (!options_.cgroup_base.empty())
    spec.cgroup = GroupCgroup(options_.cgroup_base, options_.node_base, spec);
  return spec;
}

void GroupHost::MakeCgroup(const shim::Spec& spec) {
  if (spec.cgroup.empty()) return;
  const absl::Status made = shim::MakeGroupCgroup(spec);  // Without it, its shim walks descendants.
  if (!made.ok())
    handler_.warn(
        absl::StrCat("no cgroup for ", spec.job.value(), ": ", std::string(made.message())));
}

void GroupHost::Carry(const WriteRunDirectory& action) {
  absl::Status written = Write(action.key, action.prepare, action.slots);
  if (!written.ok()) return Fail(action.key, written);
  handler_.post(RunDirectoryWritten{action.key});
}

absl::Status GroupHost::Write(const GroupKey& key, const Prepare& prepare,
                              const std::vector<int>& slots) {
  auto hosted = std::make_unique<Hosted>();
  hosted->key = key;
  hosted->slots = slots;
  hosted->host_store = prepare.host_store;
  hosted->store_members = prepare.store_members;
  const std::string ip = prepare.advertise.empty() ? "127.0.0.1" : prepare.advertise;
  ASSIGN_OR_RETURN(hosted->witness_fd, io::ListenTcpInRange(ip, options_.ports));
  ASSIGN_OR_RETURN(hosted->witness, io::LocalAddressOf(hosted->witness_fd.get()));
  hosted->worker = options_.launched ? options_.worker : SubmittedOptions(prepare.spec.job);
  const std::vector<std::string> devices = DevicesOfSlots(options_.devices, options_.slots, slots);
  if (devices.size() > 1 && AnyMigInstance(devices)) hosted->worker.virtual_local_rank = true;
  hosted->spec = SpecOf(key, prepare, hosted->worker, devices);
  // Of a launch command it has checked that itself.
  if (!options_.launched && hosted->worker.virtual_local_rank)
    RETURN_IF_ERROR(CheckDevices(hosted->spec.workers, FromEntries(hosted->spec.environment)));
  hosted->worker_secret = io::RandomHex(32);
  hosted->since = key.generation;
  hosted->warm = prepare.spec.job.warm;
  json data = {{"host_store", prepare.host_store},
               {"worker_secret", hosted->worker_secret},
               {"since", hosted->since.value()},
               {"slots", slots},
               {"devices", devices},
               {"store_members", prepare.store_members},
               {"advertise", ip},
               {"numa_binding", hosted->worker.numa_binding},
               {"virtual_local_rank", hosted->worker.virtual_local_rank},
               {"sets_master_port", hosted->worker.sets_master_port},
               {"witness", ToJson(*hosted->witness)}};
  if (hosted->warm) data["warm"] = *hosted->warm;
  hosted->spec.agent_data = data.dump();
  absl::StatusOr<shim::RunDirectory> directory =
      shim::CreateRunDirectory(options_.node_base, hosted->spec);
  RETURN_IF_ERROR(directory.status());
  if (hosted->spec.keeps_ranks) {
    const absl::Status written = WriteSite(directory->path);
    if (!written.ok()) shim::RemoveRunDirectory(directory->path).IgnoreError();
    RETURN_IF_ERROR(written);
  }
  MakeCgroup(hosted->spec);
  hosted->path = directory->path;
  groups_[key] = std::move(hosted);
  return absl::OkStatus();
}

std::shared_ptr<ShimProcess> GroupHost::MakeProcess(const GroupKey& key, std::string path,
                                                    shim::Spec spec) {
  const bool store = spec.role == shim::Role::kStore;
  ShimProcess::Handler handler;
  handler.state = [this, key, store, told = std::string()](const shim::State& state) mutable {
    Hosted* hosted = Find(key);
    if (hosted == nullptr) return;
    if (!store) return OnState(*hosted, state);
    if (state.log_trouble.empty() || state.log_trouble == told) return;
    told = state.log_trouble;
    (handler_.tell ? handler_.tell : handler_.warn)(told);
  };
  handler.gone = [this, key, store](const shim::RunRecord& record) {
    Hosted* hosted = Find(key);
    if (hosted == nullptr) return;
    if (store) {
      OnStoreGone(*hosted);
    } else {
      OnGone(*hosted, record);
    }
  };
  return ShimProcess::Make(loop_, std::move(path), std::move(spec), !store && options_.launched,
                           std::move(handler));
}

void GroupHost::Carry(const SpawnShim& action) {
  Hosted* hosted = Find(action.key);
  CHECK(hosted != nullptr);
  absl::Status spawned = Spawn(*hosted);
  if (!spawned.ok()) return Fail(action.key, spawned);
  logs_.Prune(action.key, hosted->spec.log_limits);
}

absl::Status GroupHost::Spawn(Hosted& hosted) {
  ASSIGN_OR_RETURN(shim::RunDirectory directory, shim::OpenRunDirectory(hosted.path));
  shim::ShimFds fds;
  fds.witness = hosted.witness_fd.get();
  if (lifeline_) fds.lifeline = lifeline_->read_end.get();
  if (options_.pass_stdin) fds.rank0_stdin = STDIN_FILENO;
  hosted.shim = MakeProcess(hosted.key, hosted.path, hosted.spec);
  absl::StatusOr<shim::ShimStart> start =
      shim::PrepareShim(options_.shim_program, directory, hosted.spec.role, fds);
  hosted.witness_fd.reset();
  RETURN_IF_ERROR(start.status());
  Nursery* nursery = hosted.warm ? nurseries_.Find(hosted.key.job) : nullptr;
  if (nursery != nullptr) {
    if (nursery->ready()) return SpawnFromNursery(hosted, *nursery, *std::move(start), directory);
    nursery->GiveUp();
  }
  RETURN_IF_ERROR(hosted.shim->Spawn(*start));
  return hosted.shim->Await(directory);
}

// ---- nursery ------------------------------------------------------------------------------------

void GroupHost::Carry(const WarmUp& action) {
  Hosted* hosted = Find(action.key);
  CHECK(hosted != nullptr);
  KeepNursery(*hosted);
  nurseries_.Find(action.key.job)->WhenSettled([this, alive = alive_, key = action.key] {
    if (*alive) handler_.post(WarmedUp{key});
  });
}

absl::Status GroupHost::SpawnFromNursery(Hosted& hosted, Nursery& nursery, shim::ShimStart start,
                                         const shim::RunDirectory& directory) {
  RETURN_IF_ERROR(hosted.shim->Await(directory));
  nursery.StartShim(std::move(start), [this, alive = alive_, key = hosted.key,
                                       shim = hosted.shim](const shim::ShimStart& again) {
    if (!*alive) return;
    Hosted* group = Find(key);
    if (group == nullptr || group->shim != shim) return;
    absl::Status spawned = shim->Spawn(again);
    if (!spawned.ok()) Fail(key, spawned);
  });
  return absl::OkStatus();
}

// Once in a generation. Of a group that runs already, beside its ranks.
void GroupHost::KeepNursery(Hosted& hosted) {
  if (!hosted.warm || hosted.has_had_nursery) return;
  hosted.has_had_nursery = nurseries_.Keep(hosted.spec, *hosted.warm);
}

std::uint64_t GroupHost::WarmBytes() const { return nurseries_.Bytes(); }

void GroupHost::Carry(const SpawnStore& action) {
  Hosted* hosted = Find(action.key);
  CHECK(hosted != nullptr);
  absl::Status spawned = SpawnStoreOf(*hosted);
  if (!spawned.ok()) return Fail(action.key, spawned);
  See(*hosted);
}

absl::Status GroupHost::SpawnStoreOf(Hosted& hosted) {
  const std::string ip = hosted.witness ? hosted.witness->host : "127.0.0.1";
  ASSIGN_OR_RETURN(io::UniqueFd listener, io::ListenTcpInRange(ip, options_.ports));
  ASSIGN_OR_RETURN(Address address, io::LocalAddressOf(listener.get()));
  shim::Spec spec;
  spec.role = shim::Role::kStore;
  spec.nonce = io::RandomHex(16);
  spec.boot = options_.boot;
  spec.cluster = cluster_;
  spec.epoch = epoch_;
  spec.node = options_.node;
  spec.job = hosted.key.job;
  spec.generation = hosted.key.generation;
  spec.store_members = hosted.store_members;
  spec.agent_patience = agent_restart_;
  spec.agent_data = json{{"store", ToJson(address)}}.dump();
  // One that an earlier life of this agent wrote, and died before it was spawned.
  if (!hosted.store_path.empty()) RETURN_IF_ERROR(shim::RemoveRunDirectory(hosted.store_path));
  ASSIGN_OR_RETURN(shim::RunDirectory directory,
                   shim::CreateRunDirectory(options_.node_base, spec));
  hosted.store_path = directory.path;
  hosted.store = address;
  hosted.store_shim = MakeProcess(hosted.key, directory.path, spec);
  shim::ShimFds fds;
  fds.witness = listener.get();
  if (lifeline_) fds.lifeline = lifeline_->read_end.get();
  return hosted.store_shim->Spawn(options_.shim_program, directory, fds);
}

// ---- run and stop -------------------------------------------------------------------------------

void GroupHost::Carry(const StartRanks& action) {
  Hosted* hosted = Find(action.key);
  CHECK(hosted != nullptr);
  if (!hosted->shim) return;
  const Environment group = FromEntries(hosted->spec.environment);
  std::string interface;
  if (action.run.many_hosts && hosted->witness) {
    absl::StatusOr<std::string> owner = io::InterfaceOwning(hosted->witness->host);
    if (owner.ok()) interface = *std::move(owner);
  }
  if (action.run.many_hosts) {
    if (handler_.tell) meeting_.OfHostName(group, interface);
    if (!hosted->host_store) meeting_.OfStore(action.key, action.run.store);
  }
  const auto visible = group.find("CUDA_VISIBLE_DEVICES");
  const std::vector<int> gpu_nodes =
      hosted->worker.numa_binding.empty()
          ? std::vector<int>()
          : NumaNodesOfGpus(visible == group.end() ? std::nullopt : std::optional(visible->second));
  shim::StartRanks start;
  start.ranks.resize(action.run.mine.size());
  for (const RankAssignment& rank : action.run.mine) {
    shim::RankPlan plan = PlanRank(action.run, rank, group, interface, hosted->path,
                                   hosted->worker_secret, hosted->worker);
    if (hosted->worker.substitute_local_rank)
      plan.command = CommandOf(hosted->spec.command, rank.local_rank);
    if (IsNativeWorker(hosted->spec.command))
      plan.cpus = CpusOf(rank.local_rank, hosted->spec.workers, options_.cpus);
    if (!hosted->worker.numa_binding.empty()) {
      plan.cpus = CpusNear({.how = hosted->worker.numa_binding,
                            .local_rank = rank.local_rank,
                            .workers = hosted->spec.workers,
                            .allowed = options_.cpus,
                            .gpu_nodes = gpu_nodes});
    }
    start.ranks[static_cast<std::size_t>(rank.local_rank)] = std::move(plan);
  }
  AwaitRanks(*hosted, action, start);
  hosted->shim->Send(start);
  if (handler_.tell && hosted->worker.sets_master_port && action.run.world_size > 1) {
    meeting_.OfOwnPort(action.run.store.port, [this, key = action.key] {
      const Hosted* waiting = Find(key);
      return waiting != nullptr && waiting->state && waiting->state->phase == Phase::kRunning;
    });
  }
}

void GroupHost::Forward(int signal) {
  for (const auto& [key, hosted] : groups_) {
    if (!hosted->state || hosted->end) continue;
    for (const shim::RankState& rank : hosted->state->ranks) {
      if (rank.phase != shim::RankPhase::kRunning) continue;
      io::SignalProcess(rank.pid, rank.start_ticks, signal)
          .IgnoreError();  // Gone: its exit is on the way.
    }
  }
}

void GroupHost::Carry(const StopRanks& action) {
  Hosted* hosted = Find(action.key);
  if (hosted != nullptr && hosted->shim)
    hosted->shim->Send(
        shim::Stop{.deadline = action.deadline,
                   .signal = SIGTERM,
                   .name_leftovers = action.finished && options_.launched,
                   .keep_leftovers = action.finished && hosted->worker.leave_children});
}

void GroupHost::Carry(const SignalRank& action) {
  Hosted* hosted = Find(action.key);
  if (hosted == nullptr || !hosted->state) return;
  if (hosted->signalled.insert(action.local_rank).second) SaveNotes(*hosted);
  for (const shim::RankState& rank : hosted->state->ranks) {
    if (rank.local_rank != action.local_rank || rank.pid <= 0) continue;
    io::SignalProcess(rank.pid, rank.start_ticks, action.signal)
        .IgnoreError();  // Gone: its exit is on the way.
  }
}

void GroupHost::Carry(const CloseStore& action) {
  Hosted* hosted = Find(action.key);
  if (hosted == nullptr || !hosted->store_shim) return;
  // Another agent would take it for one that was lost.
  if (!std::exchange(hosted->store_closed, true)) SaveNotes(*hosted);
  hosted->store_shim->Send(shim::Kill{});
}

void GroupHost::Carry(const RemoveRunDirectory& action) {
  Hosted* hosted = Find(action.key);
  if (hosted == nullptr) return;
  for (const std::shared_ptr<ShimProcess>& process : {hosted->shim, hosted->store_shim}) {
    if (!process) continue;
    if (process->alive()) process->Send(shim::Kill{});
    process->Drop();
  }
  NoteFinishing(*hosted);
  // The shim may still write its ranks' last words; a store has nothing to finish, and may hang.
  if (hosted->store_shim) runs_.KillAt(hosted->store_path);
  const bool shim_ran = hosted->shim || (hosted->end && hosted->end->started);
  if (!shim_ran && !hosted->spec.cgroup.empty() && !SharesLife(*hosted))
    shim::RemoveEmptyCgroup(hosted->spec.cgroup);
  logs_.OnRemoved(action.key);
  words_.Forget(action.key);
  for (const std::string& path : {hosted->path, hosted->store_path}) {
    if (!path.empty()) runs_.Remove(path);
  }
  groups_.erase(action.key);
  OnSuccessor(action.key);
}

void GroupHost::Carry(const EndNursery& action) { nurseries_.End(action.job); }

// A shim that is alive, or has never said a word, has left no record: of what it may have started
// the core knows better.
void GroupHost::Carry(const KillGroup& action) {
  const Hosted* hosted = Find(action.key);
  if (hosted == nullptr) return;
  absl::StatusOr<int> found = 0;
  if (hosted->unreadable) {
    found = shim::KillUnreadable(*hosted->unreadable, options_.cgroup_base);
  } else if (hosted->end && !SharesLife(*hosted)) {
    found = shim::KillLeftovers(*hosted->end);
  }
  if (!found.ok())
    handler_.warn(absl::StrCat("kill what is left of ", action.key.job.value(), ": ",
                               std::string(found.status().message())));
  handler_.post(LeftoversKilled{action.key, found.ok() && *found == 0});
}

void GroupHost::Carry(const MarkKilled& action) {
  Hosted* hosted = Find(action.key);
  if (hosted == nullptr) return;
  hosted->killed = true;
  SaveNotes(*hosted);
}

void GroupHost::Carry(const KillShim& action) {
  const Hosted* hosted = Find(action.key);
  if (hosted == nullptr) return;
  runs_.KillAt(hosted->path);
  // Where it has the next one by now and does not say so.
  const Hosted* to = AwaitsSuccessor(*hosted) ? Find(*hosted->to) : nullptr;
  if (to != nullptr) runs_.KillAt(to->path);
}

void GroupHost::Carry(const ReleaseShim& action) {
  Hosted* hosted = Find(action.key);
  if (hosted != nullptr && hosted->shim) hosted->shim->Send(shim::Release{});
}

void GroupHost::SaveNotes(const Hosted& hosted) {
  const json notes = {{"noticed", !hosted.signalled.empty()},
                      {"signalled", hosted.signalled},
                      {"killed", hosted.killed},
                      {"store_closed", hosted.store_closed}};
  absl::Status written = shim::WriteAgentNotes(hosted.path, notes.dump());
  if (!written.ok())
    handler_.warn(
        absl::StrCat("cannot write to ", hosted.path, ": ", std::string(written.message())));
}

// ---- what shims say -----------------------------------------------------------------------------

void GroupHost::OnState(Hosted& hosted, const shim::State& state) {
  const std::uint64_t had = hosted.state ? hosted.state->output_bytes : 0;
  const std::string trouble = hosted.state ? hosted.state->log_trouble : "";
  hosted.state = state;
  logs_.OnState(hosted.key, state);
  if (state.log_trouble != trouble && !state.log_trouble.empty() && !state.disk_full &&
      handler_.tell)
    handler_.tell(
        absl::StrCat("output of workers is ",
                     state.lost_log_bytes > 0 ? "being lost: " : "not kept: ", state.log_trouble));
  if (scan_done_) return CheckScan(false);
  const bool left = options_.launched && !state.left_behind.empty();
  if (left && !std::exchange(hosted.left_told, true) && handler_.tell)
    handler_.tell(LeftBehindSentence(state));
  const GroupKey key = hosted.key;
  if (!hosted.ready && hosted.from) TakeLastWords(*hosted.from);
  const bool answers = !std::exchange(hosted.ready, true);
  hosted.checking = state.phase == Phase::kPreparing;
  words_.Read(key, hosted.path, hosted.spec, state, /*all=*/false);
  const auto starts =
      static_cast<std::size_t>(std::count_if(state.ranks.begin(), state.ranks.end(), Started));
  const bool more = state.ever_started && starts > std::exchange(hosted.starts, starts);
  // From its first rank on there is something to follow.
  if ((more || state.output_bytes != had) && handler_.output) handler_.output(key);
  TellNewGeneration(hosted, state);
  if (state.phase == Phase::kRunning) KeepNursery(hosted);
  See(hosted);  // Its directory may be gone from here on.
  if (answers) OnSuccessor(key);
}

void GroupHost::OnGone(Hosted& hosted, const shim::RunRecord& record) {
  const GroupKey key = hosted.key;
  logs_.OnGone(key);
  // Its last words are those of one that lives.
  if (record.state && !scan_done_) OnState(hosted, *record.state);
  if (Find(key) != &hosted) return;
  hosted.end = record;
  if (scan_done_) return CheckScan(false);
  if (!record.supervisor_lost()) {
    if (hosted.state) words_.Read(key, hosted.path, hosted.spec, *hosted.state, /*all=*/true);
    return See(hosted);
  }
  if (!hosted.ready) {
    absl::StatusOr<std::string> log =
        io::ReadFile(absl::StrCat(hosted.path, "/", shim::kShimLogFile), kShimLogBytes);
    // And may have left something. One that was to be handed over has checked nothing.
    const bool checked = hosted.spec.node_check.wanted() && !hosted.from;
    const char* what = hosted.from ? "the supervisor of its ranks did not take it over"
                                   : "its supervisor ended before it was ready";
    if (checked) {
      RunRecord heard = Describe(hosted);
      heard.unheard = false;
      heard.shim_alive = heard.checking = true;
      handler_.post(GroupSeen{std::move(heard)});
    }
    Fail(key, absl::UnavailableError(
                  absl::StrCat(what, log.ok() && !log->empty() ? ": " : "", log.ok() ? *log : "")));
    hosted.not_taken = true;
    OnSuccessor(key);
    if (!checked) return;
    hosted.ready = true;
  }
  See(hosted);
}

void GroupHost::OnStoreGone(Hosted& hosted) {
  if (scan_done_) return CheckScan(false);
  See(hosted);
}

bool GroupHost::OutputPending(const JobId& job) const {
  const bool hosted = std::any_of(groups_.begin(), groups_.end(), [&](const auto& entry) {
    return entry.first.job == job && EndedAwaitingOutput(*entry.second);
  });
  return hosted || std::any_of(finishing_.begin(), finishing_.end(), [&](const Finishing& shim) {
           return shim.job == job && io::IsAlive(shim.pid, shim.start_ticks);
         });
}

// Some rank has ended, and not all that it wrote is in the log files.
bool GroupHost::EndedAwaitingOutput(const Hosted& hosted) {
  if (!hosted.state || hosted.end) return false;
  return std::any_of(hosted.state->ranks.begin(), hosted.state->ranks.end(),
                     [&](const shim::RankState& rank) {
                       return rank.phase == shim::RankPhase::kEnded && AwaitsOutput(hosted, rank);
                     });
}

// A group that is over is forgotten as soon as the coordinator knows, which may be before its shim
// has written what the ranks have said last. Where a disk hangs it does so for minutes.
void GroupHost::NoteFinishing(const Hosted& hosted) {
  std::erase_if(finishing_,
                [](const Finishing& shim) { return !io::IsAlive(shim.pid, shim.start_ticks); });
  if (!EndedAwaitingOutput(hosted)) return;
  const auto shim = io::ReadProcessStat(hosted.state->shim_pid);
  if (shim) finishing_.push_back({hosted.key.job, shim->pid, shim->start_ticks});
}

// Of one whose shim has gone nothing more is awaited.
bool GroupHost::AwaitsOutput(const Hosted& hosted, const shim::RankState& rank) {
  return rank.pid > 0 && !rank.logs_complete && !hosted.end;
}

bool GroupHost::AwaitsWords(const Hosted& hosted) const {
  if (words_.Awaited(hosted.key, *hosted.state)) return true;
  // A launch command ends soon after: all of the output has to be in the logs that it shows.
  const auto& ranks = hosted.state->ranks;
  return options_.launched &&
         std::any_of(ranks.begin(), ranks.end(),
                     [&](const shim::RankState& rank) { return AwaitsOutput(hosted, rank); });
}

void GroupHost::See(Hosted& hosted) {
  RunRecord record = Describe(hosted);
  if (hosted.seen == record) return;
  hosted.seen = record;
  handler_.post(GroupSeen{std::move(record)});
}

// What is written later is in the logs, but nobody shows it.
void GroupHost::Carry(const ShowLateOutput& action) {
  const Hosted* hosted = Find(action.key);
  if (hosted == nullptr || !hosted->state || !handler_.tell) return;
  for (const shim::RankState& rank : hosted->state->ranks) {
    if (!AwaitsOutput(*hosted, rank)) continue;
    handler_.tell(
        absl::StrCat("the last output of rank ", rank.rank,
                     " may not be shown: its disk has not taken it in time · it comes to ",
                     io::LogDirectory(hosted->spec.log_root, hosted->key.job,
                                      hosted->key.generation, rank.rank)));
  }
}

bool GroupHost::IsRank(const GroupKey& key, int rank, int local_rank,
                       const std::string& token) const {
  const Hosted* found = FindLineage(key);
  if (found == nullptr) return false;
  const Hosted& hosted = *found;
  if (hosted.adopted && hosted.worker_secret.empty()) return true;  // Of an agent without tokens.
  return SameSecret(token, WorkerToken(hosted.worker_secret, rank, local_rank));
}

std::vector<GroupHost::RankLog> GroupHost::LogsOf(const GroupKey& key) const {
  std::vector<RankLog> logs;
  const auto found = groups_.find(key);
  if (found == groups_.end() || !found->second->state) return logs;
  for (const shim::RankState& rank : found->second->state->ranks) {
    if (rank.rank < 0) continue;
    const shim::Spec& spec = found->second->spec;
    logs.push_back({rank.rank, rank.local_rank,
                    io::LogDirectory(spec.log_root, key.job, key.generation, rank.rank),
                    spec.passing.empty() ? "" : absl::StrCat(spec.passing, "/", rank.rank),
                    spec.log_limits, rank.pid});
  }
  return logs;
}

}  // namespace regroup::agent
