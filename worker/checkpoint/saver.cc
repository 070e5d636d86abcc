#include "worker/checkpoint/saver.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"
#include "worker/checkpoint/checksum.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kMaxReportBytes = 64u << 20;
constexpr int kWriterNiceness = 5;  // Training goes first.
constexpr std::size_t kVoidAttempts = 8;

std::string ReportPath(const std::string& directory, int rank) {
  return absl::StrCat(directory, "/rank-", rank, ".report");
}
std::string FailurePath(const std::string& directory, int rank) {
  return absl::StrCat(directory, "/rank-", rank, ".failed");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Saver>> Saver::Create(const Repository& repository, CommitGate* gate,
                                                     SaverOptions options,
                                                     const std::vector<TensorInfo>& tensors) {
  std::unique_ptr<Saver> saver(new Saver(repository, gate, std::move(options), tensors));
  for (std::size_t slot = 0; slot < saver->taken_.size(); ++slot) {
    ASSIGN_OR_RETURN(ShardImage image,
                     ShardImage::Create(tensors, saver->options_.rank, saver->options_.world_size));
    saver->images_.push_back(std::move(image));
  }
  saver->thread_ = std::thread([s = saver.get()] { s->Run(); });
  return saver;
}

Saver::Saver(const Repository& repository, CommitGate* gate, SaverOptions options,
             std::vector<TensorInfo> tensors)
    : repository_(repository),
      gate_(gate),
      options_(std::move(options)),
      tensors_(std::move(tensors)),
      retention_(repository, options_.keep),
      next_attempt_(options_.first_attempt) {
  CHECK(options_.keep >= 2 && options_.rank >= 0 && options_.rank < options_.world_size);
}

Saver::~Saver() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool Saver::Busy() const {
  const std::scoped_lock lock(mutex_);
  return taken_[0] && taken_[1];
}

void Saver::Save(std::int64_t step, std::map<std::string, std::int64_t> counters, bool for_notice,
                 const std::vector<StateTensor>& state) {
  Request request{0, next_attempt_++, step, std::move(counters), for_notice, {}};
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !taken_[0] || !taken_[1]; });
    request.slot = taken_[0] ? 1 : 0;
    taken_[request.slot] = true;
  }
  images_[request.slot].Fill(state);
  request.begun = steady_clock::now();
  {
    const std::scoped_lock lock(mutex_);
    requests_.push_back(std::move(request));
  }
  changed_.notify_all();
}

void Saver::GiveUp() {
  const std::scoped_lock lock(mutex_);
  given_up_ = next_attempt_ - 1;
}

bool Saver::GivenUp(std::uint64_t attempt) const {
  const std::scoped_lock lock(mutex_);
  return stop_ || given_up_ >= attempt;
}

std::vector<SaveOutcome> Saver::TakeOutcomes() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(outcomes_, {});
}

void Saver::WaitIdle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return requests_.empty() && !taken_[0] && !taken_[1]; });
}

bool Saver::WaitIdle(Duration at_most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, at_most,
                           [&] { return requests_.empty() && !taken_[0] && !taken_[1]; });
}

void Saver::Run() {
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kWriterNiceness);
  for (;;) {
    Request request;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !requests_.empty(); });
      if (stop_) return;
      request = requests_.front();
    }
    SaveOutcome outcome = Carry(request);
    {
      const std::scoped_lock lock(mutex_);
      outcomes_.push_back(std::move(outcome));
      requests_.pop_front();
      taken_[request.slot] = false;
    }
    changed_.notify_all();
  }
}

SaveOutcome Saver::Carry(const Request& request) {
  SaveOutcome outcome;
  outcome.attempt = request.attempt;
  outcome.step = request.step;
  outcome.for_notice = request.for_notice;
  FileInfo file;
  outcome.status = WriteAndReport(request, file);
  outcome.bytes = file.bytes;
  if (outcome.status.ok() && options_.rank == 0) {
    outcome.status = Publish(request, std::move(file));
    outcome.already_there = absl::IsAlreadyExists(outcome.status);
  }
  if (options_.rank == 0) outcome.retention = Tidy(request, outcome.status.ok());
  outcome.took = steady_clock::now() - request.begun;
  return outcome;
}

// Whether the record of the step names this attempt, or might: its files must stay then.
bool Saver::Exists(const Request& request) const {
  const absl::StatusOr<Manifest> committed = repository_.ReadManifest(request.step);
  if (!committed.ok()) return !absl::IsNotFound(committed.status());
  return committed->generation == options_.generation && committed->attempt == request.attempt;
}

void Saver::VoidUnanswered() {
  if (!unanswered_) return;
  repository_.Unstage(unanswered_->staged);
  void_.push_back({unanswered_->step, unanswered_->attempt});
  unanswered_.reset();
}

