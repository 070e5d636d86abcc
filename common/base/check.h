#pragma once

#include <cstdio>
#include <cstdlib>

// A broken invariant of our own ends the process, in release builds too. Never on what came from a
// peer, a file or a user: those are absl::Status.
#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
