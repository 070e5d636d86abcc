#include "worker/checkpoint/repository.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/io/fd.h"
#include "common/io/files.h"
#include "worker/checkpoint/reports.h"

namespace regroup::worker {
namespace {

constexpr std::size_t kMaxRecordBytes = 64u << 20;
constexpr Duration kNetworkDelay = std::chrono::seconds(10);
constexpr std::chrono::milliseconds kLook{10};
constexpr char kStepPrefix[] = "step-", kDeletedPrefix[] = ".deleted-",
               kDamagedPrefix[] = ".damaged-", kTemporaryPrefix[] = ".tmp-";

// "step-120" → 120. Only the one way in which this module writes it.
std::optional<std::int64_t> StepOf(const std::string& name) {
  std::int64_t step = 0;
  if (!absl::StartsWith(name, kStepPrefix) ||
      !absl::SimpleAtoi(name.substr(sizeof kStepPrefix - 1), &step) || step < 0 ||
      name != absl::StrCat(kStepPrefix, step)) {
    return std::nullopt;
  }
  return step;
}

struct AttemptId {
  std::uint64_t generation = 0, attempt = 0;
};
std::optional<AttemptId> AttemptOf(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '-');
  AttemptId id;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &id.generation) ||
      !absl::SimpleAtoi(parts[1], &id.attempt))
    return std::nullopt;
  return id;
}

absl::Status MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) return io::ErrnoStatus(errno, path);
  return absl::OkStatus();
}

// link, or where a file system has no links, a rename that refuses to replace.
int LinkOrRename(const std::string& from, const std::string& to) {
  if (link(from.c_str(), to.c_str()) == 0) return 0;
  if (errno != EPERM && errno != EOPNOTSUPP && errno != EMLINK) return errno;
  return renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0 ? 0 : errno;
}

absl::Status NotWritable(const std::string& path, const absl::Status& why) {
  return UserError(
      absl::StatusCode::kFailedPrecondition,
      absl::StrCat("checkpoint directory ", path, " cannot be written"), std::string(why.message()),
      "give another one with --checkpoint-dir DIR, or make this one writable for the job's user");
}

absl::Status ProbeWritable(const std::string& directory) {
  const std::string probe =
      absl::StrCat(directory, "/", kTemporaryPrefix, "probe-", io::RandomHex(8));
  const io::UniqueFd fd(open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) return io::ErrnoStatus(errno, directory);
  unlink(probe.c_str());
  return absl::OkStatus();
}

