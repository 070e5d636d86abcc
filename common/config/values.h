#pragma once

// Values that people type, and back. Every error is a UserError that names the value and the limit;
// the caller says in front of it which flag or field it was (AtField).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "common/config/launch_config.h"

namespace regroup {

// "2h14m", "1.5s", "500ms", "90m", "0". Units ns us ms s m h d, largest first, each once. At most
// 365 days.
absl::StatusOr<Duration> ParseDuration(std::string_view text);
// What ParseDuration reads back as the same value: "2h14m", "1.5s", "500ms", "0s".
std::string FormatDuration(Duration duration);

// "10GiB", "500MB", "4096", "1.5G" (G = GiB). At most 2^60.
absl::StatusOr<std::uint64_t> ParseBytes(std::string_view text);
std::string FormatBytes(std::uint64_t bytes);  // "9.8 GiB", "512 B".

// As ParseBytes, or "all": kKeepAllLogs.
absl::StatusOr<std::uint64_t> ParseLogKeep(std::string_view text);
std::string FormatLogKeep(std::uint64_t bytes);  // What ParseLogKeep reads back as the same value.

struct NodeBounds {
  int min = 1, max = 1;
  friend bool operator==(const NodeBounds&, const NodeBounds&) = default;
};
// "4", "2:4". 1 ≤ MIN ≤ MAX ≤ limits::kNodes.
absl::StatusOr<NodeBounds> ParseNnodes(std::string_view text);
std::string FormatNnodes(int min, int max);

// "HOST", "HOST:PORT", "[v6]", "[v6]:PORT", "v6".
absl::StatusOr<Endpoint> ParseEndpoint(std::string_view text);
std::string FormatEndpoint(std::string_view host, std::uint16_t port);  // Brackets around IPv6.

// "20000-20100".
absl::StatusOr<PortRange> ParsePortRange(std::string_view text);

// A decimal number, nothing else.
absl::StatusOr<std::int64_t> ParseNumber(std::string_view text, std::int64_t min, std::int64_t max);

// A finite decimal number, as in 2, 0.35 or 1e3; a comma or a currency is not part of it.
absl::StatusOr<double> ParseReal(std::string_view text);
std::string FormatReal(double value);  // The shortest text that reads back as the same value.

// The same error with "FIELD: " in front of its first part.
absl::Status AtField(std::string_view field, const absl::Status& status);

// The candidate a typo away (edit distance ≤ a third of the word, at most 3), or of which one
// begins the other; else empty.
std::string DidYouMean(std::string_view word, const std::vector<std::string>& candidates);

// 'a b' and others that a shell would split, quoted for it.
std::string ShellQuote(std::string_view word);
std::string ShellJoin(const std::vector<std::string>& words);

}  // namespace regroup
