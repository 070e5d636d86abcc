#include "launcher/cli/commands/python_modules.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/io/fd.h"
#include "common/io/files.h"
#include "common/io/spawn.h"

namespace regroup::cli {
namespace {

constexpr std::size_t kMaxAnswerBytes = 64 << 10;
// What precedes what it says, since a module may write as well.
constexpr std::string_view kMark = "\x1fregroup-cannot-import\x1f";

// As the nursery of a job looks for them: not in the script's folder, nor in this one.
constexpr char kLook[] = R"(import signal
signal.alarm(10)
import sys
if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

def there(name):
    path, parts = None, name.split(".")
    for count in range(1, len(parts) + 1):
        finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
        full = ".".join(parts[:count])
        spec = next(filter(None, (finder.find_spec(full, path) for finder in finders)), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
        if path is None:
            return count == len(parts)
    return True

for name in sys.argv[2:]:
    try:
        there(name) or __import__(name)
    except BaseException as error:
        why = "%s: %s" % (type(error).__name__, error)
        print(sys.argv[1] + name + ": " + " ".join(why.split())[:300], flush=True)
)";

absl::StatusOr<std::string> Ask(const std::string& python,
                                const std::vector<std::string>& modules) {
  io::UniqueFd answer(::memfd_create("regroup-modules", MFD_CLOEXEC));
  if (!answer) return io::ErrnoStatus(errno, "memfd_create");
  std::vector<std::string> arguments = {"-c", kLook, std::string(kMark)};
  arguments.insert(arguments.end(), modules.begin(), modules.end());
  ASSIGN_OR_RETURN(const pid_t pid, io::SpawnDetached(python, arguments, answer.get()));
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  std::string text(kMaxAnswerBytes, '\0');
  const ssize_t size = ::pread(answer.get(), text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

}  // namespace

absl::Status CheckImportable(const std::string& python, const std::vector<std::string>& modules) {
  const absl::StatusOr<std::string> text = Ask(python, modules);
  if (!text.ok()) return absl::OkStatus();
  std::string names, reasons;
  for (const std::string& line : Split(*text, '\n')) {
    if (line.substr(0, kMark.size()) != kMark) continue;
    const std::string reason = line.substr(kMark.size());
    names += Cat(names.empty() ? "" : ", ", reason.substr(0, reason.find(':')));
    reasons += Cat(reasons.empty() ? "" : "; ", reason);
  }
  if (names.empty()) return absl::OkStatus();
  return UserError(absl::StatusCode::kInvalidArgument,
                   Cat("--warm: ", python, " cannot import ", names), reasons,
                   "PYTHON_EXEC=/path/to/python, or leave them out: the script imports the rest");
}

}  // namespace regroup::cli
