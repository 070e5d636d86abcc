#include "launcher/coordinator/shell/daemon.h"

#include <grpc/grpc.h>
#include <grpcpp/security/server_credentials.h>
#include <signal.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdio>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/state_dir.h"
#include "common/config/token.h"
#include "common/io/address.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "common/io/thread.h"
#include "common/obs/logger.h"
#include "common/rpc/channel.h"
#include "common/rpc/checker.h"
#include "common/rpc/convert.h"
#include "common/rpc/describe_listener.h"
#include "common/rpc/local_coordinator.h"
#include "common/rpc/places.h"
#include "common/rpc/resolve.h"
#include "common/rpc/server.h"
#include "launcher/coordinator/core/admission.h"
#include "launcher/coordinator/core/core.h"
#include "launcher/coordinator/shell/c10d_door.h"
#include "launcher/coordinator/shell/call_server.h"
#include "launcher/coordinator/shell/calls.h"
#include "launcher/coordinator/shell/core_loop.h"
#include "launcher/coordinator/shell/folder.h"
#include "launcher/coordinator/shell/free_space.h"
#include "launcher/coordinator/shell/listener.h"
#include "launcher/coordinator/shell/log_relay.h"
#include "launcher/coordinator/shell/memory_guard.h"
#include "launcher/coordinator/shell/offline.h"
#include "launcher/coordinator/shell/prober.h"
#include "launcher/coordinator/shell/records.h"
#include "launcher/coordinator/shell/sessions.h"
#include "launcher/coordinator/shell/sqlite_journal.h"
#include "proto/coordinator.grpc.pb.h"

namespace regroup::coordinator {
namespace {

constexpr int kExitInternal = 125;
// A result with detail has to fit into one message of a session.
constexpr std::size_t kMaxResultBytes = kMaxSessionMessageBytes - (256u << 10);

// Who may call what, and which part serves it.
class Methods {
 public:
  Methods(Sessions& sessions, Calls& calls, LogRelay& logs, bool insecure) : insecure_(insecure) {
    Add("Session", false, [&](ServerCall& call) { return sessions.Open(call); });
    Add("Submit", true, [&](ServerCall& call) { return calls.Submit(call); });
    Add("Cancel", true, [&](ServerCall& call) { return calls.Cancel(call); });
    Add("Read", true, [&](ServerCall& call) { return calls.Read(call); });
    Add("ForgetNode", true, [&](ServerCall& call) { return calls.ForgetNode(call); });
    Add("Logs", true, [&](ServerCall& call) { return logs.Logs(call); });
    Add("SendLogs", false, [&](ServerCall& call) { return logs.SendLogs(call); });
  }

  std::unique_ptr<CallHandler> Open(ServerCall& call) const {
    const auto at = methods_.find(std::string(call.method()));
    if (at == methods_.end()) {
      // As gRPC says it, in words that each client has of its own.
      call.Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, ""));
      return nullptr;
    }
    const Method& method = at->second;
    const absl::Status caller = method.has_deadline ? CheckUnaryCaller(call, method.name, insecure_)
                                                    : CheckCaller(call, method.name, insecure_);
    if (caller.ok()) return method.open(call);
    call.Refuse(caller);
    return nullptr;
  }

 private:
  struct Method {
    std::string name;
    bool has_deadline = false;
    CallServer::Open open;
  };
  void Add(std::string name, bool has_deadline, CallServer::Open open) {
    const std::string path = absl::StrCat("/", pb::Coordinator::service_full_name(), "/", name);
    methods_[path] = {std::move(name), has_deadline, std::move(open)};
  }

  const bool insecure_;
  std::map<std::string, Method> methods_;  // By gRPC's name.
};

pb::JobView ShownResult(const JobView& job) {
  pb::JobView shown = ToProto(job);
  shown.mutable_spec()->clear_environment();
  // The newest generations say most about the end.
  while (shown.ByteSizeLong() > kMaxResultBytes && shown.generations_size() > 1) {
    shown.mutable_generations()->DeleteSubrange(0, (shown.generations_size() + 1) / 2);
  }
  if (shown.ByteSizeLong() > kMaxResultBytes) shown.clear_generations();
  if (shown.ByteSizeLong() > kMaxResultBytes) shown.clear_events();
  return shown;
}

