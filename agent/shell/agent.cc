#include "agent/shell/agent.h"

#include <fcntl.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/user_error.h"
#include "common/io/proc.h"
#include "common/io/thread.h"
#include "common/rpc/convert.h"
#include "common/rpc/describe_listener.h"

namespace regroup::agent {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using namespace std::chrono_literals;

constexpr Duration kRefusedWait =
    2s;  // A coordinator that refused us, or that we refused, is asked again seldom.
constexpr Duration kSlowDial = 1s;  // A host that is there answers sooner, if only with a refusal.
constexpr auto kGoodbye = 300ms;    // For the last messages to be read.
constexpr Duration kAwayLogInterval = 30s;
constexpr Duration kLastOutputLimit = 3s, kLastOutputCheck = 10ms;
constexpr int kMinConnections = 64;

// Of a coordinator that does not take us: the advice, too.
std::string WhyNot(const absl::Status& status) {
  const UserErrorParts parts = PartsOf(status);
  if (parts.try_this.empty()) return std::string(status.message());
  return absl::StrCat(parts.what, ": ", parts.because, " · ", parts.try_this);
}

GroupHost::Handler HandlerOf(std::function<void(Event)> post,
                             std::function<void(const GroupKey&)> output,
                             std::function<void(std::string)> warn,
                             std::function<void(std::string)> tell,
                             std::function<void(const NewGeneration&)> new_generation) {
  return {std::move(post), std::move(output), std::move(warn), std::move(tell),
          std::move(new_generation)};
}

std::uint64_t SeedOf(const NodeId& node) {
  return std::hash<std::string>()(node.value()) ^
         static_cast<std::uint64_t>(io::BootNow().time_since_epoch().count());
}

bool IgnoredFromBirth(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

Agent::Agent(asio::io_context& loop, AgentOptions options, NodeFolder& folder, Dialler& dialler,
             Front* front, obs::Logger* log)
    : loop_(loop),
      disk_(1),
      folder_(folder),
      dialler_(dialler),
      front_(front),
      log_(log),
      options_(std::move(options)),
      core_(options_.core, io::BootNow()),
      workers_(
          loop, io::UniqueFd(::fcntl(options_.worker_listener.get(), F_DUPFD_CLOEXEC, 3)),
          std::max(kMinConnections, 4 * options_.core.slots),
          [this](const GroupKey& key, int rank, int local_rank, const std::string& token) {
            return groups_.IsRank(key, rank, local_rank, token);
          },
          [this](Event event) { Post(std::move(event)); },
          [this](const std::string& text) { Warn(text); },
          [this](const GroupKey& key, int local_rank) {
            return groups_.NewerThan(key, local_rank);
          }),
      groups_(loop, disk_, options_.groups,
              HandlerOf([this](Event event) { Post(std::move(event)); },
                        [this](const GroupKey& key) {
                          if (front_ != nullptr) front_->Output(key, groups_.LogsOf(key));
                        },
                        [this](const std::string& text) { Log(text, true); },
                        [this](const std::string& text) { Warn(text); },
                        [this](const NewGeneration& next) { workers_.TellNewGeneration(next); })),
      logs_(options_.groups.log_root),
      backoff_(SeedOf(options_.core.node)),
      signals_(loop),
      core_timer_(loop),
      dial_timer_(loop),
      end_timer_(loop),
      name_(options_.core.name) {
  groups_.Follow(options_.core.cluster, options_.core.highest_epoch);
  if (options_.tells_of_gpus)
    gpus_ = std::make_unique<GpuWatch>(GpuWatch::Options{.devices = options_.groups.devices});
  if (front_ != nullptr) front_->WhenShown([this] { groups_.SetShown(front_->ShownSoFar()); });
}

Agent::~Agent() {
  if (front_ != nullptr) front_->WhenShown({});
  session_.reset();
  disk_.stop();
}

Agent::End Agent::Run() {
  WatchSignals();
  groups_.Scan([this](std::vector<RunRecord> records) { Post(Scanned{std::move(records)}); });
  Dial();
  loop_.run();
  End end = end_.value_or(End{});
  end.removing = groups_.removing();
  return end;
}

void Agent::Fatal(const absl::Status& why) {
  Log(absl::StrCat("fatal: ", std::string(why.message())), true);
  Post(CoordinatorRefused{RenderUserError(why)});
}

void Agent::Log(const std::string& text, bool warning) {
  if (log_ == nullptr) return;
  log_->Log(warning ? obs::Level::kWarning : obs::Level::kInfo, text, {});
}

void Agent::Warn(const std::string& text) {
  Log(text, true);
  if (front_ != nullptr) front_->Warned(text);
}

// ---- the core -----------------------------------------------------------------------------------

// Actions may cause events at once: those wait until the step that caused them is carried out.
void Agent::Post(Event event) {
  events_.push_back(std::move(event));
  if (!stepping_) Step();
}

void Agent::Step() {
  stepping_ = true;
  while (!events_.empty() && !end_) {
    const Event event = std::move(events_.front());
    events_.pop_front();
    const Effects effects = core_.Step(io::BootNow(), event);
    for (const std::string& note : effects.notes) Log(note);
    for (const Action& action : effects.actions) {
      std::visit([this](const auto& a) { Carry(a); }, action);
    }
  }
  stepping_ = false;
  ArmTimer();
}

void Agent::ArmTimer() {
  const std::optional<Instant> next = core_.NextDeadline();
  if (next == armed_) return;
  armed_ = next;
  if (!next) {
    core_timer_.cancel();
    return;
  }
  core_timer_.expires_after(std::max(Duration::zero(), *next - io::BootNow()));
  core_timer_.async_wait([this](error_code error) {
    if (error) return;
    armed_.reset();
    Post(Tick{});
  });
}

void Agent::WatchSignals() {
  std::set<int> watched(options_.ending_signals.begin(), options_.ending_signals.end());
  watched.insert(options_.forwarded_signals.begin(), options_.forwarded_signals.end());
  for (int signal : watched) {
    // `nohup` and a shell's `&` have said that this one is none of ours.
    if (!IgnoredFromBirth(signal)) signals_.add(signal);
  }
  WaitForSignal();
  sigset_t held;  // By the launch command, until now.
  ::sigemptyset(&held);
  for (int signal : {SIGUSR1, SIGUSR2}) ::sigaddset(&held, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &held, nullptr);
}

void Agent::WaitForSignal() {
  signals_.async_wait([this](error_code error, int signal) {
    if (error) return;
    if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) {
      Post(SignalCaught{signal});
    } else if (signal == SIGQUIT) {
      Post(SignalCaught{SIGINT});  // Ctrl-\ is a person as well, and leaves no core file.
    } else {
      groups_.Forward(signal);
    }
    WaitForSignal();
  });
}

// ---- the session --------------------------------------------------------------------------------

void Agent::Dial() {
  if (end_) return;
  dialler_.Find([this, started = io::BootNow()](absl::StatusOr<DialTarget> target) {
    if (end_) return;
    if (!target.ok()) {
      if (!core_.attached() && io::BootNow() - started > kSlowDial) Hurry();
      Away(WhyNot(target.status()));
      return RedialLater(backoff_.Next(dialler_.near()));
    }
    Connect(*target);
  });
}

void Agent::RedialLater(Duration wait) {
  dial_timer_.expires_after(wait);
  dial_timer_.async_wait([this](error_code error) {
    if (!error) Dial();
  });
}

// Until a coordinator has answered: nobody says when a network heals.
void Agent::Hurry() {
  backoff_.Hurry();
  dialler_.Hurry(true);
}

void Agent::Connect(const DialTarget& target) {
  target_ = target;
  dialled_at_ = io::BootNow();
  gpus_told_ = 0;
  Session::Handler handler;
  handler.message = [this](const v1::CoordinatorMessage& message) { OnMessage(message); };
  handler.broken = [this](const absl::Status& why) { OnBroken(why); };
  session_ = std::make_unique<Session>(loop_, target.connection, std::move(handler));
  Post(CoordinatorFound{target.address, target.dialled});
}

void Agent::OnBroken(const absl::Status& why) {
  session_.reset();
  if (end_) return loop_.stop();
  const bool refused = std::exchange(refused_, false);
  if (!core_.attached() && !refused && io::BootNow() - dialled_at_ > kSlowDial) Hurry();
  if (!refused) Away(std::string(why.message()));
  Post(CoordinatorAway{});
  RedialLater(refused ? kRefusedWait : backoff_.Next(target_ && target_->loopback));
}

void Agent::Away(const std::string& why) {
  if (front_ != nullptr) front_->Away(why);
  if (log_ == nullptr || !WorthLogging(why)) return;
  const std::string target = target_ ? target_->connection.target : "";
  const auto log = [this, target](const std::string& said) {
    log_->Warning("no coordinator", {{"why", said}, {"target", target}});
  };
  if (!target_ || !target_->remote || std::exchange(probing_, true)) return log(why);
  // Who listens there instead says more than how it broke.
  absl::StatusOr<std::thread> probe = io::StartThread(
      [this, &loop = loop_, remote = *target_->remote, why, log, alive = std::weak_ptr(alive_)] {
        const ListenerDescription found = DescribeListener(remote);
        const std::string said = found.kind == ListenerKind::kRegroup ? why : found.sentence;
        asio::post(loop, [this, said, log, alive] {
          if (!alive.lock()) return;
          probing_ = false;
          log(said);
        });
      });
  if (probe.ok()) return probe->detach();
  probing_ = false;
  log(why);
}

// The same again is told seldom.
bool Agent::WorthLogging(const std::string& why) {
  const Instant now = io::BootNow();
  if (away_logged_ && away_why_ == why && now < *away_logged_ + kAwayLogInterval) return false;
  away_logged_ = now;
  away_why_ = why;
  return true;
}

// By the coordinator: as it says, with its advice.
void Agent::Refused(const absl::Status& why) {
  const UserErrorParts parts = PartsOf(why);
  const std::string text =
      absl::StrCat(parts.what, parts.because.empty() ? "" : ": ", parts.because);
  if (log_ != nullptr && WorthLogging(text)) {
    log_->Warning("refused by the coordinator", {{"why", parts.what},
                                                 {"because", parts.because},
                                                 {"try", parts.try_this},
                                                 {"target", target_->connection.target}});
  }
  Post(CoordinatorRefused{RenderUserError(why)});
  if (front_ != nullptr && !end_) front_->Away(text);
}

// What a coordinator sends is checked like anything that comes from elsewhere.
void Agent::Malformed(const absl::Status& why) {
  Log(absl::StrCat("the coordinator sent what is no message of its protocol: ",
                   std::string(why.message())),
      true);
  session_.reset();
  Post(CoordinatorAway{});
  RedialLater(kRefusedWait);
}

void Agent::OnMessage(const v1::CoordinatorMessage& message) {
  const auto post = [this](auto value, auto make) {
    if (!value.ok()) return Malformed(value.status());
    Post(make(*std::move(value)));
  };
  Post(CoordinatorSpoke{});
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kWelcome: {
      absl::StatusOr<Welcome> welcome = FromProto(message.welcome());
      if (!welcome.ok()) return Malformed(welcome.status());
      name_ = welcome->name;
      groups_.LetAgentsBeAway(welcome->agent_restart);
      Post(Welcomed{*std::move(welcome)});
      if (!core_.attached()) return;
      dialler_.Answered();
      dialler_.Hurry(false);
      backoff_.Reset();
      away_logged_.reset();
      if (log_ != nullptr) {
        log_->Info("following the coordinator",
                   {{"target", target_->connection.target}, {"name", name_}});
      }
      if (front_ != nullptr) front_->Attached(name_);
      return;
    }
    case v1::CoordinatorMessage::kRefused:
      refused_ = true;
      return Refused(StatusFrom(message.refused()));
    case v1::CoordinatorMessage::kOrder:
      return post(FromProto(message.order()),
                  [](Order order) { return Ordered{std::move(order)}; });
    case v1::CoordinatorMessage::kReportAck:
      return Post(ReportAcked{ReportNo(message.report_ack().number())});
    case v1::CoordinatorMessage::kCommitAnswer:
      return post(FromProto(message.commit_answer()),
                  [](CommitAnswer a) { return CommitAnswered{std::move(a)}; });
    case v1::CoordinatorMessage::kLaunchAnswer: return OnLaunchAnswer(message.launch_answer());
    case v1::CoordinatorMessage::kNews: {
      absl::StatusOr<JobEvent> event = FromProto(message.news().event());
      if (!event.ok()) return;
      if (front_ != nullptr) front_->Happened(*event);
      const auto* joined = std::get_if<NodeJoined>(&event->body);
      if (joined != nullptr && joined->have > joined->max) Post(EnoughJoined{});
      return;
    }
    case v1::CoordinatorMessage::kResult: {
      absl::Status problem;
      JobView view = ShowableJob(message.result().job(), &problem);
      if (!problem.ok()) Warn(absl::StrCat(PartsOf(problem).what, ": ", PartsOf(problem).because));
      const int code = view.exit_code;
      if (front_ != nullptr) front_->Over(std::move(view));
      return Post(JobOver{code});
    }
    case v1::CoordinatorMessage::kOpenLogs:
      return OpenLogs(message.open_logs(), io::BootNow() + kLastOutputLimit);
    // A heartbeat's answer, or something newer than this agent.
    case v1::CoordinatorMessage::BODY_NOT_SET: return;
  }
}

