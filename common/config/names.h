#pragma once

// Enumerations as people type and read them.

#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/job_spec.h"

namespace regroup {

std::string_view NameOf(ScaleUp scale_up);  // settle now next never
absl::StatusOr<ScaleUp> ParseScaleUp(std::string_view text);

}  // namespace regroup
