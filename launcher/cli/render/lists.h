#pragma once

// `ps` and `nodes`. Pure.

#include <string>
#include <vector>

#include "common/base/views.h"
#include "common/report/text_style.h"

namespace regroup::cli {

std::string RenderJobs(const std::vector<JobView>& jobs, const TextStyle& style);
// In the order of their names; of one that was started again only the living one.
std::vector<NodeView> OncePerName(std::vector<NodeView> nodes);
std::string RenderNodes(const std::vector<NodeView>& nodes, const TextStyle& style);

// The column WHY.
std::string WhyOf(const JobView& job);

// Is this the state of a job that is over?
bool IsOver(const std::string& state);
bool IsOver(const JobView& job);

}  // namespace regroup::cli