// An exit is told before the last words of its rank are in the log files: what is to be read to its
// end waits for them, unless a disk hangs: then the reader is told that they are missing.
void Agent::OpenLogs(const v1::OpenLogs& asked, Instant limit) {
  const bool to_the_end = !asked.selection().follow();
  const bool pending = to_the_end && groups_.OutputPending(JobId(asked.selection().job()));
  if (pending && io::BootNow() < limit) {
    auto timer = std::make_shared<asio::steady_timer>(loop_, kLastOutputCheck);
    return timer->async_wait(
        [this, timer, asked, limit, alive = std::weak_ptr(alive_)](error_code) {
          if (alive.lock()) OpenLogs(asked, limit);
        });
  }
  if (target_) logs_.Open(target_->connection, options_.core.node, name_, asked, pending);
}

void Agent::OnLaunchAnswer(const v1::LaunchAnswer& answer) {
  if (answer.has_refused())
    return Post(CoordinatorRefused{RenderUserError(StatusFrom(answer.refused()))});
  Post(LaunchAccepted{});
  if (front_ != nullptr) front_->JobKnown(JobId(answer.job()));
}

template <class Message>
void Agent::Send(void (v1::AgentMessage::*set)(Message*), Message message) {
  if (!session_) return;
  v1::AgentMessage out;
  (out.*set)(new Message(std::move(message)));  // Its owner from here on.
  session_->Send(std::move(out));
}