absl::Status Saver::Tidy(const Request& request, bool committed) {
  const bool open = unanswered_ && unanswered_->attempt == request.attempt;
  // A record that could be linked but not made durable is there, and so are its files.
  if (!committed && !open && !Exists(request)) void_.push_back({request.step, request.attempt});
  if (committed) VoidUnanswered();
  while (void_.size() > kVoidAttempts) void_.pop_front();
  absl::Status result = committed ? retention_.Apply() : absl::OkStatus();
  for (const auto& [step, attempt] : void_)
    result.Update(repository_.RemoveAttempt(step, options_.generation, attempt));
  return result;
}

absl::Status Saver::WriteAndReport(const Request& request, FileInfo& file) {
  const std::string directory =
      repository_.AttemptPath(request.step, options_.generation, request.attempt);
  const auto write = [&]() -> absl::Status {
    RETURN_IF_ERROR(repository_.PrepareAttempt(request.step, options_.generation, request.attempt));
    const ShardImage& image = images_[request.slot];
    ASSIGN_OR_RETURN(file, WriteShard(image, absl::StrCat(directory, "/", image.info().name),
                                      [&] { return GivenUp(request.attempt); }));
    if (options_.rank == 0) return absl::OkStatus();
    RETURN_IF_ERROR(io::SyncDirectory(directory));
    return io::ReplaceFile(ReportPath(directory, options_.rank),
                           SerializeReport({options_.rank, file}), io::Durability::kVolatile, 0644);
  };
  const absl::Status written = write();
  // Tells rank 0, which would find out by waiting; where not even this can be written, it does
  // wait.
  if (!written.ok() && options_.rank != 0) {
    (void)io::ReplaceFile(FailurePath(directory, options_.rank), std::string(written.message()),
                          io::Durability::kVolatile, 0644);
  }
  return written;
}

absl::StatusOr<FileInfo> Saver::AwaitReport(const Request& request, int rank,
                                            steady_clock::time_point end) {
  const std::string directory =
      repository_.AttemptPath(request.step, options_.generation, request.attempt);
  for (milliseconds pause(1);; pause = std::min(pause * 2, milliseconds(20))) {
    const absl::StatusOr<std::string> text =
        io::ReadFile(ReportPath(directory, rank), kMaxReportBytes);
    if (text.ok()) {
      ASSIGN_OR_RETURN(const ShardReport report, ParseReport(*text));
      if (report.rank == rank) return report.file;
      return absl::DataLossError(
          absl::StrCat("the report of rank ", rank, " is one of rank ", report.rank));
    }
    if (const absl::StatusOr<std::string> failure =
            io::ReadFile(FailurePath(directory, rank), 4096);
        failure.ok()) {
      return absl::UnavailableError(
          absl::StrCat("rank ", rank, " could not write its file: ", *failure));
    }
    if (GivenUp(request.attempt)) return absl::CancelledError("the save was given up");
    if (steady_clock::now() > end) {
      return absl::DeadlineExceededError(absl::StrCat(
          "rank ", rank, " has not written its file within ", Seconds(options_.patience), " s"));
    }
    std::this_thread::sleep_for(pause);
  }
}

absl::Status Saver::Publish(const Request& request, FileInfo file) {
  Manifest manifest{options_.job,
                    options_.generation,
                    request.attempt,
                    request.step,
                    options_.world_size,
                    request.counters,
                    options_.settings,
                    tensors_,
                    {}};
  manifest.files.push_back(std::move(file));
  const auto end = steady_clock::now() + options_.patience;
  for (int r = 1; r < options_.world_size; ++r) {
    ASSIGN_OR_RETURN(FileInfo other, AwaitReport(request, r, end));
    manifest.files.push_back(std::move(other));
  }
  if (options_.owner != nullptr) RETURN_IF_ERROR(options_.owner->Check());
  // Everything slow comes before the question: a commit that was accepted is published at once.
  ASSIGN_OR_RETURN(const Repository::StagedCommit staged, repository_.Stage(std::move(manifest)));
  const std::string directory =
      repository_.AttemptPath(request.step, options_.generation, request.attempt);
  if (gate_ != nullptr) {
    std::error_code ignored;
    const CommitQuestion question{
        request.attempt, request.step, Xxh3Hex(std::as_bytes(std::span(staged.record))),
        std::filesystem::absolute(directory, ignored).string(), request.for_notice};
    const auto late = steady_clock::now() + options_.patience;
    const absl::Status answer = gate_->Ask(
        question, [&] { return GivenUp(request.attempt) || steady_clock::now() > late; });
    if (absl::IsFailedPrecondition(answer)) {
      repository_.Unstage(staged);
      return answer;
    }
    if (!answer.ok()) {
      VoidUnanswered();
      unanswered_ = Unanswered{request.step, request.attempt, staged};
      return answer;
    }
  }
  RETURN_IF_ERROR(repository_.Publish(staged));
  // The reports have done their work; what stays beside the files is only what the record names.
  for (int r = 1; r < options_.world_size; ++r) (void)unlink(ReportPath(directory, r).c_str());
  return absl::OkStatus();
}

}  // namespace regroup::worker
