#include "worker/train/control_client.h"

#include <google/protobuf/util/json_util.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/io/unix_socket.h"
#include "proto/local.pb.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kMaxLineBytes = 64 << 10;
constexpr Duration kFirstRedial = milliseconds(50), kLastRedial = std::chrono::seconds(2);
constexpr Duration kReportEvery =
    milliseconds(25);  // A step of a tiny model takes less than a millisecond.
constexpr Duration kLastWords = milliseconds(100);

std::string LineOf(const local::WorkerLine& message) {
  std::string text;
  CHECK(google::protobuf::util::MessageToJsonString(message, &text).ok());
  return text + "\n";
}

std::string HelloLine(const ControlOptions& options) {
  local::WorkerLine line;
  local::WorkerHello& hello = *line.mutable_hello();
  hello.set_version(kVersion);
  hello.set_job(options.job);
  hello.set_generation(options.generation);
  hello.set_rank(options.rank);
  hello.set_local_rank(options.local_rank);
  hello.set_token(options.token);
  hello.set_takes_notice(options.takes_notice);
  return LineOf(line);
}

std::string ReportLine(const WorkerReport& report) {
  local::WorkerLine line;
  local::Progress& progress = *line.mutable_progress();
  progress.set_step(report.step);
  progress.set_samples(report.samples);
  if (report.tokens) progress.set_tokens(*report.tokens);
  if (report.loss) progress.set_loss(*report.loss);
  if (report.tokens_per_second) progress.set_tokens_per_second(*report.tokens_per_second);
  if (report.restored_step) progress.set_restored_step(*report.restored_step);
  if (report.init_s) progress.set_init_s(*report.init_s);
  if (report.restore_s) progress.set_restore_s(*report.restore_s);
  if (report.first_step_s) progress.set_first_step_s(*report.first_step_s);
  if (report.checkpoint_s) progress.set_checkpoint_s(*report.checkpoint_s);
  return LineOf(line);
}

std::string QuestionLine(const CommitQuestion& question) {
  local::WorkerLine line;
  local::CommitRequest& commit = *line.mutable_commit();
  commit.set_attempt(question.attempt);
  commit.set_step(question.step);
  commit.set_manifest_hash(question.manifest_hash);
  commit.set_path(question.path);
  commit.set_for_notice(question.for_notice);
  return LineOf(line);
}

std::string FailureLine(const std::string& text) {
  local::WorkerLine line;
  line.mutable_communicator_failed()->set_text(text.substr(0, kMaxLineBytes / 8));
  return LineOf(line);
}

}  // namespace

std::unique_ptr<ControlClient> ControlClient::Start(ControlOptions options) {
  std::unique_ptr<ControlClient> client(new ControlClient(std::move(options)));
  client->thread_ = std::thread([c = client.get()] { c->Run(); });
  return client;
}

ControlClient::ControlClient(ControlOptions options)
    : options_(std::move(options)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      redial_after_(kFirstRedial) {
  CHECK(wake_);
}

ControlClient::~ControlClient() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  Wake();
  thread_.join();
}

void ControlClient::Flush() {
  std::unique_lock lock(mutex_);
  Wake();
  changed_.wait_for(lock, kLastWords, [&] { return Sent(); });
}

void ControlClient::Wake() {
  const std::uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
}

bool ControlClient::Sent() const {
  return idle_ && !report_due_ && !failure_due_ && !question_due_;
}

void ControlClient::Report(const WorkerReport& report) {
  const std::scoped_lock lock(mutex_);
  report_ = report;
  report_due_ = true;
  Wake();
}

void ControlClient::CommunicatorFailed(std::string text) {
  std::unique_lock lock(mutex_);
  failure_ = std::move(text);
  failure_due_ = true;
  Wake();
  changed_.wait_for(lock, kLastWords, [&] { return idle_ && !failure_due_; });
}

std::optional<Duration> ControlClient::notice() const {
  const std::scoped_lock lock(mutex_);
  return notice_;
}

absl::Status ControlClient::Ask(const CommitQuestion& question,
                                const std::function<bool()>& cancelled) {
  std::unique_lock lock(mutex_);
  question_ = question;
  question_due_ = true;
  answer_.reset();
  Wake();
  while (!answer_) {
    changed_.wait_for(lock, milliseconds(20));
    if (answer_) break;
    lock.unlock();
    const bool over = cancelled();
    lock.lock();
    if (over && !answer_) {
      question_.reset();
      question_due_ = false;
      return absl::UnavailableError(absl::StrCat("the coordinator has not answered whether step ",
                                                 question.step, " may be committed"));
    }
  }
  return *answer_;
}

