#include "launcher/coordinator/shell/offline.h"

#include "common/base/status_macros.h"
#include "common/io/proc.h"
#include "common/rpc/places.h"
#include "launcher/coordinator/core/core.h"
#include "launcher/coordinator/shell/folder.h"
#include "launcher/coordinator/shell/records.h"
#include "launcher/coordinator/shell/sqlite_journal.h"

namespace regroup::coordinator {

absl::StatusOr<ReadReply> ReadRows(const Journal::Batch& encoded, const ReadFilter& filter) {
  std::vector<std::string> left_out;
  ASSIGN_OR_RETURN(const std::vector<Row> rows, DecodeRows(encoded, &left_out));
  Config config;
  config.journal.new_cluster = ClusterId("none");
  const Instant now = io::MonotonicNow();
  // The core is built only to be asked: it is never stepped, so nothing of it becomes durable.
  const Core core(config, MetaOf(rows).epoch.Next(), rows, now);
  return core.Read(filter, now, io::WallNow());
}

absl::StatusOr<ReadReply> ReadOffline(const std::string& folder, const ReadFilter& filter) {
  ASSIGN_OR_RETURN(const Folder held, Folder::AcquireExisting(folder));
  ASSIGN_OR_RETURN(const Journal::Batch encoded, ReadSqliteJournal(held.JournalPath()));
  return ReadRows(encoded, filter);
}

absl::StatusOr<ReadReply> ReadHeld(const std::string& folder, const ReadFilter& filter) {
  ASSIGN_OR_RETURN(const Journal::Batch encoded,
                   ReadHeldSqliteJournal(folder + "/" + kCoordinatorJournalName));
  return ReadRows(encoded, filter);
}

}  // namespace regroup::coordinator
