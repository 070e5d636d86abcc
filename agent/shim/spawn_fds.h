#pragma once

// Which descriptor of a shim is what; set by SpawnShim, read by its main.

namespace regroup::shim {

inline constexpr int kDirectoryFd = 3, kLockFd = 4, kSocketFd = 5, kListenerFd = 6, kLifelineFd = 7,
                     kStdinFd = 8;
inline constexpr char kGroupMode[] = "--group", kStoreMode[] = "--store",
                      kWithLifeline[] = "--lifeline", kWithStdin[] = "--stdin";

}  // namespace regroup::shim