// ---- carrying out -------------------------------------------------------------------------------

void Agent::Carry(const SendHello& action) {
  Send(&v1::AgentMessage::set_allocated_hello, ToProto(action.hello));
}

void Agent::Carry(const RememberCoordinator& action) {
  groups_.Follow(action.cluster, action.epoch);
  if (!options_.durable_memory) return;
  absl::Status saved = folder_.Remember(action.cluster, action.epoch);
  if (!saved.ok())
    Log(absl::StrCat("cannot remember the coordinator: ", std::string(saved.message())), true);
}

void Agent::Carry(const RefuseCoordinator& action) {
  session_.reset();
  Away(action.why);
  RedialLater(kRefusedWait);
}

void Agent::Carry(const BreakSession& action) {
  session_.reset();
  Hurry();
  Away(action.why);
  RedialLater(backoff_.Next(target_ && target_->loopback));
}

void Agent::Carry(const SendLaunch&) {
  if (!options_.launch) return;
  LaunchRequest request = *options_.launch;
  request.age += io::BootNow() - options_.started_at;
  Send(&v1::AgentMessage::set_allocated_launch, ToProto(request));
}

void Agent::Carry(const SendReport& action) {
  Send(&v1::AgentMessage::set_allocated_report, ToProto(action.report));
}
void Agent::Carry(const SendProgress& action) {
  Send(&v1::AgentMessage::set_allocated_progress, ToProto(action.progress));
}
void Agent::Carry(const SendCommit& action) {
  Send(&v1::AgentMessage::set_allocated_commit, ToProto(action.request));
}
void Agent::Carry(const SendNotice& action) {
  Send(&v1::AgentMessage::set_allocated_notice, ToProto(action.notice));
}

