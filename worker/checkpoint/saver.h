#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "worker/checkpoint/owner.h"
#include "worker/checkpoint/reports.h"
#include "worker/checkpoint/repository.h"
#include "worker/checkpoint/shard.h"

namespace regroup::worker {

// Rank 0 asks before it publishes: only the current generation's commits may exist.
struct CommitQuestion {
  std::uint64_t attempt = 0;
  std::int64_t step = 0;
  std::string manifest_hash;  // XXH3-128 of the record, lower-case hex.
  std::string path;           // Absolute, of the attempt's directory.
  bool for_notice = false;
};
class CommitGate {
 public:
  virtual ~CommitGate() = default;
  // OK: go on. Failed precondition: refused, with the reason. Anything else: not known. Any thread;
  // returns soon after `cancelled` turns true.
  virtual absl::Status Ask(const CommitQuestion& question,
                           const std::function<bool()>& cancelled) = 0;
};

struct SaverOptions {
  int rank = 0, world_size = 1;
  std::string job;
  std::uint64_t generation = 0;
  std::uint64_t first_attempt = 1;  // Equal on all ranks.
  int keep = 2;                     // At least 2.
  // From a rank's own file being durable until all others' are, then for the gate's answer, and
  // then for the others to read their files back.
  Duration patience = std::chrono::minutes(10);
  std::string strategy;                       // Of the record, as are the next two.
  std::map<std::string, std::int64_t> model;  // Its sizes.
  std::map<std::string, std::string> settings;
  int group = 1;           // Ranks r, r + group, … are at one place.
  Owner* owner = nullptr;  // Rank 0's: nothing is published in a directory that was lost.
  // What this rank writes; all ranks' parts cover everything once. None: an even part, of ranks
  // that all hold everything.
  std::optional<std::vector<ElementRange>> part;
  // Of a commit whose files were all read and found sound, as by restoring it: step and record.
  std::optional<std::pair<std::int64_t, std::string>> known_sound;
};

struct SaveOutcome {
  std::uint64_t attempt = 0;
  std::int64_t step = 0;
  bool for_notice = false;
  // Rank 0: whether the checkpoint is committed. Others: whether this rank's file is durable.
  absl::Status status;
  bool already_there = false;  // Rank 0: it is not, for a sound commit of this step was there.
  absl::Status verification;   // Rank 0: what a rank found wrong when it read its file back.
  absl::Status retention;      // Rank 0: whether older ones could be tidied up.
  Duration took{};             // From the end of the snapshot.
  std::uint64_t bytes = 0;     // Of this rank's file.
};

// Saves checkpoints beside the training: Save copies this rank's share of the state and returns; a
// thread writes it, and on rank 0 awaits the others' files, asks the gate and publishes. Then every
// rank reads its own file back, all at the same time, and rank 0 tidies up older commits once it
// has heard that all files are sound. Whoever gives up a save gives up that too, and one for a
// notice does without it: who resumes from it reads it anyway.
//
// Two saves may be under way, and a third be read back. A save that fails on any rank is void and
// harms nothing: the commits before it stay. What it left goes, at the latest with the saves after
// it. Owner thread only, but for what says otherwise.
class Saver {
 public:
  // `gate` may be null: nobody is asked. Repository and gate outlive the saver.
  static absl::StatusOr<std::unique_ptr<Saver>> Create(const Repository& repository,
                                                       CommitGate* gate, SaverOptions options,
                                                       const std::vector<TensorInfo>& tensors);
  ~Saver();  // Gives up what is under way.

  // Save would have to wait for an earlier one; it never does for one that is being read back.
  bool Busy() const;
  // Of the state that all ranks hold alike, and of what those at one place of their groups do.
  struct Hashes {
    std::string by_all, by_place;
  };
  // Every rank, the same step. `state` may change as soon as this returns. Rank 0 publishes nothing
  // unless the ranks whose hashes should be the same bring the same.
  void Save(std::int64_t step, std::map<std::string, std::int64_t> counters, bool for_notice,
            const std::vector<StateTensor>& state, const Hashes& hashes = {});
  // Gives up every save begun so far.
  void GiveUp();
  // Since the last call, oldest first.
  std::vector<SaveOutcome> TakeOutcomes();
  // Until nothing is under way; that is bounded by the options' patience.
  void WaitIdle();
  // The same for a while: false if something still is.
  bool WaitIdle(Duration at_most);

 private:
  struct Request {
    std::size_t slot = 0;
    std::uint64_t attempt = 0;
    std::int64_t step = 0;
    std::map<std::string, std::int64_t> counters;
    bool for_notice = false;
    std::string hashes;  // As reported.
    std::chrono::steady_clock::time_point begun;
  };

  Saver(const Repository& repository, CommitGate* gate, SaverOptions options,
        std::vector<TensorInfo> tensors);
  // What one save has come to on the thread.
  struct Carried {
    SaveOutcome outcome;
    FileInfo file;       // This rank's.
    std::string record;  // Rank 0: what was published.
  };
  void Run();
  // Until the checkpoint exists or does not, after which the snapshot is not needed any more.
  Carried Commit(const Request& request);
  void Settle(const Request& request, Carried& carried);
  absl::Status WriteAndReport(const Request& request, FileInfo& file);
  absl::Status Publish(const Request& request, Carried& carried);
  absl::Status AskGate(const Request& request, const Repository::StagedCommit& staged);
  // Reads this rank's file back, and tells the verdict or awaits all others'.
  absl::Status Verify(const Request& request, const FileInfo& file);
  // All but the first `kept`.
  void VoidUnanswered(std::size_t kept);
  // Rank 0.
  absl::Status Tidy(const Request& request, const Carried& carried);
  bool Exists(const Request& request) const;
  std::string DirectoryOf(const Request& request) const;
  Patience PatienceFor(const Request& request) const;
  bool GivenUp(std::uint64_t attempt) const;

  const Repository& repository_;
  CommitGate* const gate_;
  const SaverOptions options_;
  const std::vector<TensorInfo> tensors_;
  Retention retention_;  // Of the thread, as is the next.
  // Void attempts, newest last, to which a slower rank may still add its file.
  std::deque<std::pair<std::int64_t, std::uint64_t>> void_;  // (step, attempt)
  // The first and the newest that were asked for and neither accepted nor refused, oldest first.
  // Either may have been accepted (the first of a time without answers, as its answer was lost):
  // then the next generation publishes it (Repository::PublishStaged).
  struct Unanswered {
    std::int64_t step = 0;
    std::uint64_t attempt = 0;
    Repository::StagedCommit staged;
  };
  std::vector<Unanswered> unanswered_;
  std::uint64_t next_attempt_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ShardImage> images_;  // Two. One belongs to the thread while its request exists.
  std::array<bool, 2> taken_{};     // Guarded by mutex_, as is all below.
  std::deque<Request> requests_;    // At most three; the front one is being carried out.
  std::vector<SaveOutcome> outcomes_;
  std::uint64_t given_up_ = 0;  // Attempts up to this one.
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace regroup::worker