// With its parents. The names of those that were missing are durable on return.
absl::Status MakeDirectoriesDurably(const std::string& path) {
  std::vector<std::string> parents;
  struct stat info {};
  for (std::filesystem::path at(path); stat(at.c_str(), &info) != 0 && errno == ENOENT;) {
    at = at.has_parent_path() ? at.parent_path() : std::filesystem::path(".");
    parents.push_back(at.string());
  }
  RETURN_IF_ERROR(io::MakeDirectories(path));
  for (const std::string& parent : parents) {
    const absl::Status synced = io::SyncDirectory(parent);
    // A directory may allow to make names in it, and not to be opened.
    if (!synced.ok() && io::ErrnoOf(synced) != EACCES) return synced;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Repository> Repository::OpenForTraining(const std::string& path) {
  const std::string commits = absl::StrCat(path, "/commits");
  absl::Status made = MakeDirectoriesDurably(commits);
  if (made.ok()) made = ProbeWritable(commits);
  if (made.ok()) made = ProbeWritable(path);
  if (!made.ok()) return NotWritable(path, made);
  return Repository(path);
}

absl::StatusOr<Repository> Repository::Open(const std::string& path) {
  struct stat info {};
  if (stat(absl::StrCat(path, "/commits").c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return UserError(absl::StatusCode::kNotFound, absl::StrCat("no checkpoints in ", path),
                     absl::StrCat(path, "/commits: ", std::strerror(errno)),
                     "give the --checkpoint-dir of a training run");
  }
  return Repository(path);
}

absl::StatusOr<std::string> Repository::LeaveMark() const {
  const std::string name = absl::StrCat(kTemporaryPrefix, "mark-", io::RandomHex(16));
  const std::string path = absl::StrCat(path_, "/", name);
  const io::UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd) return io::ErrnoStatus(errno, path);
  return name;
}

bool Repository::SeesMark(const std::string& name, Duration at_most) const {
  const auto end = std::chrono::steady_clock::now() + at_most;
  for (;;) {
    // By listing: a network file system looks anew at a directory that is opened anew.
    const absl::StatusOr<std::vector<std::string>> names = io::ListDirectory(path_);
    if (names.ok() && std::binary_search(names->begin(), names->end(), name)) return true;
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kLook);
  }
}

void Repository::RemoveMark(const std::string& name) const {
  (void)unlink(absl::StrCat(path_, "/", name).c_str());
}

Duration Repository::MarkDelay() const {
  const absl::StatusOr<io::FileSystemKind> kind = io::FileSystemKindOf(path_);
  return kind.ok() && *kind == io::FileSystemKind::kNetwork ? kNetworkDelay : Duration::zero();
}

std::string Repository::RecordPath(std::int64_t step) const {
  return absl::StrCat(path_, "/commits/", kStepPrefix, step);
}

std::string Repository::AttemptPath(std::int64_t step, std::uint64_t generation,
                                    std::uint64_t attempt) const {
  return absl::StrCat(path_, "/", AttemptDirectory(step, generation, attempt));
}

absl::StatusOr<std::vector<std::int64_t>> Repository::CommittedSteps() const {
  ASSIGN_OR_RETURN(const std::vector<std::string> names,
                   io::ListDirectory(absl::StrCat(path_, "/commits")));
  std::vector<std::int64_t> steps;
  for (const std::string& name : names) {
    if (const auto step = StepOf(name)) steps.push_back(*step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

absl::StatusOr<std::string> Repository::ReadRecord(std::int64_t step) const {
  return io::ReadFile(RecordPath(step), kMaxRecordBytes);
}

absl::StatusOr<Manifest> Repository::ReadManifest(std::int64_t step) const {
  ASSIGN_OR_RETURN(const std::string record, ReadRecord(step));
  ASSIGN_OR_RETURN(Manifest manifest, ParseManifest(record));
  if (manifest.step != step)
    return absl::DataLossError(
        absl::StrCat("the commit record of step ", step, " is one of step ", manifest.step));
  return manifest;
}

absl::Status Repository::Verify(const Manifest& m, const std::function<bool()>& cancelled) const {
  const std::string directory = AttemptPath(m.step, m.generation, m.attempt);
  for (const FileInfo& file : m.files)
    RETURN_IF_ERROR(ScanShard(absl::StrCat(directory, "/", file.name), file, cancelled));
  return absl::OkStatus();
}

absl::Status Repository::PrepareAttempt(std::int64_t step, std::uint64_t generation,
                                        std::uint64_t attempt) const {
  const std::string step_directory = absl::StrCat(path_, "/", kStepPrefix, step);
  RETURN_IF_ERROR(MakeDirectory(step_directory));
  RETURN_IF_ERROR(MakeDirectory(AttemptPath(step, generation, attempt)));
  RETURN_IF_ERROR(io::SyncDirectory(step_directory));
  return io::SyncDirectory(path_);
}

absl::StatusOr<Repository::StagedCommit> Repository::Stage(Manifest manifest) const {
  const std::string directory = AttemptPath(manifest.step, manifest.generation, manifest.attempt);
  for (const FileInfo& file : manifest.files) {
    struct stat info {};
    const std::string path = absl::StrCat(directory, "/", file.name);
    if (stat(path.c_str(), &info) != 0) return io::ErrnoStatus(errno, path);
    if (static_cast<std::uint64_t>(info.st_size) != file.bytes) {
      return absl::DataLossError(
          absl::StrCat(path, " has ", info.st_size, " bytes, its rank reported ", file.bytes));
    }
  }
  // The names of the files must not reach the disk after the record's.
  RETURN_IF_ERROR(io::SyncDirectory(directory));
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> steps, CommittedSteps());
  if (!steps.empty() && !manifest.job.empty()) {
    const absl::StatusOr<Manifest> newest = ReadManifest(steps.front());
    if (newest.ok() && newest->job == manifest.job && newest->generation > manifest.generation) {
      return absl::FailedPreconditionError(
          absl::StrCat("generation ", manifest.generation, " of ", manifest.job,
                       " has been replaced: generation ", newest->generation,
                       " has committed step ", newest->step));
    }
  }
  StagedCommit staged{std::move(manifest), {}, {}};
  staged.record = SerializeManifest(staged.manifest);
  // What the ranks reported must make one whole: a record that could not be read back is not
  // published.
  RETURN_IF_ERROR(ParseManifest(staged.record).status());
  staged.temporary = absl::StrCat(path_, "/commits/", kTemporaryPrefix, staged.manifest.step, "-",
                                  io::RandomHex(8));
  RETURN_IF_ERROR(io::ReplaceFile(staged.temporary, staged.record, io::Durability::kDurable, 0644));
  return staged;
}

absl::Status Repository::LinkRecord(const StagedCommit& staged) const {
  const std::int64_t step = staged.manifest.step;
  const int failed = LinkOrRename(staged.temporary, RecordPath(step));
  // A network file system may have lost the answer to a link that was made.
  if (failed == EEXIST && ReadRecord(step).value_or("") != staged.record) {
    return absl::AlreadyExistsError(absl::StrCat("step ", step, " has a commit already"));
  }
  if (failed != 0 && failed != EEXIST) return io::ErrnoStatus(failed, RecordPath(step));
  return io::SyncDirectory(absl::StrCat(path_, "/commits"));
}

absl::Status Repository::Publish(const StagedCommit& staged,
                                 const std::function<bool()>& cancelled) const {
  absl::Status linked = LinkRecord(staged);
  if (absl::IsAlreadyExists(linked)) {
    const absl::StatusOr<Manifest> existing = ReadManifest(staged.manifest.step);
    const absl::Status sound = existing.ok() ? Verify(*existing, cancelled) : existing.status();
    if (absl::IsCancelled(sound)) {
      linked = sound;  // Not known to be damaged, so it stays.
    } else if (!sound.ok()) {
      const std::string aside =
          absl::StrCat(path_, "/commits/", kDamagedPrefix, kStepPrefix, staged.manifest.step);
      linked = rename(RecordPath(staged.manifest.step).c_str(), aside.c_str()) == 0
                   ? LinkRecord(staged)
                   : io::ErrnoStatus(errno, aside);
    }
  }
  Unstage(staged);
  return linked;
}

void Repository::Unstage(const StagedCommit& staged) const {
  (void)unlink(staged.temporary.c_str());
}

absl::Status Repository::PublishStaged(const std::string& job, std::int64_t step) const {
  if (!absl::IsNotFound(ReadRecord(step).status())) return absl::OkStatus();
  const std::string commits = absl::StrCat(path_, "/commits");
  ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDirectory(commits));
  std::optional<StagedCommit> newest;
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, absl::StrCat(kTemporaryPrefix, step, "-"))) continue;
    StagedCommit staged;
    staged.temporary = absl::StrCat(commits, "/", name);
    absl::StatusOr<std::string> record = io::ReadFile(staged.temporary, kMaxRecordBytes);
    if (!record.ok()) continue;
    absl::StatusOr<Manifest> manifest = ParseManifest(*record);
    if (!manifest.ok() || manifest->step != step || manifest->job != job) continue;
    staged.record = *std::move(record);
    staged.manifest = *std::move(manifest);
    if (newest && newest->manifest.generation > staged.manifest.generation) continue;
    if (Verify(staged.manifest).ok()) newest = std::move(staged);
  }
  if (!newest)
    return absl::NotFoundError(absl::StrCat("nothing usable of step ", step, " is staged"));
  return Publish(*newest);
}

