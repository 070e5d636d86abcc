#pragma once

// Reading a coordinator's journal that nobody serves: what `ps`, `nodes`, `explain` and `logs` show
// of ended runs, and of those whose coordinator does not answer.

#include <string>

#include "absl/status/statusor.h"
#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/shell/journal.h"

namespace regroup::coordinator {

// The answer that the coordinator of this folder would give. Changes nothing; holds the folder's
// lock while it reads. UNAVAILABLE: a coordinator runs there (dial its socket instead). NOT_FOUND:
// no folder, no journal, no such job or node.
absl::StatusOr<ReadReply> ReadOffline(const std::string& folder, const ReadFilter& filter);
// The answer of a coordinator that holds its folder, but does not answer: what is durable of it.
absl::StatusOr<ReadReply> ReadHeld(const std::string& folder, const ReadFilter& filter);
// The answer of a coordinator that knows these rows and no others.
absl::StatusOr<ReadReply> ReadRows(const Journal::Batch& encoded, const ReadFilter& filter);

}  // namespace regroup::coordinator
