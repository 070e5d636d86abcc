#pragma once

// A proposal takes a number, which is never used again, asks its members to prepare and ends in one
// of two ways: all have prepared and no other generation is formed, then it forms; or a member was
// lost, refused or was late, then it is void and the job gathers again. Newcomers of an elective
// change prepare first, survivors once the old generation is over. PROTOCOL §2.

#include <map>
#include <string>
#include <vector>

#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

// REQUIRES: chosen is not empty; no proposal is open. `elective`: another generation runs on until
// the newcomers are ready.
void Propose(Step& step, Job& job, const std::vector<NodeId>& chosen, bool elective);

// REQUIRES: a proposal is open. True: something changed, look again.
bool AdvanceProposal(Step& step, Job& job);

// An agent that had to dial anew has heard nothing of what it was asked before. It has the whole
// time once more, but for a lease beyond the first at most.
void AskAgain(Step& step, Job& job, const NodeId& node);

// The number is burned. Members that failed are candidates again later; the others at once.
void VoidProposal(Step& step, Job& job, Generation generation,
                  const std::map<NodeId, std::string>& failed);

}  // namespace regroup::coordinator
