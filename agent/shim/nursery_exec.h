#pragma once

// Becomes the nursery of a job: the interpreter of its command, with nursery.py.

#include <cstddef>

namespace regroup::shim {

// Room behind the command line and the environment of a nursery: its ranks show their own there.
inline constexpr std::size_t kWordsRoom = 4 << 10, kEntriesRoom = 32 << 10;
inline constexpr char kEntriesRoomName[] = "REGROUP_WARM_ROOM";

// `words`: the working directory, how many words stand before the script, the modules to import
// (none: what the script imports), the program and the command. The environment is this process's.
// Returns an exit code when it cannot.
int ExecNursery(int count, char** words);

}  // namespace regroup::shim
