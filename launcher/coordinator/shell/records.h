#pragma once

// Between the core's rows and the journal's bytes (record.proto), field by field. Pure.

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/shell/journal.h"

namespace regroup::coordinator {

JournalRow EncodeRow(const Row& row);
// Every row, or DATA_LOSS naming the first key that is not one of ours or whose value can't be
// read.
absl::StatusOr<std::vector<Row>> DecodeRows(std::span<const JournalRow> rows);

// Epoch in the `meta` row; 0 where there is none.
Epoch EpochOf(std::span<const Row> rows);

}  // namespace regroup::coordinator
