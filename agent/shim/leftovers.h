#pragma once

// Processes of a group that are not its ranks, as /proc shows them.

#include <sys/types.h>

#include <map>
#include <set>
#include <vector>

#include "agent/shim/protocol.h"
#include "common/io/proc.h"

namespace regroup::shim {

// Of this process; parents before children.
std::vector<io::ProcessStat> LiveDescendants();

// By its own words: its name, and the rank that its environment says.
LeftBehind DescribeProcess(pid_t pid);

// What ranks that have ended (pids by local rank) have left behind: processes of their sessions,
// those whose environment is theirs, and what these have started. None that is in `others` or
// descends from one that is: ranks that live, and what forks ranks.
std::vector<io::ProcessStat> LeftBehindBy(const std::multimap<int, pid_t>& ended,
                                          const std::set<pid_t>& others);

}  // namespace regroup::shim
