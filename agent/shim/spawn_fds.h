#pragma once

// Which descriptor of a shim is what; set by SpawnShim, read by its main.

namespace regroup::shim {

inline constexpr int kDirectoryFd = 3, kLockFd = 4, kSocketFd = 5, kListenerFd = 6, kLifelineFd = 7,
                     kStdinFd = 8, kWarmFd = 9;
inline constexpr char kGroupMode[] = "--group", kStoreMode[] = "--store",
                      kWithLifeline[] = "--lifeline", kWithStdin[] = "--stdin",
                      // Followed by the pid of a child that forks warm ranks; at kWarmFd.
    kWithWarm[] = "--warm",
                      // DIRECTORY WORDS… PROGRAM ARGS…: the job's nursery, see nursery.h.
    kNurseryMode[] = "--nursery";

}  // namespace regroup::shim
