#include "launcher/coordinator/core/progress.h"

#include <algorithm>

namespace regroup::coordinator {
namespace {

template <class T>
void KeepLarger(std::optional<T>& kept, const std::optional<T>& told) {
  // Each rank tells its own time, and the group is as slow as its slowest rank.
  if (told && (!kept || *kept < *told)) kept = told;
}

}  // namespace

void Progress::Tell(const WorkerProgress& told, Instant now) {
  spoke = true;
  if (told.step > 0 && !first_step) first_step = told.step;
  // Ranks tell the same step one after the other: the first to tell makes it. Of the last two the
  // times are kept, for a step that began and ended proves that all ranks live (leases.cc).
  if (!last_step || told.step > *last_step) {
    last_step = told.step;
    step_before_at = last_step_at;
    last_step_at = now;
  }
  if (told.restored_step) restored_step = told.restored_step;
  samples = std::max(samples, told.samples);
  tokens = std::max(tokens, told.tokens.value_or(0));
  if (told.loss) loss = told.loss;
  if (told.tokens_per_second) tokens_per_second = told.tokens_per_second;
  KeepLarger(init, told.init);
  KeepLarger(restore, told.restore);
  KeepLarger(first_step_took, told.first_step);
  KeepLarger(checkpoint, told.checkpoint);
}

}  // namespace regroup::coordinator
