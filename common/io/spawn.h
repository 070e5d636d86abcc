#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace regroup::io {

// The folder of the running program: Regroup's programs are installed side by side.
std::string ProgramFolder();

// Starts a process that outlives this one and its terminal: a session of its own, default
// dispositions, an empty signal mask, standard input empty, both outputs at `out`. `inherited`
// becomes descriptor 3; -1: none. Every other descriptor is closed.
absl::StatusOr<pid_t> SpawnDetached(const std::string& program,
                                    const std::vector<std::string>& arguments, int out,
                                    int inherited = -1);

}  // namespace regroup::io
