#include "launcher/coordinator/core/standstill.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace regroup::coordinator {

std::optional<Standstill::Gap> Standstill::Enter(Instant now) {
  const Instant before = std::exchange(entered_, now);
  std::optional<Gap> gap;
  if (now - before > kLoop) {
    gap = {now - before, false};
  } else if (commit_began_) {
    const Instant late = std::max(*commit_began_ + kCommit, told_);
    if (now - late >= kAtLeast) gap = {now - late, true};
  }
  if (gap) told_ = now;
  return gap;
}

void Standstill::BeginCommit(Instant now) {
  CHECK(!commit_began_);
  commit_began_ = now;
}

Duration Standstill::EndCommit(Instant now) {
  CHECK(commit_began_);
  return std::max(now - *std::exchange(commit_began_, std::nullopt) - kCommit, Duration(0));
}

}  // namespace regroup::coordinator
