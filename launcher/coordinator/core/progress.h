#pragma once

// How far a generation has come, as its ranks tell. What a rank tells is absolute and may come
// twice or late, so nothing here ever goes back. A plain value.

#include <cstdint>
#include <optional>

#include "common/base/control.h"
#include "common/base/time.h"

namespace regroup::coordinator {

struct Progress {
  bool spoke = false;  // A rank has told anything at all.
  std::optional<std::int64_t> first_step, last_step, restored_step;
  std::int64_t samples = 0, tokens = 0;  // 0: not told.
  std::optional<double> loss, tokens_per_second;
  std::optional<Duration> init, restore, first_step_took, checkpoint;
  std::optional<Instant> last_step_at, step_before_at;  // The two last times that the step rose.

  void Tell(const WorkerProgress& told, Instant now);
};

}  // namespace regroup::coordinator
