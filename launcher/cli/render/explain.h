#pragma once

// `explain`: why things are as they are. Pure.

#include <optional>
#include <string>
#include <vector>

#include "common/base/views.h"
#include "common/report/text_style.h"

namespace regroup::cli {

// With `only`, one generation's part. `output`: what launch commands could not show.
std::string RenderExplain(const JobView& job, std::optional<Generation> only,
                          const TextStyle& style, const std::vector<std::string>& output = {});
std::string RenderExplain(const NodeView& node, const TextStyle& style);

// Share of the job's life in which it made progress that it kept; unset before it has lived.
std::optional<double> Goodput(const TimeAccount& time);

// "detect .004 | decide .001 | stop .220 #######": a bar of ten for the whole of `down`. The
// worker's own phases come on a line of their own, and those that it did not report on another.
std::string PhaseBars(const RestartPhases& phases);

}  // namespace regroup::cli
