#pragma once

// The secret that a TCP connection to a coordinator shows (common/rpc/proof.h): where one is given.
// It never travels in an argument: those are for everybody to see.

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace regroup {

inline constexpr char kTokenVariable[] = "REGROUP_TOKEN";
inline constexpr std::size_t kMaxTokenBytes = 256;

// 16 to 256 letters, digits or . _ - : + / =
absl::Status ValidateToken(std::string_view token);
// From `file` (one line), else from REGROUP_TOKEN; empty: none was given.
absl::StatusOr<std::string> GivenToken(const std::string& file);
// --token-file.
void AddTokenFile(CLI::App& app, std::string& file);

// PERMISSION_DENIED: who dials `where` has to show its token. The advice is `command` with one.
absl::Status NeedsToken(std::string_view where, std::string_view command);

}  // namespace regroup
