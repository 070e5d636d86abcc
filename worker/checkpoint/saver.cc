#include "worker/checkpoint/saver.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"
#include "worker/checkpoint/checksum.h"

namespace regroup::worker {
namespace {

using std::chrono::steady_clock;

constexpr int kWriterNiceness = 5;  // Training goes first.
constexpr std::size_t kVoidAttempts = 8;
constexpr char kHashBorder[] = " ";

}  // namespace

absl::StatusOr<std::unique_ptr<Saver>> Saver::Create(const Repository& repository, CommitGate* gate,
                                                     SaverOptions options,
                                                     const std::vector<TensorInfo>& tensors) {
  std::unique_ptr<Saver> saver(new Saver(repository, gate, std::move(options), tensors));
  for (std::size_t slot = 0; slot < saver->taken_.size(); ++slot) {
    const SaverOptions& how = saver->options_;
    ASSIGN_OR_RETURN(
        ShardImage image,
        ShardImage::Create(tensors, how.part.value_or(EvenPart(tensors, how.rank, how.world_size)),
                           how.rank, how.world_size));
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
  if (options_.known_sound)
    retention_.NoteSound(options_.known_sound->first, options_.known_sound->second);
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
                 const std::vector<StateTensor>& state, const Hashes& hashes) {
  Request request{0,          next_attempt_++,
                  step,       std::move(counters),
                  for_notice, absl::StrCat(hashes.by_all, kHashBorder, hashes.by_place),
                  {}};
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
    Carried carried = Commit(request);
    {
      const std::scoped_lock lock(mutex_);
      taken_[request.slot] = false;
    }
    changed_.notify_all();
    Settle(request, carried);
    {
      const std::scoped_lock lock(mutex_);
      outcomes_.push_back(std::move(carried.outcome));
      requests_.pop_front();
    }
    changed_.notify_all();
  }
}

Saver::Carried Saver::Commit(const Request& request) {
  Carried carried;
  SaveOutcome& outcome = carried.outcome;
  outcome.attempt = request.attempt;
  outcome.step = request.step;
  outcome.for_notice = request.for_notice;
  outcome.status = WriteAndReport(request, carried.file);
  outcome.bytes = carried.file.bytes;
  if (outcome.status.ok() && options_.rank == 0) {
    outcome.status = Publish(request, carried);
    outcome.already_there = absl::IsAlreadyExists(outcome.status);
  }
  outcome.took = steady_clock::now() - request.begun;
  return carried;
}

void Saver::Settle(const Request& request, Carried& carried) {
  SaveOutcome& outcome = carried.outcome;
  if (outcome.status.ok() && !request.for_notice) {
    outcome.verification = Verify(request, carried.file);
    if (outcome.verification.ok() && options_.rank == 0)
      retention_.NoteSound(request.step, carried.record);
    // What was given up is no finding, and what rank 0 did not hear in time it reads itself.
    if (!absl::IsDataLoss(outcome.verification)) outcome.verification = absl::OkStatus();
  }
  if (options_.rank != 0) return;
  outcome.retention = Tidy(request, carried);
  if (absl::IsCancelled(outcome.retention)) outcome.retention = absl::OkStatus();
}

absl::Status Saver::Verify(const Request& request, const FileInfo& file) {
  const std::string directory = DirectoryOf(request);
  const absl::Status sound = ScanShard(absl::StrCat(directory, "/", file.name), file,
                                       [&] { return GivenUp(request.attempt); });
  if (absl::IsCancelled(sound)) return sound;
  const Reports reports(directory);
  if (options_.rank == 0) {
    if (!sound.ok()) return absl::DataLossError(sound.message());
    return reports.AwaitVerdicts(options_.world_size, PatienceFor(request));
  }
  // Rank 0 judges: only it knows whether this attempt became a commit, and may have removed it.
  reports.TellVerdict(options_.rank, sound);
  return absl::OkStatus();
}

std::string Saver::DirectoryOf(const Request& request) const {
  return repository_.AttemptPath(request.step, options_.generation, request.attempt);
}

Patience Saver::PatienceFor(const Request& request) const {
  return {options_.patience, [this, attempt = request.attempt] { return GivenUp(attempt); }};
}

// Whether the record of the step names this attempt, or might: its files must stay then.
bool Saver::Exists(const Request& request) const {
  const absl::StatusOr<Manifest> committed = repository_.ReadManifest(request.step);
  if (!committed.ok()) return !absl::IsNotFound(committed.status());
  return committed->generation == options_.generation && committed->attempt == request.attempt;
}

void Saver::VoidUnanswered(std::size_t kept) {
  while (unanswered_.size() > kept) {
    const Unanswered& last = unanswered_.back();
    repository_.Unstage(last.staged);
    void_.push_back({last.step, last.attempt});
    unanswered_.pop_back();
  }
}

absl::Status Saver::Tidy(const Request& request, const Carried& carried) {
  const bool committed = carried.outcome.status.ok();
  const bool open = !unanswered_.empty() && unanswered_.back().attempt == request.attempt;
  // A record that could be linked but not made durable is there, and so are its files.
  if (!committed && !open && !Exists(request)) void_.push_back({request.step, request.attempt});
  if (committed) VoidUnanswered(0);
  while (void_.size() > kVoidAttempts) void_.pop_front();
  absl::Status result;
  if (committed) {
    // What was told has done its work; what stays beside the files is only what the record names.
    result = Reports(DirectoryOf(request)).Remove();
    if (!request.for_notice)
      result.Update(retention_.Apply([&] { return GivenUp(request.attempt); }));
  }
  for (const auto& [step, attempt] : void_)
    result.Update(repository_.RemoveAttempt(step, options_.generation, attempt));
  return result;
}

absl::Status Saver::WriteAndReport(const Request& request, FileInfo& file) {
  const std::string directory = DirectoryOf(request);
  const Reports reports(directory);
  const auto write = [&]() -> absl::Status {
    RETURN_IF_ERROR(repository_.PrepareAttempt(request.step, options_.generation, request.attempt));
    const ShardImage& image = images_[request.slot];
    ASSIGN_OR_RETURN(file, WriteShard(image, absl::StrCat(directory, "/", image.info().name),
                                      [&] { return GivenUp(request.attempt); }));
    if (options_.rank == 0) return absl::OkStatus();
    RETURN_IF_ERROR(io::SyncDirectory(directory));
    return reports.Tell({options_.rank, file, request.hashes});
  };
  const absl::Status written = write();
  // Tells rank 0, which would find out by waiting; where not even this can be written, it does
  // wait.
  if (!written.ok() && options_.rank != 0)
    reports.TellFailure(options_.rank, std::string(written.message()));
  return written;
}

absl::Status Saver::Publish(const Request& request, Carried& carried) {
  Manifest manifest{.job = options_.job,
                    .generation = options_.generation,
                    .attempt = request.attempt,
                    .step = request.step,
                    .mesh = {options_.world_size, options_.group, options_.strategy},
                    .model = options_.model,
                    .counters = request.counters,
                    .settings = options_.settings,
                    .tensors = tensors_,
                    .files = {carried.file}};
  ASSIGN_OR_RETURN(
      std::vector<ShardReport> others,
      Reports(DirectoryOf(request)).AwaitFiles(options_.world_size, PatienceFor(request)));
  // Of the rank's own, then of the others in order.
  std::vector<std::pair<std::string_view, std::string_view>> states;
  const auto add = [&](std::string_view hashes) {
    const std::size_t border = std::min(hashes.find(kHashBorder), hashes.size());
    states.emplace_back(hashes.substr(0, border), hashes.substr(border));
  };
  add(request.hashes);
  for (const ShardReport& other : others) add(other.state);
  for (std::size_t r = 1; r < states.size(); ++r) {
    const std::size_t same = r % static_cast<std::size_t>(options_.group);
    const bool differs = states[r].first != states[0].first;
    if (!differs && states[r].second == states[same].second) continue;
    return absl::DataLossError(absl::StrCat("rank ", r, " no longer holds the same as rank ",
                                            differs ? 0 : same,
                                            ", so their files are not of one training"));
  }
  for (ShardReport& other : others) manifest.files.push_back(std::move(other.file));
  if (options_.owner != nullptr) RETURN_IF_ERROR(options_.owner->Check());
  // Everything slow comes before the question: a commit that was accepted is published at once.
  ASSIGN_OR_RETURN(const Repository::StagedCommit staged, repository_.Stage(std::move(manifest)));
  if (gate_ != nullptr) RETURN_IF_ERROR(AskGate(request, staged));
  carried.record = staged.record;
  return repository_.Publish(staged, [&] { return GivenUp(request.attempt); });
}

absl::Status Saver::AskGate(const Request& request, const Repository::StagedCommit& staged) {
  std::error_code ignored;
  const CommitQuestion question{
      request.attempt, request.step, Xxh3Hex(std::as_bytes(std::span(staged.record))),
      std::filesystem::absolute(DirectoryOf(request), ignored).string(), request.for_notice};
  const auto late = steady_clock::now() + options_.patience;
  absl::Status answer =
      gate_->Ask(question, [&] { return GivenUp(request.attempt) || steady_clock::now() > late; });
  if (absl::IsFailedPrecondition(answer)) repository_.Unstage(staged);
  if (answer.ok() || absl::IsFailedPrecondition(answer)) return answer;
  VoidUnanswered(1);
  unanswered_.push_back({request.step, request.attempt, staged});
  if (!GivenUp(request.attempt) && steady_clock::now() > late) {
    return absl::Status(
        answer.code(), absl::StrCat(std::string(answer.message()), " within ",
                                    Seconds(options_.patience), " s; --save-timeout waits longer"));
  }
  return answer;
}

}  // namespace regroup::worker
