#include "worker/comm/agreement.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace regroup::worker {
namespace {

constexpr std::int64_t kMaxTermsBytes = 1 << 20;

std::string TextOf(const Terms& terms) {
  std::string text;
  for (const auto& [name, value] : terms) absl::StrAppend(&text, name, "=", value, "\n");
  return text;
}

// The text of rank `root` on every rank.
absl::StatusOr<std::string> ShareText(Group& ranks, int root, const std::string& own) {
  const bool mine = ranks.rank() == root;
  std::int64_t size = mine ? static_cast<std::int64_t>(own.size()) : 0;
  RETURN_IF_ERROR(ranks.Broadcast(std::as_writable_bytes(std::span(&size, 1)), root));
  size = std::clamp<std::int64_t>(size, 0, kMaxTermsBytes);
  std::string text = own;
  text.resize(static_cast<std::size_t>(size));
  RETURN_IF_ERROR(ranks.Broadcast(std::as_writable_bytes(std::span(text)), root));
  return text;
}

std::pair<std::string, std::string> Split(const std::string& line) {
  return absl::StrSplit(line, absl::MaxSplits('=', 1));
}

}  // namespace

absl::StatusOr<std::optional<Disagreement>> FindDisagreement(Group& ranks, const Terms& terms) {
  const std::string own = TextOf(terms);
  ASSIGN_OR_RETURN(const std::string ours, ShareText(ranks, 0, own));
  std::int64_t rank = own == ours ? 0 : ranks.rank();
  RETURN_IF_ERROR(ranks.AllReduce(std::span(&rank, 1), Reduction::kMax));
  if (rank == 0) return std::nullopt;
  ASSIGN_OR_RETURN(const std::string theirs, ShareText(ranks, static_cast<int>(rank), own));
  const std::vector<std::string> a = absl::StrSplit(ours, '\n'), b = absl::StrSplit(theirs, '\n');
  std::size_t line = 0;
  while (line < a.size() && line < b.size() && a[line] == b[line]) ++line;
  const auto [name, value] = Split(line < a.size() ? a[line] : "");
  const auto [other_name, other_value] = Split(line < b.size() ? b[line] : "");
  const int other = static_cast<int>(rank);
  if (name == other_name) return Disagreement{other, name, value, other_value};
  const bool ours_lack = std::ranges::none_of(
      a, [&, &there = other_name](const std::string& term) { return Split(term).first == there; });
  return ours_lack ? Disagreement{other, other_name, "", other_value}
                   : Disagreement{other, name, value, ""};
}

}  // namespace regroup::worker