absl::Status PortTaken(const Address& address) {
  Address dialled = address;
  if (io::IsWildcard(address.host)) dialled.host = address.host == "::" ? "::1" : "127.0.0.1";
  return UserError(
      absl::StatusCode::kAlreadyExists,
      "port " + std::to_string(address.port) + " of " + address.host + " is taken",
      DescribeListener(dialled).sentence,
      "regroup coordinator --listen " +
          io::FormatAddress({address.host, static_cast<std::uint16_t>(address.port + 1)}));
}

absl::StatusOr<std::vector<Address>> ListenAddresses(const CoordinatorConfig& config) {
  std::vector<Address> addresses;
  if (config.local) return addresses;
  std::vector<std::string> texts = config.listen;
  if (texts.empty()) texts.push_back("127.0.0.1:" + std::to_string(kDefaultCoordinatorPort));
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(const io::HostPort endpoint, io::ParseHostPort(text, kDefaultCoordinatorPort));
    absl::StatusOr<std::vector<Address>> resolved = Resolve(endpoint);
    if (!resolved.ok()) {
      return UserError(absl::StatusCode::kInvalidArgument, "--listen " + text + " cannot be used",
                       std::string(resolved.status().message()),
                       "regroup coordinator --listen 127.0.0.1:29400");
    }
    addresses.insert(addresses.end(), resolved->begin(), resolved->end());
  }
  return addresses;
}

absl::Status NotOurs(const Address& address) {
  const absl::StatusOr<std::string> outward = io::LocalIpTowards({"192.0.2.1", 9});
  const std::string own = outward.ok() ? *outward : "127.0.0.1";
  return UserError(absl::StatusCode::kInvalidArgument,
                   "this host does not have the address " + address.host,
                   "ip -brief address lists those that it has; others reach it at " + own,
                   "regroup coordinator --listen " + io::FormatAddress({own, address.port}));
}

absl::Status CannotListen(const absl::Status& why) {
  return UserError(why.code(), "the coordinator cannot listen", std::string(why.message()),
                   "give another --listen address");
}

std::uint64_t FreeBytesAt(const std::string& path) {
  const absl::StatusOr<io::DiskSpace> space = io::DiskSpaceOf(path);
  return space.ok() ? space->free_bytes : std::numeric_limits<std::uint64_t>::max();
}

absl::StatusOr<JobView> JobOf(const absl::StatusOr<Journal::Batch>& rows, const JobId& job) {
  RETURN_IF_ERROR(rows.status());
  ReadFilter filter;
  filter.job = job.value();
  filter.detail = true;
  ASSIGN_OR_RETURN(ReadReply read, ReadRows(*rows, filter));
  return std::move(read.jobs.front());
}

class DaemonImpl final : public Daemon, public Outlet {
 public:
  DaemonImpl(const CoordinatorConfig& config, Folder folder, std::string token,
             std::unique_ptr<obs::Logger> log)
      : config_(config),
        folder_(std::move(folder)),
        token_(std::move(token)),
        log_(std::move(log)),
        memory_(config.memory_limit_bytes),
        listener_(io_, *log_, [this] { return memory_.Refuses(); }),
        c10d_(folder_.path(), *log_),
        journal_(MakeSqliteJournal(folder_.JournalPath())),
        loop_(io_, *journal_, *log_, *this),
        sessions_(loop_, *log_, config_.lease, [this] { return free_space_.Bytes(); }),
        calls_(
            loop_, *log_, [this] { return free_space_.Bytes(); }, [this] { return memory_.Now(); }),
        logs_(loop_, calls_, sessions_),
        prober_(io_),
        methods_(sessions_, calls_, logs_, config.insecure) {
    sessions_.OnTooMany(
        [this](const std::string& peer) { listener_.CutOff(peer, "sessions at once"); });
    calls_.OnHistory([this](const JobId& job, auto done) { ReadHistory(job, std::move(done)); });
    calls_.OnUntaken([this](const std::string& peer) { listener_.Untaken(peer); });
    calls_.OnStuck([this](std::set<std::string> peers) { EndUnread(std::move(peers)); });
  }