absl::Status Repository::Delete(std::int64_t step) const {
  const absl::StatusOr<Manifest> manifest = ReadManifest(step);
  const std::string tombstone = absl::StrCat(path_, "/commits/", kDeletedPrefix, kStepPrefix, step);
  if (rename(RecordPath(step).c_str(), tombstone.c_str()) != 0)
    return io::ErrnoStatus(errno, tombstone);
  RETURN_IF_ERROR(io::SyncDirectory(absl::StrCat(path_, "/commits")));
  if (manifest.ok()) RETURN_IF_ERROR(RemoveAttempt(step, manifest->generation, manifest->attempt));
  if (unlink(tombstone.c_str()) != 0) return io::ErrnoStatus(errno, tombstone);
  return absl::OkStatus();
}

absl::Status Repository::RemoveAttempt(std::int64_t step, std::uint64_t generation,
                                       std::uint64_t attempt) const {
  RETURN_IF_ERROR(io::RemoveTree(AttemptPath(step, generation, attempt)));
  (void)rmdir(absl::StrCat(path_, "/", kStepPrefix, step)
                  .c_str());  // Stays while another attempt is in it.
  return absl::OkStatus();
}

absl::Status Repository::FinishDeletions(std::uint64_t generation) const {
  const std::string commits = absl::StrCat(path_, "/commits");
  ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDirectory(commits));
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(commits, "/", name);
    const bool staged = absl::StartsWith(name, kTemporaryPrefix);
    if (!staged && !absl::StartsWith(name, kDeletedPrefix)) continue;
    const absl::StatusOr<std::string> record = io::ReadFile(path, kMaxRecordBytes);
    const absl::StatusOr<Manifest> manifest =
        record.ok() ? ParseManifest(*record) : record.status();
    if (staged) {
      if (!manifest.ok() || manifest->generation <= generation) (void)unlink(path.c_str());
    } else {
      if (manifest.ok())
        RETURN_IF_ERROR(RemoveAttempt(manifest->step, manifest->generation, manifest->attempt));
      (void)unlink(path.c_str());
    }
  }
  return absl::OkStatus();
}