void ControlClient::Run() {
  next_dial_ = next_report_ = steady_clock::now();
  for (;;) {
    const auto now = steady_clock::now();
    if (!socket_ && now >= next_dial_) Dial();
    const auto again = Collect(now);
    {
      const std::scoped_lock lock(mutex_);
      if (stop_) return;
    }
    const auto pause = std::chrono::ceil<milliseconds>(again - steady_clock::now()).count();
    pollfd items[] = {
        {wake_.get(), POLLIN, 0},
        {socket_.get(), static_cast<short>(POLLIN | (outgoing_.empty() ? 0 : POLLOUT)), 0}};
    (void)poll(items, 2, static_cast<int>(std::clamp<std::int64_t>(pause, 0, 60'000)));
    std::uint64_t ignored = 0;
    if (items[0].revents != 0) (void)!read(wake_.get(), &ignored, sizeof ignored);
    if (socket_ && (items[1].revents & POLLOUT) != 0) Write();
    if (socket_ && (items[1].revents & (POLLIN | POLLHUP | POLLERR)) != 0) Read();
  }
}

void ControlClient::Dial() {
  absl::StatusOr<io::UniqueFd> socket = io::ConnectUnix(options_.socket);
  if (!socket.ok()) return HangUp();
  socket_ = *std::move(socket);
  redial_after_ = kFirstRedial;
  outgoing_ = HelloLine(options_);
  const std::scoped_lock lock(mutex_);
  // A new agent knows nothing yet.
  report_due_ = report_.has_value();
  failure_due_ = failure_.has_value();
  question_due_ = question_.has_value();
}

void ControlClient::HangUp() {
  socket_.reset();
  incoming_.clear();
  outgoing_.clear();
  next_dial_ = steady_clock::now() + redial_after_;
  redial_after_ = std::min(redial_after_ * 2, kLastRedial);
}

steady_clock::time_point ControlClient::Collect(steady_clock::time_point now) {
  const std::scoped_lock lock(mutex_);
  const auto much_later = now + std::chrono::minutes(1);
  idle_ = outgoing_.empty();
  if (!socket_) return next_dial_;
  if (std::exchange(failure_due_, false)) outgoing_ += FailureLine(*failure_);
  if (std::exchange(question_due_, false)) outgoing_ += QuestionLine(*question_);
  auto again = much_later;
  // One at a time: while the agent does not read, newer reports replace the one that waits.
  if (report_due_ && outgoing_.empty() && now >= next_report_) {
    outgoing_ += ReportLine(*report_);
    report_due_ = false;
    next_report_ = now + kReportEvery;
  } else if (report_due_ && outgoing_.empty()) {
    again = next_report_;
  }
  idle_ = outgoing_.empty();
  if (idle_) changed_.notify_all();
  return again;
}

void ControlClient::Write() {
  const ssize_t sent =
      send(socket_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) {
    outgoing_.erase(0, static_cast<std::size_t>(sent));
  } else if (errno != EAGAIN && errno != EINTR) {
    HangUp();
  }
}

void ControlClient::Read() {
  std::array<char, 4096> buffer;
  const ssize_t got = recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return HangUp();
  incoming_.append(buffer.data(), static_cast<std::size_t>(got));
  for (std::size_t end; (end = incoming_.find('\n')) != std::string::npos;
       incoming_.erase(0, end + 1)) {
    Obey(incoming_.substr(0, end));
  }
  if (incoming_.size() > kMaxLineBytes) HangUp();
}

void ControlClient::Obey(const std::string& text) {
  local::AgentLine line;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // A newer agent may say more.
  if (!google::protobuf::util::JsonStringToMessage(text, &line, options).ok()) return;
  const std::scoped_lock lock(mutex_);
  if (line.has_notice() && !notice_) {
    // Not a number, negative or beyond reason: as good as none left.
    const double left = line.notice().left_s();
    notice_ = left > 0 && left < 1e6 ? FromSeconds(left) : Duration::zero();
  } else if (line.has_commit() && question_ && line.commit().attempt() == question_->attempt &&
             line.commit().step() == question_->step) {
    answer_ = line.commit().accepted() ? absl::OkStatus()
                                       : absl::FailedPreconditionError(absl::StrCat(
                                             "the coordinator refused the commit of step ",
                                             question_->step, ": ", line.commit().why_not()));
    question_.reset();
    changed_.notify_all();
  }
}

}  // namespace regroup::worker
