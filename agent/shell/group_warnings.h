#pragma once

// What whoever started a job is told of its groups, in words.

#include <string>

#include "agent/shim/protocol.h"

namespace regroup::agent {

// Why other hosts cannot be told what the host's own name resolves to; empty: they can. May wait
// for a name server.
std::string HostNameProblem();

// "1 process left behind by rank 0 was ended: uploader (4121)". REQUIRES: something was.
std::string LeftBehindSentence(const shim::State& state);

// Of a program that sets MASTER_PORT and whose ranks have not met.
std::string OwnPortSentence();

}  // namespace regroup::agent
