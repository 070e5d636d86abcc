#pragma once

// Durable rows: key → whole value. PROTOCOL §1. Two calls, both asynchronous; every implementation
// passes the same contract tests (tests/launcher/coordinator/shell/journal_contract.h).

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace regroup::coordinator {

struct JournalRow {
  std::string key;
  std::optional<std::string> value;  // nullopt deletes; deleting what is not there is fine.
  friend bool operator==(const JournalRow&, const JournalRow&) = default;
};

class Journal {
 public:
  using Batch = std::vector<JournalRow>;
  using Loaded = std::function<void(absl::StatusOr<Batch>)>;
  using Done = std::function<void(absl::Status)>;

  // Waits for the commit in flight; its callback has returned.
  virtual ~Journal() = default;

  // First, and once. All rows, ordered by key. The error is one for people (UserError): another
  // process holds the journal, it is damaged, it is of a newer format, the disk is full.
  virtual void Load(Loaded loaded) = 0;

  // What a file beside the journal remembers, once Load gave rows. Its number of commits is written
  // after each of them, so it is never ahead of a journal that has kept all it was given.
  struct Memory {
    std::uint64_t commits = 0;       // In the journal.
    std::uint64_t lost_commits = 0;  // Were durable, and are no longer in it.
    std::uint64_t newest_job = 0;    // Highest number of a job that was ever durable; 0: none.
  };
  virtual Memory memory() const { return {}; }

  // All rows or none, in one step; durable (power may fail) when `done` gets OK.
  // RESOURCE_EXHAUSTED: the disk is full, nothing was changed, the same batch may be tried again.
  // Any other error is final: the outcome is unknown and this process must not go on. Committing a
  // batch of unknown outcome again is harmless. A later row of a key wins. REQUIRES: Load gave
  // rows; no other commit is in flight.
  virtual void Commit(Batch batch, Done done) = 0;
};

}  // namespace regroup::coordinator