void Agent::Carry(const SendLeave& action) {
  v1::Leave leave;
  leave.set_signal(action.signal);
  leave.set_now(action.now);
  Send(&v1::AgentMessage::set_allocated_leave, std::move(leave));
}

void Agent::Carry(const ShowLeaving& action) {
  if (front_ != nullptr) front_->Leaving(action.signal, action.left, action.again);
}

void Agent::Carry(const SendHeartbeat& action) {
  if (session_ && session_->queued() > 0) return;  // What waits says as much.
  HeartbeatMessage heartbeat{action.obeyed, groups_.WarmBytes()};
  if (gpus_) {
    GpuWatch::Seen seen = gpus_->Latest();
    if (seen.number != gpus_told_) heartbeat.gpus = std::move(seen.gpus);
    gpus_told_ = seen.number;
  }
  Send(&v1::AgentMessage::set_allocated_heartbeat, ToProto(heartbeat));
}

void Agent::Carry(const TellNotice& action) {
  workers_.TellNotice(action.key, action.local_rank, action.left);
}
void Agent::Carry(const TellRetire& action) {
  workers_.TellRetire(action.key, action.local_rank, action.left);
}
void Agent::Carry(const TellCommit& action) { workers_.TellCommit(action.key, action.answer); }
void Agent::Carry(const StartCoordinator&) { dialler_.StartCoordinator(); }

void Agent::Carry(const Leave& action) {
  end_ = End{action.exit_code, action.why, action.gone};
  dial_timer_.cancel();
  if (!session_) return loop_.stop();
  session_->Finish();
  end_timer_.expires_after(kGoodbye);
  end_timer_.async_wait([this](error_code error) {
    if (!error) loop_.stop();
  });
}

}  // namespace regroup::agent
