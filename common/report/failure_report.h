#pragma once

#include <string>

#include "common/base/views.h"
#include "common/report/text_style.h"

namespace regroup {

// The last word on a job that did not succeed (CLI.md, Failing teaches): root cause, the end of its
// stderr, what other ranks did after it, and the commands to type next. Whole lines. `view` with
// detail.
std::string FailureReport(const JobView& view, const TextStyle& style);

// "train-4 succeeded · 14m02s · 2 generations, 1 restart · regroup explain train-4", or how else it
// ended without a failure of its own. No newline.
std::string EndLine(const JobView& view);

// The generation that decided the end, or null.
const GenerationView* DecidingGeneration(const JobView& view);
// The rank that ended it, or null: it has not ended, or otherwise. May be given null.
const RankCause* CauseOf(const GenerationView* generation);
// A worker's own exit code >= 120 collides with ours: then this is its code.
std::optional<int> AmbiguousWorkerExit(const JobView& view);

}  // namespace regroup
