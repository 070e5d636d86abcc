#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/tensor/arena.h"

namespace regroup::worker {

// Reads batches of one data set, and one batch ahead, on a thread of its own. Which batch was read
// ahead changes nothing but the time that Take waits.
class BatchReader {
 public:
  struct Batch {  // (samples, T) each.
    std::span<const std::int32_t> tokens, targets;
  };

  // Makes room for two batches. The data set outlives the reader, and nothing else reads it
  // meanwhile. Resource exhausted if there is no memory.
  static absl::StatusOr<std::unique_ptr<BatchReader>> Create(const Dataset& dataset,
                                                             std::int64_t samples);
  // Waits for a read that is under way.
  ~BatchReader();

  // The samples of these ids, valid until the next Take. What reading failed with is returned by
  // the Take of those ids, and by no other. REQUIRES: at most `samples` ids.
  absl::StatusOr<Batch> Take(std::span<const std::int64_t> ids);
  // Begins to read what the next Take will ask for. REQUIRES: at most `samples` ids, and a Take
  // since the last ReadAhead.
  void ReadAhead(std::span<const std::int64_t> ids);

 private:
  struct Slot {
    std::vector<std::int64_t> ids;
    std::span<std::int32_t> tokens, targets;
    absl::Status status;
  };

  explicit BatchReader(const Dataset& dataset) : dataset_(dataset) {}
  void Run();
  void Fill(Slot& slot) const;

  const Dataset& dataset_;
  Arena arena_;
  Slot slots_[2];         // The one that was taken belongs to the caller.
  std::size_t next_ = 0;  // Of the caller: what is read ahead, or read next.
  bool ahead_ = false;    // Of the caller: slots_[next_] is being read, or has been.

  std::mutex mutex_;  // Guards all below.
  std::condition_variable changed_;
  Slot* wanted_ = nullptr;  // Belongs to the thread until this is null again.
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace regroup::worker
