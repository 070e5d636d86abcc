#pragma once

// Durable rows: key → whole value. PROTOCOL §1. Three calls, all asynchronous; every implementation
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
  // nullopt deletes, and where the key ends with a slash all keys that begin with it; deleting what
  // is not there is fine.
  std::optional<std::string> value;
  friend bool operator==(const JournalRow&, const JournalRow&) = default;
};

class Journal {
 public:
  using Batch = std::vector<JournalRow>;
  using Loaded = std::function<void(absl::StatusOr<Batch>)>;
  using Done = std::function<void(absl::Status)>;
  // Whether the value of a row `job/J/state` says that the job has ended.
  using HasEnded = std::function<bool(const std::string& state)>;

  // Waits for the commit in flight; its callback has returned.
  virtual ~Journal() = default;

  // First, and once. All rows, ordered by key, but for the history of jobs that have ended (rows.h,
  // kGenerationsKept): it grows for as long as jobs are kept, and a start does not need it. The
  // error is one for people (UserError): another process holds the journal, it is damaged, it is of
  // a newer format, the disk is full.
  virtual void Load(HasEnded has_ended, Loaded loaded) = 0;

  // All rows whose keys begin with `folder`, which ends with a slash, as of the commits before, or
  // of a later one. REQUIRES: Load gave rows.
  virtual void ReadFolder(std::string folder, Loaded read) = 0;

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
  // batch of unknown outcome again is harmless. A later row of a key wins, and a folder's deletion
  // over what came before. REQUIRES: Load gave rows; no other commit is in flight.
  virtual void Commit(Batch batch, Done done) = 0;
};

}  // namespace regroup::coordinator
