#include "agent/shell/child_exit.h"

#include <sys/wait.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <memory>
#include <utility>

namespace regroup::agent {
namespace {

using boost::asio::posix::stream_descriptor;

struct Child {
  Child(boost::asio::io_context& loop, int pidfd) : descriptor(loop, pidfd) {}
  stream_descriptor descriptor;
  pid_t pid = 0;
  std::function<void(std::optional<int>)> over;
};

// Such a wait may end too early: by the event of a descriptor that was closed in the same turn of
// the loop, and whose place inside the loop this one took.
void Await(const std::shared_ptr<Child>& child) {
  child->descriptor.async_wait(stream_descriptor::wait_read,
                               [child](const boost::system::error_code& error) {
                                 if (error) return;
                                 int status = 0;
                                 pid_t reaped = 0;
                                 do {
                                   reaped = ::waitpid(child->pid, &status, WNOHANG);
                                 } while (reaped < 0 && errno == EINTR);
                                 if (reaped == 0) return Await(child);
                                 child->over(reaped > 0 ? std::optional(status) : std::nullopt);
                               });
}

}  // namespace

void WhenOver(boost::asio::io_context& loop, io::UniqueFd pidfd, pid_t pid,
              std::function<void(std::optional<int>)> over) {
  auto child = std::make_shared<Child>(loop, pidfd.release());
  child->pid = pid;
  child->over = std::move(over);
  Await(child);
}

}  // namespace regroup::agent
