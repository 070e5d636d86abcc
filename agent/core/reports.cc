#include "agent/core/reports.h"

#include <algorithm>

namespace regroup::agent {

void SendReports(Step& step, bool all) {
  State& state = step.state;
  for (auto& [key, group] : state.groups) {
    Reporting& report = group.report;
    if (report.dirty) {
      report.dirty = false;
      report.acked = false;
      // A number for each state, so that an acknowledgement of an older one is not taken for it.
      report.number = state.last_report = state.last_report.Next();
    } else if (!all || report.acked) {
      continue;
    }
    if (state.attached()) step.Do(SendReport{ReportOf(key, group, step.now())});
  }
}

void On(Step& step, const ReportAcked& acked) {
  for (auto& [key, group] : step.state.groups) {
    // What has changed since is not acknowledged with it.
    if (group.report.number != acked.number || group.report.dirty) continue;
    group.report.acked = true;
    // Until now a refused witness would have said that this node died with it.
    if (group.phase == Phase::kFree && group.has_shim() && !step.state.HeirOf(key))
      step.Do(ReleaseShim{key});
  }
}

bool AllAcked(const State& state) {
  return std::all_of(state.groups.begin(), state.groups.end(),
                     [](const auto& entry) { return entry.second.report.acked; });
}

}  // namespace regroup::agent
