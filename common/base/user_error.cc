#include "common/base/user_error.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace regroup {
namespace {
constexpr char kBecause[] = "regroup/because";
constexpr char kTry[] = "regroup/try";

std::string PayloadOf(const absl::Status& status, std::string_view key) {
  std::optional<absl::Cord> payload;
  if (auto found = status.GetPayload(absl::string_view(key.data(), key.size()))) payload = *found;
  return payload ? std::string(*payload) : std::string();
}

// What follows `key` at the beginning of a line of `text`, up to the line that begins with `next`;
// takes it away from `text`.
std::string TakePart(std::string_view& text, std::string_view key, std::string_view next) {
  if (text.substr(0, key.size()) != key) return "";
  text.remove_prefix(key.size());
  std::size_t end =
      next.empty() ? text.find('\n') : text.find(absl::StrCat("\n", std::string(next)));
  if (end == std::string_view::npos) end = text.find("\ntry: ");
  if (end == std::string_view::npos) end = text.size();
  std::string part(text.substr(0, end));
  text.remove_prefix(std::min(end + 1, text.size()));
  while (!part.empty() && part.back() == '\n') part.pop_back();
  return part;
}
}  // namespace

absl::Status UserError(absl::StatusCode code, std::string_view what, std::string_view because,
                       std::string_view try_this) {
  absl::Status status(code, absl::string_view(what.data(), what.size()));
  if (!because.empty())
    status.SetPayload(kBecause, absl::Cord(absl::string_view(because.data(), because.size())));
  if (!try_this.empty())
    status.SetPayload(kTry, absl::Cord(absl::string_view(try_this.data(), try_this.size())));
  return status;
}

absl::Status BadInput(std::string_view what, std::string_view because, std::string_view try_this) {
  return UserError(absl::StatusCode::kInvalidArgument, what, because, try_this);
}

UserErrorParts PartsOf(const absl::Status& status) {
  return {std::string(status.message()), PayloadOf(status, kBecause), PayloadOf(status, kTry)};
}

std::string RenderUserError(const absl::Status& status) {
  UserErrorParts parts = PartsOf(status);
  std::string text = absl::StrCat("error: ", parts.what, "\n");
  if (!parts.because.empty()) absl::StrAppend(&text, "because: ", parts.because, "\n");
  if (!parts.try_this.empty()) absl::StrAppend(&text, "try: ", parts.try_this, "\n");
  return text;
}

std::optional<UserErrorParts> ParseUserError(std::string_view text) {
  std::size_t at = text.rfind("error: ");
  while (at != std::string_view::npos && at > 0 && text[at - 1] != '\n') {
    at = at == 0 ? std::string_view::npos : text.rfind("error: ", at - 1);
  }
  if (at == std::string_view::npos) return std::nullopt;
  text.remove_prefix(at);
  UserErrorParts parts;
  parts.what = TakePart(text, "error: ", "because: ");
  parts.because = TakePart(text, "because: ", "try: ");
  parts.try_this = TakePart(text, "try: ", "");
  return parts;
}

}  // namespace regroup