  // Who finds the port open looks for the socket at once, by what the lock says; and who finds the
  // lock described uses that socket, whoever has the port.
  absl::Status Listen(const std::vector<Address>& addresses) {
    RETURN_IF_ERROR(BindTcp(addresses));
    RETURN_IF_ERROR(listener_.ListenUnix(folder_.path(), kCoordinatorSocketName));
    RETURN_IF_ERROR(folder_.Describe(addresses_, StartCommand(config_, addresses_)));
    const absl::Status listening = listener_.ListenTcp();
    return listening.ok() ? listening : CannotListen(listening);
  }

  absl::Status BindTcp(const std::vector<Address>& addresses) {
    for (Address address : addresses) {
      const absl::Status bound = listener_.BindTcp(address);
      const bool elsewhere = !io::IsWildcard(address.host) && !io::IsLoopback(address.host) &&
                             absl::IsNotFound(io::InterfaceOwning(address.host).status());
      if (!bound.ok() && elsewhere) return NotOurs(address);
      if (absl::IsAlreadyExists(bound)) return PortTaken(address);
      if (!bound.ok()) return CannotListen(bound);
      addresses_.push_back(address);
    }
    return absl::OkStatus();
  }

  int Run(bool catch_signals) override {
    auto work = boost::asio::make_work_guard(io_);
    boost::asio::signal_set signals(io_);
    if (catch_signals) {
      for (int signal : {SIGTERM, SIGINT, SIGHUP}) signals.add(signal);
      signals.async_wait([this](const boost::system::error_code& error, int signal) {
        if (error) return;
        log_->Info("a signal ends the coordinator", {{"signal", std::to_string(signal)}});
        BeginStop(0, absl::UnavailableError("the coordinator is shutting down"));
      });
    }
    // The journal opens on its own thread while gRPC starts on this one.
    journal_->Load(HasEnded, [this](absl::StatusOr<Journal::Batch> rows) {
      boost::asio::post(io_, [this, rows = std::move(rows)] { OnLoaded(rows); });
    });
    StartServer();
    io_.run();
    return exit_status_;
  }

  void RequestStop() override {
    boost::asio::post(
        io_, [this] { BeginStop(0, absl::UnavailableError("the coordinator is shutting down")); });
  }

  const std::vector<Address>& addresses() const override { return addresses_; }
  std::string socket_path() const override { return folder_.path() + "/" + kCoordinatorSocketName; }
  std::string folder() const override { return folder_.path(); }
  std::shared_ptr<grpc::Channel> FromThisProcess() override {
    std::promise<std::shared_ptr<grpc::Channel>> channel;
    boost::asio::post(io_, [&] { channel.set_value(server_.InProcessChannel()); });
    return channel.get_future().get();
  }

 private:
  Version OurVersion() const {
    Version version;
    version.major = kProtocolMajor;
    version.minor = kProtocolMinor;
    version.build = config_.build;
    return version;
  }

