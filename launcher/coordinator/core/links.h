#pragma once

// The life of a node's link: awaited after a recovery, attached with a session, suspected when that
// breaks, away while a witness still accepts, lost by silence or by proof. Its leases run in
// leases.h; what its loss means for a job is in members.h. PROTOCOL §4.

#include <string>

#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {

// Keeps the fleet's counts and indices: the session of before is no longer the node's. The caller
// arms the node's deadline.
void SetLink(Step& step, Node& node, Link link);

void On(Step& step, const SessionBroken& event);

// It said something: its lease begins again.
void Heard(Step& step, Node& node);
void On(Step& step, const HeartbeatReceived& event);

// Its lease ends, its witness is due, or it has been lost for long enough to be forgotten.
void OnNodeDeadline(Step& step, Node& node);

// Verifies the witness of a group that was reported, so that a refusal counts later.
void WatchGroup(Step& step, Node& node, const GroupReport& report);
void On(Step& step, const Probed& event);

// `how`: one of kHow... (node.h). `proved`: nothing of it can run any more, so its slots are free.
void LoseNode(Step& step, Node& node, const std::string& how, bool proved);

// Whoever can say hello can make nodes: those that left nothing behind are kept for a while, and
// not in any number.
void RememberLost(Step& step, Node& node);
void On(Step& step, const Noticed& event);

// Its deadline never moves later.
void SetLeaving(Step& step, Node& node, const Notice& notice);

}  // namespace regroup::coordinator
