#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace regroup {

// What a person is told when something is refused: `error:` what, `because:` value and limit,
// `try:` a command. The second and third part travel inside the Status as payloads, through every
// layer up to the CLI.
absl::Status UserError(absl::StatusCode code, std::string_view what, std::string_view because,
                       std::string_view try_this);
// Of code kInvalidArgument: what somebody typed or wrote.
absl::Status BadInput(std::string_view what, std::string_view because,
                      std::string_view try_this = "");

struct UserErrorParts {
  std::string what, because, try_this;
};
UserErrorParts PartsOf(const absl::Status& status);

// Three lines (fewer where a part is empty), each ending in a newline.
std::string RenderUserError(const absl::Status& status);
// What another program of ours rendered last in `text`; nullopt where there is no such thing.
std::optional<UserErrorParts> ParseUserError(std::string_view text);

}  // namespace regroup