  void StartServer() {
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        grpc::InsecureServerCredentials());
    server_.Start(builder);
  }

  void OnLoaded(const absl::StatusOr<Journal::Batch>& encoded) {
    if (stopping_) return;
    if (!encoded.ok()) return Die(encoded.status());
    std::vector<std::string> left_out;
    const absl::StatusOr<std::vector<Row>> rows = DecodeRows(*encoded, &left_out);
    if (!rows.ok()) return Die(rows.status());
    for (const std::string& row : left_out)
      log_->Warning("an event of the journal cannot be read and is left out", {{"because", row}});
    const MetaRow meta = MetaOf(*rows);
    const Epoch epoch = NextEpoch(meta, config_.accept_journal);
    if (config_.accept_journal && meta.older_than > Epoch()) WarnOfAcceptedJournal(meta, epoch);
    if (!rows->empty() && meta.epoch == Epoch()) {
      return Die(UserError(
          absl::StatusCode::kDataLoss, "the journal " + folder_.JournalPath() + " is not whole",
          "it has " + std::to_string(rows->size()) + " rows but none that names its cluster",
          "restore the coordinator's folder from a backup"));
    }
    Config config;
    config.journal.new_cluster = ClusterId(io::RandomHex(8));
    config.version = OurVersion();
    config.ad_hoc.on = config_.ad_hoc;
    config.journal.accept = config_.accept_journal;
    config.leases.lease = config_.lease;
    const Journal::Memory memory = journal_->memory();
    config.journal.first_job = memory.newest_job + 1;
    if (memory.lost_commits > 0) {
      log_->Warning("the journal has lost its end: it serves an older state",
                    {{"lost", std::to_string(memory.lost_commits)},
                     {"commits", std::to_string(memory.commits + memory.lost_commits)},
                     {"journal", folder_.JournalPath()},
                     {"try", "regroup ps; submit again what is missing"}});
    }
    config.leases.heartbeat = config_.heartbeat;
    config.leases.agent_restart = config_.agent_restart;
    Core core(config, epoch, *rows, io::MonotonicNow());
    calls_.SetIdentity({core.cluster(), epoch, OurVersion()});
    sessions_.OnAttached([this](const std::string& node) { logs_.OnAttached(node); });
    obs::Fields fields = {{"folder", folder_.path()},
                          {"cluster", core.cluster().value()},
                          {"epoch", std::to_string(epoch.value())},
                          {"rows", std::to_string(rows->size())}};
    for (const Address& address : addresses_)
      fields.push_back({"listen", io::FormatAddress(address)});
    const std::string state_dir = folder_.path().substr(0, folder_.path().find_last_of('/'));
    loop_.NumberJobsBy(JobNumbers(state_dir + "/" + kJobNumberName));
    loop_.Start(std::move(core));
    if (stopping_) return;
    listener_.Start(*acceptor_,
                    Gate{token_, config_.insecure,
                         [this](const std::string& ip) { return sessions_.HasMemberAt(ip); }},
                    [this](io::UniqueFd client) { c10d_.Admit(std::move(client)); });
    log_->Info("the coordinator serves", fields);
  }

  // The journal's thread has others to serve, as the loop has: a history is decoded on a thread of
  // its own. Through io_, which outlives the journal and that thread.
  void ReadHistory(const JobId& job, std::function<void(absl::StatusOr<JobView>)> done) {
    journal_->ReadFolder(JobFolder(job), [this, job, done = std::move(done)](
                                             absl::StatusOr<Journal::Batch> rows) mutable {
      boost::asio::post(histories_, [this, job, done = std::move(done), rows = std::move(rows)] {
        boost::asio::post(io_, [this, done, view = JobOf(rows, job)] {
          loop_.Post([done, view](Instant) { done(view); });
        });
      });
    });
  }

  void WarnOfAcceptedJournal(const MetaRow& meta, Epoch epoch) {
    log_->Warning(
        "--accept-journal: a journal that is older than its fleet is used",
        {{"epoch_seen", std::to_string(meta.older_than.value())},
         {"epoch", std::to_string(epoch.value())},
         {"lost", "every job, generation and commit that a newer journal had"},
         {"nodes",
          "one that holds a generation which this journal never gave stays away until that "
          "has ended"}});
  }

  // ---- Outlet ----

  void CarryOut(Action action) override {
    std::visit(
        wire::Overloaded{
            [&](SendWelcome& a) {
              Answer(a.session, [&](auto& m) { *m.mutable_welcome() = ToProto(a.welcome); });
            },
            [&](SendOrder& a) { sessions_.SendOrder(a.session, a.order); },
            [&](AckReport& a) {
              Answer(a.session,
                     [&](auto& m) { m.mutable_report_ack()->set_number(a.number.value()); });
            },
            [&](AnswerCommit& a) {
              Answer(a.session, [&](auto& m) { *m.mutable_commit_answer() = ToProto(a.answer); });
            },
            [&](AnswerLaunch& a) {
              Answer(a.session, [&](auto& m) {
                m.mutable_launch_answer()->set_job(a.job.value());
                if (!a.refused.ok())
                  *m.mutable_launch_answer()->mutable_refused() = RefusedFrom(a.refused);
              });
            },
            [&](SendNews& a) {
              pb::CoordinatorMessage message;
              message.mutable_news()->set_job(a.job.value());
              *message.mutable_news()->mutable_event() = ToProto(a.event);
              sessions_.SendNews(a.session, std::move(message));
            },
            [&](SendResult& a) {
              Answer(a.session,
                     [&](auto& m) { *m.mutable_result()->mutable_job() = ShownResult(*a.job); });
            },
            [&](CloseSession& a) { sessions_.Close(a.session, a.why); },
            [&](Probe& a) { CarryOutProbe(a); },
            [&](coordinator::Answer& a) { calls_.Answer(a.call, a.reply); },
            [&](StepDown& a) { boost::asio::post(io_, [this, why = a.why] { Die(why); }); },
            [&](Quit&) {
              boost::asio::post(io_, [this] {
                log_->Info("every job is over and told: the coordinator ends");
                folder_.ForgetToken();  // The next run has its own.
                BeginStop(0, absl::UnavailableError("the coordinator has ended"));
              });
            },
        },
        action);
  }

  template <class Fill>
  void Answer(SessionId session, const Fill& fill) {
    pb::CoordinatorMessage message;
    fill(message);
    sessions_.SendAnswer(session, std::move(message));
  }

  void CarryOutProbe(const Probe& probe) {
    Probed probed{probe.node, probe.job, probe.generation, ProbeResult::kSilent};
    prober_.Probe(probe.address, [this, probed](ProbeResult result) mutable {
      probed.result = result;
      loop_.Post([this, probed](Instant received) { loop_.Step(received, probed); });
    });
  }

  void Happened(const JobId& job, const JobEvent& event) override { logs_.Happened(job, event); }

  void Fatal(const absl::Status& why) override {
    boost::asio::post(io_, [this, why] { Die(why); });
  }

  // ---- the end ----

  void Die(const absl::Status& why) {
    if (exit_status_ == 0) {
      const UserErrorParts parts = PartsOf(why);
      log_->Error(parts.what, {{"because", parts.because}, {"try", parts.try_this}});
      std::fputs(RenderUserError(why).c_str(), stderr);
    }
    BeginStop(kExitInternal, absl::UnavailableError("the coordinator cannot go on"));
  }

  void BeginStop(int exit_status, const absl::Status& why) {
    exit_status_ = std::max(exit_status_, exit_status);
    if (std::exchange(stopping_, true)) return;
    listener_.Stop();
    // Durable first; then every call is finished by us; then the server has nothing left to wait
    // for.
    loop_.Stop([this, why] {
      calls_.EndAll(why, [this, why] {
        logs_.EndAll(why, [this, why] {
          sessions_.CloseAll(why, [this] { boost::asio::post(io_, [this] { StopServer(); }); });
        });
      });
      // Readers that do not read are cut by the server's own end.
      limit_.expires_after(std::chrono::seconds(3));
      limit_.async_wait([this](const boost::system::error_code& error) {
        if (!error) StopServer();
      });
    });
  }

  void EndUnread(std::set<std::string> peers) {
    boost::asio::post(histories_, [this, peers = std::move(peers)] {
      const int ended = listener_.connections().EndUnread(peers);
      log_->Warning("readers were cut and do not read: their connections are ended",
                    {{"peers", std::to_string(peers.size())}, {"ended", std::to_string(ended)}});
    });
  }

  void StopServer() {
    if (stopper_.joinable()) return;
    // It waits until every call is over, and calls are finished by the loop: so it runs beside it.
    absl::StatusOr<std::thread> stopper = io::StartThread([this] {
      server_.Stop(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
      boost::asio::post(io_, [this] { io_.stop(); });
    });
    if (!stopper.ok()) {
      limit_.expires_after(std::chrono::milliseconds(100));
      return limit_.async_wait([this](const boost::system::error_code& error) {
        if (!error) StopServer();
      });
    }
    stopper_ = *std::move(stopper);
    // gRPC waits for what is under way to one that does not read.
    limit_.expires_after(std::chrono::seconds(2));
    limit_.async_wait([this](const boost::system::error_code& error) {
      if (!error) listener_.connections().EndAll();
    });
  }

 public:
  ~DaemonImpl() override {
    if (stopper_.joinable()) stopper_.join();
    log_->Flush();
  }

 private:
  const CoordinatorConfig config_;
  const Folder folder_;
  const std::string token_;
  const std::unique_ptr<obs::Logger> log_;
  boost::asio::io_context io_{1};
  MemoryGuard memory_;
  Listener listener_;
  C10dDoor c10d_;
  std::vector<Address> addresses_;
  boost::asio::thread_pool histories_{1};
  FreeSpace free_space_{[path = folder_.path()] { return FreeBytesAt(path); }};
  const std::unique_ptr<Journal> journal_;
  CoreLoop loop_;
  Sessions sessions_;
  Calls calls_;
  LogRelay logs_;
  Prober prober_;
  Methods methods_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  CallServer server_{[this](ServerCall& call) { return methods_.Open(call); }};
  boost::asio::steady_timer limit_{io_};
  std::thread stopper_;
  bool stopping_ = false;
  int exit_status_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Open(const CoordinatorConfig& config) {
  RETURN_IF_ERROR(Validate(config));
  ASSIGN_OR_RETURN(std::vector<Address> addresses, ListenAddresses(config));
  ASSIGN_OR_RETURN(const StateDirectory state,
                   DefaultStateDirectory(config.state_dir, /*service=*/true));
  ASSIGN_OR_RETURN(const std::string tightened, MakeStateDirectory(state.path));
  for (const std::string& notice : {state.notice, tightened}) {
    if (!notice.empty()) std::fprintf(stderr, "regroup: %s\n", notice.c_str());
  }
  // The folder is named by the port: one that the kernel chooses has to be known first.
  if (!addresses.empty() && addresses.front().port == 0) {
    ASSIGN_OR_RETURN(const io::UniqueFd chosen, io::ListenTcp(addresses.front()));
    ASSIGN_OR_RETURN(const Address bound, io::LocalAddressOf(chosen.get()));
    for (Address& address : addresses) address.port = bound.port;
  }
  ASSIGN_OR_RETURN(
      Folder folder,
      Folder::Acquire(addresses.empty() ? LocalCoordinatorFolder(state.path)
                                        : CoordinatorFolder(state.path, addresses.front().port)));
  obs::LogConfig log_config;
  log_config.path = config.log_file;
  if (config.ad_hoc && config.log_file.empty())
    log_config.path = folder.path() + "/" + kCoordinatorLogName;
  log_config.json = config.log_json;
  ASSIGN_OR_RETURN(std::unique_ptr<obs::Logger> log, obs::Logger::Create(log_config));
  std::string token;
  if (!addresses.empty()) {
    ASSIGN_OR_RETURN(const std::string given, GivenToken(config.token_file));
    ASSIGN_OR_RETURN(token, folder.Token(given));
  }
  auto daemon =
      std::make_unique<DaemonImpl>(config, std::move(folder), std::move(token), std::move(log));
  RETURN_IF_ERROR(daemon->Listen(addresses));
  return std::unique_ptr<Daemon>(std::move(daemon));
}

}  // namespace regroup::coordinator

namespace regroup {

int RunCoordinator(const CoordinatorConfig& config) {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // A journal that may not grow is an error that is told.
  signal(SIGCHLD, SIG_IGN);  // The process of torchrun's connections is nobody's to wait for.
  // Meant for workers, but sent to every process of a batch job's step.
  for (int number : {SIGUSR1, SIGUSR2}) signal(number, SIG_IGN);
  io::RaiseDescriptorLimit();  // A session is one.
  // Debian's Abseil looks for cycles of locks at each one that is taken, in a graph of all mutexes
  // of the process behind one lock.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // Never undone: gRPC's end joins a poller that sleeps up to 10 s once a write has had to wait.
  grpc_init();
  absl::StatusOr<std::unique_ptr<coordinator::Daemon>> daemon = coordinator::Daemon::Open(config);
  if (!daemon.ok()) {
    std::fputs(RenderUserError(daemon.status()).c_str(), stderr);
    return coordinator::kExitInternal;
  }
  if (config.insecure) {
    std::fputs(
        "regroup: --insecure: whoever reaches the port may do everything, run programs too\n",
        stderr);
  }
  return (*daemon)->Run(/*catch_signals=*/true);
}

}  // namespace regroup
