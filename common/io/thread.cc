#include "common/io/thread.h"

#include <unistd.h>

#include <boost/system/error_code.hpp>
#include <boost/system/system_error.hpp>
#include <cstdlib>
#include <exception>
#include <string>

#include "common/base/user_error.h"

namespace regroup::io {
namespace {

std::terminate_handler ends_otherwise = nullptr;
int status_without = 1;

// Of a thread that was asked for, by whichever library.
bool IsOfAThread(const std::exception_ptr& thrown) {
  if (!thrown) return false;
  try {
    std::rethrow_exception(thrown);
  } catch (const std::system_error& error) {
    return error.code() == std::errc::resource_unavailable_try_again;
  } catch (const boost::system::system_error& error) {
    return error.code() == boost::system::errc::resource_unavailable_try_again;
  } catch (...) {
    return false;
  }
}

[[noreturn]] void EndClearly() {
  if (IsOfAThread(std::current_exception())) {
    const std::string text = RenderUserError(NoThread());
    [[maybe_unused]] ssize_t ignored = ::write(STDERR_FILENO, text.data(), text.size());
    ::_exit(status_without);
  }
  ends_otherwise();
  std::abort();
}

}  // namespace

absl::Status NoThread() {
  return UserError(absl::StatusCode::kResourceExhausted, "no thread can be made",
                   "a limit of processes, which counts threads and those of workers, or one of "
                   "memory is reached",
                   "a higher ulimit -u or -v, or pids.max of the cgroup");
}

void EndClearlyWithoutThreads(int status) {
  status_without = status;
  ends_otherwise = std::set_terminate(EndClearly);
}

}  // namespace regroup::io
