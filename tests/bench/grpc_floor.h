#pragma once

#include <string>

namespace regroup::bench {

// What gRPC alone costs for agents that only beat: a server as Regroup sets it up, on the thread
// that hears all calls (call_server.h), that welcomes whoever opens a session at the Unix socket
// `path` and answers his heartbeats as often as a coordinator does. It knows no node, no job and no
// lease, hands nothing to a loop and pauses for nothing. Serves until it is killed.
[[noreturn]] void ServeFloor(const std::string& path);

}  // namespace regroup::bench
