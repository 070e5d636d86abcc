#pragma once

// Why a generation ended. Every cause that is told is folded into the worst one so far
// (failure_policy.h says which is worse); ranks that failed as well are kept as its consequences.
// An exit may be told before its words, and the words may tell that it was only the loss of a peer:
// then all that is known is weighed again. The verdict takes the reason from here once all members
// have told, or their time is up. A plain value: it knows no job, node or clock.

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/reasons.h"
#include "launcher/coordinator/core/failure_policy.h"

namespace regroup::coordinator {

struct Causes {
  std::optional<CauseAt> worst;
  // The reason if no cause is ever told: its agents showed it stopped, or the journal has it from
  // before a crash.
  std::optional<EndReason> fallback;
  std::vector<std::pair<Instant, RankCause>> consequences;  // By time, the first few.
  std::set<std::pair<NodeId, int>> seen_exits;
  // A member that leaves, of which a rank has ended as it was told; empty: none.
  std::string ended_by_notice;

  bool known() const { return worst || fallback; }

  // Keeps the worst cause, and of failed ranks that were not it the first few.
  void Fold(CauseAt cause);

  // What a rank that was folded before wrote, where that is known by now. False: it is neither the
  // cause nor a consequence.
  bool Learn(const std::string& node, const RankExit& exit);

  // REQUIRES: known().
  EndReason Reason() const;
};

}  // namespace regroup::coordinator
