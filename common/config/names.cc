#include "common/config/names.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/config/values.h"

namespace regroup {
namespace {
constexpr std::array<std::pair<std::string_view, ScaleUp>, 4> kScaleUp = {
    {{"settle", ScaleUp::kSettle},
     {"now", ScaleUp::kNow},
     {"next", ScaleUp::kNext},
     {"never", ScaleUp::kNever}}};
}  // namespace

std::string_view NameOf(ScaleUp scale_up) {
  for (const auto& [name, value] : kScaleUp) {
    if (value == scale_up) return name;
  }
  return "settle";
}

absl::StatusOr<ScaleUp> ParseScaleUp(std::string_view text) {
  std::vector<std::string> names;
  for (const auto& [name, value] : kScaleUp) {
    if (name == text) return value;
    names.emplace_back(name);
  }
  return UserError(absl::StatusCode::kInvalidArgument,
                   Cat(ShellQuote(text.substr(0, 60)), " is not a way to scale up"),
                   "use settle, now, next or never", DidYouMean(text, names));
}

}  // namespace regroup