absl::Status Repository::SweepStep(const std::string& directory, std::int64_t step,
                                   std::uint64_t generation) const {
  const absl::StatusOr<Manifest> committed = ReadManifest(step);
  if (!committed.ok() && !absl::IsNotFound(committed.status()))
    return absl::OkStatus();  // Which attempt it names is unknown.
  ASSIGN_OR_RETURN(const std::vector<std::string> attempts, io::ListDirectory(directory));
  for (const std::string& name : attempts) {
    const std::optional<AttemptId> id = AttemptOf(name);
    if (!id || id->generation > generation) continue;
    if (committed.ok() && committed->generation == id->generation &&
        committed->attempt == id->attempt) {
      // Its process ended before it could do that. A damaged one is for whoever loads it.
      const absl::Status removed = Reports(absl::StrCat(directory, "/", name)).Remove();
      if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
      continue;
    }
    RETURN_IF_ERROR(RemoveAttempt(step, id->generation, id->attempt));
  }
  return absl::OkStatus();
}

absl::Status Repository::Sweep(std::uint64_t generation) const {
  RETURN_IF_ERROR(FinishDeletions(generation));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDirectory(path_));
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(path_, "/", name);
    if (absl::StartsWith(name, kTemporaryPrefix)) (void)unlink(path.c_str());
    if (const auto step = StepOf(name)) RETURN_IF_ERROR(SweepStep(path, *step, generation));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::uint64_t> Repository::HighestAttempt(std::uint64_t generation) const {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDirectory(path_));
  std::uint64_t highest = 0;
  for (const std::string& name : names) {
    if (!StepOf(name)) continue;
    const absl::StatusOr<std::vector<std::string>> attempts =
        io::ListDirectory(absl::StrCat(path_, "/", name));
    if (!attempts.ok()) continue;
    for (const std::string& attempt : *attempts) {
      const std::optional<AttemptId> id = AttemptOf(attempt);
      if (id && id->generation == generation) highest = std::max(highest, id->attempt);
    }
  }
  return highest;
}

absl::Status Retention::Apply(const std::function<bool()>& cancelled) {
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> steps, repository_.CommittedSteps());
  int sound = 0;
  for (std::int64_t step : steps) {
    if (sound == keep_) {
      if (cancelled && cancelled()) return absl::CancelledError("tidying up was given up");
      RETURN_IF_ERROR(repository_.Delete(step));
      verified_.erase(step);
      continue;
    }
    const absl::StatusOr<std::string> record = repository_.ReadRecord(step);
    if (!record.ok()) continue;
    const auto known = verified_.find(step);
    if (known == verified_.end() || known->second != *record) {
      const absl::StatusOr<Manifest> manifest = repository_.ReadManifest(step);
      if (!manifest.ok()) continue;
      const absl::Status verified = repository_.Verify(*manifest, cancelled);
      if (absl::IsCancelled(verified)) return verified;
      if (!verified.ok()) continue;
      verified_[step] = *record;
    }
    ++sound;
  }
  return absl::OkStatus();
}

}  // namespace regroup::worker
