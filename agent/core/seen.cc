#include "agent/core/seen.h"

#include "agent/core/leftovers.h"
#include "agent/core/prepare.h"
#include "agent/core/ranks.h"
#include "agent/core/state.h"

namespace regroup::agent {

// In the order in which things happen to a group, so that of several at once none is lost.
void On(Step& step, const GroupSeen& seen) {
  const RunRecord& record = seen.record;
  Group* group = step.state.Find(record.key);
  if (group == nullptr) return;
  SeeStore(step, *group, record);
  SeeShim(step, *group, record);
  SeeNodeCheck(step, *group, record);
  SeeStarts(step, *group, record);
  SeeExits(step, *group, record);
  SeeEmpty(step, *group, record);
  SeeShimGone(step, *group, record);
  SeeStoreGone(*group, record);
}

}  // namespace regroup::agent
