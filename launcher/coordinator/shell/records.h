#pragma once

// Between the core's rows and the journal's bytes (record.proto), field by field. Pure.

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/shell/journal.h"

namespace regroup::coordinator {

JournalRow EncodeRow(const Row& row);
// Whether `encoded`, which is this row, could be read again. What could not must not be written.
// Debug builds look at every row, release builds at those that hold what others have said.
absl::Status CheckReadable(const Row& row, const JournalRow& encoded);
// Every row, or DATA_LOSS naming the first key that is not one of ours or whose value can't be
// read. An event that can't be read is history and no state: it is left out, and named in
// `left_out`.
absl::StatusOr<std::vector<Row>> DecodeRows(std::span<const JournalRow> rows,
                                            std::vector<std::string>* left_out);

// Whether the value of a row `job/J/state` says that the job has ended. False: it cannot be read.
bool HasEnded(const std::string& state);

// The `meta` row; one of epoch 0 where there is none.
MetaRow MetaOf(std::span<const Row> rows);

}  // namespace regroup::coordinator
