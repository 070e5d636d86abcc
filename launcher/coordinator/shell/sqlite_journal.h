#pragma once

// The journal as one SQLite file in WAL mode with synchronous=FULL. One connection, owned by one
// thread, which writes and checkpoints (SQLite before 3.51.3 can damage a file that two connections
// checkpoint). A new file gets its schema under synchronous=OFF and is synced once, which is
// several times faster than the same under FULL.
//
// SQLite takes a damaged log for a shorter one and says nothing. So the journal counts its commits,
// and "<path>.tally" beside it the same: a start that finds fewer in the journal knows what it
// lost.

#include <cstdint>
#include <memory>
#include <string>

#include "launcher/coordinator/shell/journal.h"

namespace regroup::coordinator {

inline constexpr int kSqliteApplicationId = 0x52475250;  // "RGRP"
inline constexpr int kJournalFormat = 1;                 // user_version; rows.h's kRowFormat.

// Callbacks run on the journal's own thread. `path` is made (0600) when missing. The file must be
// held by nobody else: callers hold the lock of its folder. A file that fails its check is copied
// beside itself ("<path>.damaged") and refused.
std::unique_ptr<Journal> MakeSqliteJournal(const std::string& path);

// All rows of an existing file, on the caller's thread. REQUIRES: as above. NOT_FOUND when there is
// no file.
absl::StatusOr<Journal::Batch> ReadSqliteJournal(const std::string& path);
// The same of a file that another process may hold: reads a copy of it in memory, and writes
// nothing beside it. UNAVAILABLE when the file changes faster than it can be copied.
absl::StatusOr<Journal::Batch> ReadHeldSqliteJournal(const std::string& path);

}  // namespace regroup::coordinator
