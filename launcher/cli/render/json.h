#pragma once

// --json: one object with `schema`, times in UTC (RFC 3339), durations in seconds, sizes in bytes.
// From the same views as the text. A field that is unknown is absent, never 0.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/base/views.h"

namespace regroup::cli {

using Json = nlohmann::ordered_json;

Json JobJson(const JobView& job, bool detail);
Json NodeJson(const NodeView& node);
Json EventJson(const JobEvent& event, const JobView& job);

std::string JobsDocument(const std::vector<JobView>& jobs);  // schema regroup.jobs/1
// schema regroup.nodes/1
std::string NodesDocument(const std::vector<NodeView>& nodes,
                          const std::vector<CoordinatorMemory>& coordinators);
std::string ExplainDocument(
    const JobView& job, const std::vector<std::string>& output = {});  // schema regroup.explain/1

// One line; bytes that are no UTF-8 become U+FFFD.
std::string Dump(const Json& json);

}  // namespace regroup::cli
