#include "agent/shell/group_host.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shell/exit_error.h"
#include "agent/shell/group_warnings.h"
#include "agent/shell/hosted_group.h"
#include "agent/shell/in_place_site.h"
#include "agent/shell/numa.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/connections.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "common/report/text_style.h"
#include "common/rpc/proof.h"

namespace regroup::agent {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using nlohmann::json;
using namespace std::chrono_literals;

constexpr auto kErrorLimit =
    200ms;  // How long an empty group waits for what its failed ranks printed.
constexpr auto kOutputLimit = 5s;  // The same, where people watch.
constexpr auto kKillInterval = 5ms;
constexpr auto kStuckInterval = 1s;
constexpr auto kReachLimit = 3s;
constexpr auto kRemoveInterval = 20ms, kLastWords = 10000ms;
constexpr int kStuckRounds = 2000;  // × kKillInterval
constexpr std::size_t kShimLogBytes = 4096;
constexpr auto kMeetingLimit = 10s;
constexpr auto kNurseryLingers = 60s;       // Without any group of its job.
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

void GroupHost::After(std::chrono::milliseconds wait, std::function<void()> what) {
  auto timer = std::make_shared<asio::steady_timer>(loop_);
  timer->expires_after(wait);
  timer->async_wait([alive = alive_, timer, what = std::move(what)](error_code error) {
    if (!error && *alive) what();
  });
}

void GroupHost::Fail(const GroupKey& key, const absl::Status& why) {
  handler_.post(PrepareFailed{key, std::string(why.message())});
}

// ---- prepare ------------------------------------------------------------------------------------

shim::Spec GroupHost::SpecOf(const GroupKey& key, const Prepare& prepare,
                             const WorkerOptions& worker) const {
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
  if (!options_.cgroup_base.empty()) spec.cgroup = GroupCgroup(options_.cgroup_base, spec);
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
  absl::Status written = Write(action.key, action.prepare);
  if (!written.ok()) return Fail(action.key, written);
  handler_.post(RunDirectoryWritten{action.key});
}

absl::Status GroupHost::Write(const GroupKey& key, const Prepare& prepare) {
  auto hosted = std::make_unique<Hosted>();
  hosted->key = key;
  hosted->host_store = prepare.host_store;
  hosted->store_members = prepare.store_members;
  const std::string ip = prepare.advertise.empty() ? "127.0.0.1" : prepare.advertise;
  ASSIGN_OR_RETURN(hosted->witness_fd, io::ListenTcpInRange(ip, options_.ports));
  ASSIGN_OR_RETURN(hosted->witness, io::LocalAddressOf(hosted->witness_fd.get()));
  hosted->worker = options_.launched ? options_.worker : SubmittedOptions(prepare.spec.job);
  hosted->spec = SpecOf(key, prepare, hosted->worker);
  // Of a launch command it has checked that itself.
  if (!options_.launched && hosted->worker.virtual_local_rank)
    RETURN_IF_ERROR(CheckDevices(hosted->spec.workers, FromEntries(hosted->spec.environment)));
  hosted->worker_secret = io::RandomHex(32);
  hosted->since = key.generation;
  hosted->warm = prepare.spec.job.warm;
  json data = {{"host_store", prepare.host_store},
               {"worker_secret", hosted->worker_secret},
               {"since", hosted->since.value()},
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
  const auto nursery = nurseries_.find(hosted.key.job);
  if (hosted.warm && nursery != nurseries_.end()) {
    if (nursery->second->ready())
      return SpawnFromNursery(hosted, *nursery->second, *std::move(start), directory);
    nursery->second->GiveUp();
  }
  RETURN_IF_ERROR(hosted.shim->Spawn(*start));
  return hosted.shim->Await(directory);
}

// ---- nursery ------------------------------------------------------------------------------------

void GroupHost::Carry(const WarmUp& action) {
  Hosted* hosted = Find(action.key);
  CHECK(hosted != nullptr);
  KeepNursery(*hosted);
  nurseries_.at(action.key.job)->WhenSettled([this, alive = alive_, key = action.key] {
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

// Starts the job's nursery, once in a generation, where there is none that is ready or may become
// so. Of a group that runs already, beside its ranks.
void GroupHost::KeepNursery(Hosted& hosted) {
  if (!hosted.warm || hosted.has_had_nursery) return;
  const JobId& job = hosted.key.job;
  const auto found = nurseries_.find(job);
  if (found != nurseries_.end() && !found->second->worn_out()) return;
  hosted.has_had_nursery = true;
  const auto tell = [this, job](const std::string& why) {
    const std::string line = absl::StrCat("ranks of ", job.value(), " start cold: ", why);
    (handler_.tell ? handler_.tell : handler_.warn)(line);
  };
  nurseries_[job] = Nursery::Start(loop_, options_.shim_program, hosted.spec, *hosted.warm, tell);
}

std::uint64_t GroupHost::WarmBytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [job, nursery] : nurseries_) bytes += nursery->Bytes();
  return bytes;
}

void GroupHost::DropNursery(const JobId& job) {
  if (!nurseries_.contains(job)) return;
  After(kNurseryLingers, [this, job] {
    const bool used = std::any_of(groups_.begin(), groups_.end(),
                                  [&](const auto& entry) { return entry.first.job == job; });
    const auto found = nurseries_.find(job);
    if (used || found == nurseries_.end()) return;
    found->second->End();
    nurseries_.erase(found);
  });
}

void GroupHost::Carry(const SpawnStore& action) {
  Hosted* hosted = Find(action.key);
  CHECK(hosted != nullptr);
  absl::Status spawned = SpawnStoreOf(*hosted);
  if (!spawned.ok()) return Fail(action.key, spawned);
  handler_.post(StoreBound{action.key, *hosted->store});
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
    WarnOfHostName(group, interface);
    if (!hosted->host_store) WarnOfStore(action.key, action.run.store);
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
  if (hosted->worker.sets_master_port && action.run.world_size > 1)
    WatchMeeting(action.key, action.run.store.port);
}

// PyTorch takes the port that such a program sets for one of ours, and its ranks wait for a store
// that nobody serves.
void GroupHost::WatchMeeting(const GroupKey& key, std::uint16_t store_port) {
  auto timer = std::make_shared<asio::steady_timer>(loop_, kMeetingLimit);
  timer->async_wait([this, alive = alive_, timer, key, store_port](error_code error) {
    if (error || !*alive) return;
    const Hosted* hosted = Find(key);
    if (hosted == nullptr || !hosted->state || hosted->state->phase != Phase::kRunning) return;
    if (handler_.tell && !io::IsConnectedTo(store_port)) handler_.tell(OwnPortSentence());
  });
}

// Gloo asks for the address of the host's name unless it is told an interface.
void GroupHost::WarnOfHostName(const Environment& group, const std::string& interface) {
  if (!interface.empty() || group.contains("GLOO_SOCKET_IFNAME") || !handler_.tell) return;
  asio::post(disk_, [this, alive = alive_] {
    std::string problem = HostNameProblem();
    if (problem.empty()) return;
    asio::post(loop_, [this, alive, problem = std::move(problem)] {
      if (*alive) handler_.tell(absl::StrCat(problem, "; export GLOO_SOCKET_IFNAME=INTERFACE"));
    });
  });
}

// Ranks that cannot reach where they meet wait for many minutes before they say so, and then blame
// something else.
void GroupHost::WarnOfStore(const GroupKey& key, const Address& store) {
  error_code bad;
  const asio::ip::address address = asio::ip::make_address(store.host, bad);
  if (bad) return;
  auto socket = std::make_shared<asio::ip::tcp::socket>(loop_);
  auto limit = std::make_shared<asio::steady_timer>(loop_, kReachLimit);
  limit->async_wait([socket](error_code error) {
    error_code ignored;
    if (!error) socket->close(ignored);
  });
  socket->async_connect({address, store.port}, [this, alive = alive_, socket, limit, key,
                                                store](error_code error) {
    limit->cancel();
    if (!error || !*alive) return;
    const std::string why = error == asio::error::operation_aborted ? "no answer" : error.message();
    (handler_.tell ? handler_.tell : handler_.warn)(absl::StrCat(
        "this node does not reach ", io::FormatAddress(store), ", where the ranks of ",
        key.job.value(), " generation ", key.generation.value(), " meet (", why,
        "); if other nodes cannot reach it either, start that node with another --local-addr"));
  });
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
  if (!std::exchange(hosted->noticed, true)) SaveNotes(*hosted);
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
  // The shim may still write its ranks' last words; a store has nothing to finish, and may hang.
  if (hosted->store_shim) KillAt(hosted->store_path);
  const bool shim_ran = hosted->shim || (hosted->end && hosted->end->started);
  if (!shim_ran && !hosted->spec.cgroup.empty() && !SharesLife(*hosted))
    shim::RemoveEmptyCgroup(hosted->spec.cgroup);
  logs_.OnRemoved(action.key);
  for (const std::string& path : {hosted->path, hosted->store_path}) {
    if (!path.empty()) RemoveDirectory(path);
  }
  const JobId job = action.key.job;
  groups_.erase(action.key);
  OnSuccessor(action.key);
  DropNursery(job);
}

void GroupHost::RemoveDirectory(const std::string& path, std::chrono::milliseconds waited) {
  const absl::Status removed = shim::RemoveRunDirectory(path);
  removing_.erase(path);
  if (removed.ok()) return;
  removing_.insert(path);
  const bool held = absl::IsFailedPrecondition(removed);
  if (!held && waited == 0ms)
    handler_.warn(absl::StrCat("cannot remove ", path, ": ", std::string(removed.message())));
  if (held && waited == kLastWords) KillAt(path);
  const auto wait =
      waited < kLastWords ? kRemoveInterval : std::chrono::milliseconds(kStuckInterval);
  After(wait, [this, path, waited] {
    RemoveDirectory(path, std::min<std::chrono::milliseconds>(waited + kRemoveInterval,
                                                              kLastWords + kRemoveInterval));
  });
}

void GroupHost::Carry(const KillGroup& action) { KillLeftovers(action.key, 0, 0); }

void GroupHost::Carry(const KillShim& action) {
  const Hosted* hosted = Find(action.key);
  if (hosted == nullptr) return;
  KillAt(hosted->path);
  // Where it has the next one by now and does not say so.
  const Hosted* to = AwaitsSuccessor(*hosted) ? Find(*hosted->to) : nullptr;
  if (to != nullptr) KillAt(to->path);
}

void GroupHost::Carry(const ReleaseShim& action) {
  Hosted* hosted = Find(action.key);
  if (hosted != nullptr && hosted->shim) hosted->shim->Send(shim::Release{});
}

void GroupHost::KillAt(const std::string& path) {
  if (path.empty()) return;
  absl::StatusOr<shim::RunRecord> record = shim::ReadRunDirectory(path);
  const absl::Status killed = record.ok() ? shim::KillShim(*record) : record.status();
  if (!killed.ok() && !absl::IsUnavailable(killed))  // Not started yet: its Kill awaits it.
    handler_.warn(absl::StrCat("kill the process of ", path, ": ", std::string(killed.message())));
}

void GroupHost::KillLeftovers(const GroupKey& key, int clean_rounds, int rounds) {
  Hosted* hosted = Find(key);
  if (hosted == nullptr) return;
  if (!hosted->end && !hosted->unreadable) {
    // The core knows it is gone from the scan or from OnGone: both have left the record.
    hosted->killed = true;
    return handler_.post(GroupEmpty{key});
  }
  absl::StatusOr<int> found = 0;
  if (hosted->unreadable) {
    found = shim::KillUnreadable(*hosted->unreadable, options_.cgroup_base);
  } else if (!SharesLife(*hosted)) {
    found = shim::KillLeftovers(*hosted->end);
  }
  if (!found.ok())
    handler_.warn(absl::StrCat("kill what is left of ", key.job.value(), ": ",
                               std::string(found.status().message())));
  clean_rounds = found.ok() && *found == 0 ? clean_rounds + 1 : 0;
  if (clean_rounds >= 2) {
    hosted->killed = true;
    SaveNotes(*hosted);
    return handler_.post(GroupEmpty{key});
  }
  if (rounds == kStuckRounds) handler_.post(GroupStuck{key});
  After(rounds < kStuckRounds ? kKillInterval : std::chrono::milliseconds(kStuckInterval),
        [this, key, clean_rounds, rounds] { KillLeftovers(key, clean_rounds, rounds + 1); });
}

void GroupHost::SaveNotes(const Hosted& hosted) {
  const json notes = {{"noticed", hosted.noticed},
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
    handler_.tell(absl::StrCat("output of workers is being lost: ", state.log_trouble));
  if (scan_done_) return CheckScan(false);
  const bool left = options_.launched && !state.left_behind.empty();
  if (left && !std::exchange(hosted.left_told, true) && handler_.tell)
    handler_.tell(LeftBehindSentence(state));
  const GroupKey key = hosted.key;
  if (!hosted.ready) {
    if (hosted.from) TakeLastWords(*hosted.from);
    hosted.ready = true;
    hosted.checking = state.phase == Phase::kPreparing;
    // A check that failed before anybody looked is no reason to call the group prepared.
    handler_.post(ShimReady{key, hosted.witness, hosted.checking || !state.check_failed.empty()});
    OnSuccessor(key);
  }
  const bool check_is_over = hosted.checking && state.phase != Phase::kPreparing;
  if (check_is_over) hosted.checking = false;
  if (check_is_over && state.phase == Phase::kPrepared) handler_.post(NodeChecked{key});
  if (!state.check_failed.empty() && !std::exchange(hosted.check_failed, true))
    handler_.post(PrepareFailed{key, EscapeControls(state.check_failed)});
  RanksStarted started{key, {}};
  for (const shim::RankState& rank : state.ranks) {
    if (state.ever_started && Started(rank))
      started.starts.push_back({rank.local_rank, rank.pid, rank.started_at});
  }
  if (started.starts.size() > hosted.starts) {
    hosted.starts = started.starts.size();
    handler_.post(std::move(started));
    if (handler_.output) handler_.output(key);  // From here on there is something to follow.
  }
  TellNewGeneration(hosted, state);
  for (const shim::RankState& rank : state.ranks) {
    if (rank.phase != shim::RankPhase::kEnded || !hosted.exits.insert(rank.local_rank).second)
      continue;
    handler_.post(RankExited{key, EndOf(rank, hosted.spec)});
  }
  if (state.phase == Phase::kRunning) KeepNursery(hosted);
  if (state.output_bytes != had && handler_.output) handler_.output(key);
  if (state.phase == Phase::kUnkillable && !std::exchange(hosted.stuck_posted, true))
    handler_.post(GroupStuck{key});
  ReadErrors(hosted, state, /*all=*/false);
  if (state.phase == Phase::kFree) {
    hosted.empty = true;
    MaybeEmpty(hosted);
  }
}

void GroupHost::OnGone(Hosted& hosted, const shim::RunRecord& record) {
  hosted.end = record;
  logs_.OnGone(hosted.key);
  if (scan_done_) return CheckScan(false);
  const GroupKey key = hosted.key;
  if (record.state) OnState(hosted, *record.state);
  if (Find(key) != &hosted) return;
  if (!record.supervisor_lost()) {
    if (hosted.state) ReadErrors(hosted, *hosted.state, /*all=*/true);
    MaybeEmpty(hosted);
    return;
  }
  if (!hosted.ready) {
    absl::StatusOr<std::string> log =
        io::ReadFile(absl::StrCat(hosted.path, "/", shim::kShimLogFile), kShimLogBytes);
    // And may have left something. One that was to be handed over has checked nothing.
    const bool checked = hosted.spec.node_check.wanted() && !hosted.from;
    const char* what = hosted.from ? "the supervisor of its ranks did not take it over"
                                   : "its supervisor ended before it was ready";
    if (checked) handler_.post(ShimReady{key, hosted.witness, /*checking=*/true});
    Fail(key, absl::UnavailableError(
                  absl::StrCat(what, log.ok() && !log->empty() ? ": " : "", log.ok() ? *log : "")));
    hosted.not_taken = true;
    OnSuccessor(key);
    if (!checked) return;
  }
  handler_.post(ShimGone{key});
}

void GroupHost::OnStoreGone(Hosted& hosted) {
  if (scan_done_) return CheckScan(false);
  handler_.post(StoreGone{hosted.key});
}

// On the disk's thread, since a worker's log may lie on a file system that hangs.
void GroupHost::ReadErrors(Hosted& hosted, const shim::State& state, bool all) {
  for (const shim::RankState& rank : state.ranks) {
    if (!Failed(rank) || !(all || rank.logs_complete) ||
        !hosted.errors_read.insert(rank.local_rank).second)
      continue;
    ++hosted.errors_pending;
    const std::string file = ErrorFile(hosted.path, rank.local_rank);
    const std::string logs =
        io::LogDirectory(hosted.spec.log_root, hosted.key.job, hosted.key.generation, rank.rank);
    asio::post(
        disk_, [this, alive = alive_, key = hosted.key, local_rank = rank.local_rank, file, logs] {
          asio::post(loop_, [this, alive, key, local_rank, said = ReadExitError(file, logs)] {
            if (!*alive) return;
            Hosted* hosted = Find(key);
            if (hosted == nullptr) return;
            --hosted->errors_pending;
            if (!said.text.empty())
              handler_.post(RankErrorRead{key, local_rank, said.text, said.evidence});
            MaybeEmpty(*hosted);
          });
        });
  }
}

bool GroupHost::OutputPending(const JobId& job) const {
  return std::any_of(groups_.begin(), groups_.end(), [&](const auto& entry) {
    const Hosted& hosted = *entry.second;
    if (entry.first.job != job || !hosted.state || hosted.end) return false;
    return std::any_of(
        hosted.state->ranks.begin(), hosted.state->ranks.end(), [](const shim::RankState& rank) {
          return rank.phase == shim::RankPhase::kEnded && rank.pid > 0 && !rank.logs_complete;
        });
  });
}

// Free is said together with why its ranks failed, if that does not take long.
// Of one whose shim has gone nothing more is written.
bool GroupHost::AwaitsOutput(const Hosted& hosted, const shim::RankState& rank) {
  return rank.pid > 0 && !rank.logs_complete && !hosted.end;
}

void GroupHost::MaybeEmpty(Hosted& hosted) {
  if (!hosted.empty || hosted.empty_posted || !hosted.state || AwaitsSuccessor(hosted)) return;
  bool complete = hosted.errors_pending == 0;
  for (const shim::RankState& rank : hosted.state->ranks) {
    complete = complete && (!Failed(rank) || hosted.errors_read.contains(rank.local_rank));
    // A launch command ends soon after: all of the output has to be in the logs that it shows.
    complete = complete && !(options_.launched && AwaitsOutput(hosted, rank));
  }
  if (complete || hosted.errors_late) {
    hosted.empty_posted = true;
    handler_.post(GroupEmpty{hosted.key});
    return;
  }
  if (std::exchange(hosted.empty_limited, true)) return;
  auto timer = std::make_shared<asio::steady_timer>(loop_);
  if (options_.launched) {
    timer->expires_after(kOutputLimit);
  } else {
    timer->expires_after(kErrorLimit);
  }
  timer->async_wait([this, alive = alive_, timer, key = hosted.key](error_code error) {
    if (error || !*alive) return;
    Hosted* late = Find(key);
    if (late == nullptr || late->empty_posted) return;
    late->errors_late = true;
    if (options_.launched) TellLateLogs(*late);
    MaybeEmpty(*late);
  });
}

// What is written later is in the logs, but nobody shows it.
void GroupHost::TellLateLogs(const Hosted& hosted) {
  for (const shim::RankState& rank : hosted.state->ranks) {
    if (!AwaitsOutput(hosted, rank) || !handler_.tell) continue;
    handler_.tell(absl::StrCat(
        "the last output of rank ", rank.rank,
        " may not be shown: its disk has not taken it within ", kOutputLimit.count(),
        " s · it comes to ",
        io::LogDirectory(hosted.spec.log_root, hosted.key.job, hosted.key.generation, rank.rank)));
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
