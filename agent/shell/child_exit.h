#pragma once

// The end of a child process, heard on a loop.

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <optional>

#include "common/io/fd.h"

namespace regroup::agent {

// Reaps that child once it has ended and calls `over` with its wait status, once; with none where
// somebody else has reaped it. Never blocks the loop. `pidfd` is the child's. Loop thread; what is
// not over when the loop stops is never called.
void WhenOver(boost::asio::io_context& loop, io::UniqueFd pidfd, pid_t pid,
              std::function<void(std::optional<int> status)> over);

}  // namespace regroup::agent
