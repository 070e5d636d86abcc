#pragma once

// What agents are told: the whole desired state of one job on one node, compared with what the
// session was told last and sent where it differs. So an order that is lost, doubled or late
// changes nothing. PROTOCOL §2, "Compare, then order".

#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

// At the end of a step: sends each order that changed, once.
void FlushOrders(Step& step);

// No job asks for such a group: it is stopped, and forgotten once it is free. False: it is left
// alone, and shown.
bool StopUnknown(Step& step, Node& node, const JobId& id);

}  // namespace regroup::coordinator
