#include "common/base/user_error.h"

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
}  // namespace

absl::Status UserError(absl::StatusCode code, std::string_view what, std::string_view because,
                       std::string_view try_this) {
  absl::Status status(code, absl::string_view(what.data(), what.size()));
  if (!because.empty()) status.SetPayload(kBecause, absl::Cord(absl::string_view(because.data(), because.size())));
  if (!try_this.empty()) status.SetPayload(kTry, absl::Cord(absl::string_view(try_this.data(), try_this.size())));
  return status;
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

}  // namespace regroup
