#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard.h"

namespace regroup::worker {

// A directory of checkpoints:
//
//   commits/step-N                     the commit record of step N; the checkpoint exists once this
//   does step-N/GENERATION-ATTEMPT/rank-…   the files of one attempt, and until it is committed the
//   ranks' reports
//
// A record is made by link, so that an existing one is never replaced, and goes first when a
// checkpoint is deleted. Whatever is not named by a record is rubbish of an attempt that did not
// come to its end.
class Repository {
 public:
  // For training: makes the directory and proves that it can be written. The error says what to do.
  static absl::StatusOr<Repository> OpenForTraining(const std::string& path);
  // For reading. Not found, with advice, if there is no such directory.
  static absl::StatusOr<Repository> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // Whether processes, of whatever hosts, have the same directory: one leaves a mark, and the
  // others look whether they see it there. Neither paths nor device numbers tell that: two hosts
  // mount the same share under different numbers. Returns the mark's name, which nobody can guess.
  absl::StatusOr<std::string> LeaveMark() const;
  // Looks again and again until the mark is there or the time is over.
  bool SeesMark(const std::string& name, Duration at_most) const;
  void RemoveMark(const std::string& name) const;
  // How long a mark that another host has left may take to be seen here.
  Duration MarkDelay() const;
  std::string AttemptPath(std::int64_t step, std::uint64_t generation, std::uint64_t attempt) const;

  // Steps that have a commit record, whether or not it is sound, highest first.
  absl::StatusOr<std::vector<std::int64_t>> CommittedSteps() const;
  absl::StatusOr<std::string> ReadRecord(std::int64_t step) const;
  // Parses the record and checks that it is the one of `step`.
  absl::StatusOr<Manifest> ReadManifest(std::int64_t step) const;

  // Reads every byte of every file. Cancelled: `cancelled` said so, and nothing is known.
  absl::Status Verify(const Manifest& manifest,
                      const std::function<bool()>& cancelled = nullptr) const;

  // Makes the directories of an attempt and their names durable. Any rank.
  absl::Status PrepareAttempt(std::int64_t step, std::uint64_t generation,
                              std::uint64_t attempt) const;

  // A commit record that is durable under a name of its own and has yet to be published.
  struct StagedCommit {
    Manifest manifest;
    std::string record, temporary;
  };
  // REQUIRES: every file is durable. Failed precondition: the newest commit is of a later
  // generation of the same job, so this one has been replaced.
  absl::StatusOr<StagedCommit> Stage(Manifest manifest) const;
  // One link: from then on the checkpoint exists, also for whoever looks after a crash. Already
  // exists: a sound commit of this step is there, and stays; a damaged one is moved out of the way.
  // In any case the staged name is gone.
  absl::Status Publish(const StagedCommit& staged,
                       const std::function<bool()>& cancelled = nullptr) const;
  void Unstage(const StagedCommit& staged) const;
  // Publishes what an earlier process of `job` staged for `step` and did not come to publish,
  // though the coordinator has accepted it; of several, the newest generation's that verifies. OK
  // if that step has a record already. Not found: nothing usable is staged. For rank 0, before
  // Sweep.
  absl::Status PublishStaged(const std::string& job, std::int64_t step) const;

  // Deletes a checkpoint: its record first, then its files.
  absl::Status Delete(std::int64_t step) const;

  // Finishes interrupted deletions and removes attempts and staged commits that no record names,
  // save those of generations above `generation`. For rank 0, before the first attempt of a
  // generation.
  absl::Status Sweep(std::uint64_t generation) const;
  // The highest attempt number of this generation that any directory bears; 0 if none does.
  absl::StatusOr<std::uint64_t> HighestAttempt(std::uint64_t generation) const;
  absl::Status RemoveAttempt(std::int64_t step, std::uint64_t generation,
                             std::uint64_t attempt) const;

 private:
  explicit Repository(std::string path) : path_(std::move(path)) {}
  std::string RecordPath(std::int64_t step) const;
  absl::Status LinkRecord(const StagedCommit& staged) const;
  absl::Status FinishDeletions(std::uint64_t generation) const;
  absl::Status SweepStep(const std::string& directory, std::int64_t step,
                         std::uint64_t generation) const;

  std::string path_;
};

// Keeps the newest `keep` commits that verify. Nothing is deleted unless that many do; a damaged
// one neither counts nor is deleted while it is newer than the oldest of those. What others have
// read is not read again.
class Retention {
 public:
  // REQUIRES: keep >= 2; repository outlives this.
  Retention(const Repository& repository, int keep) : repository_(repository), keep_(keep) {}
  // All files of the commit with this record have been read and are sound.
  void NoteSound(std::int64_t step, std::string record) { verified_[step] = std::move(record); }
  // Cancelled: it was given up, and what is left to delete is deleted by the next.
  absl::Status Apply(const std::function<bool()>& cancelled = nullptr);

 private:
  const Repository& repository_;
  const int keep_;
  std::map<std::int64_t, std::string>
      verified_;  // Step → record whose files were read and found sound.
};

}  // namespace regroup::worker
