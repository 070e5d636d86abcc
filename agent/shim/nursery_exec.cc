#include "agent/shim/nursery_exec.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/shim/nursery_text.h"
#include "common/io/fd.h"

namespace regroup::shim {
namespace {

constexpr int kTextFd = 4;
constexpr int kFailed = 1;

}  // namespace

int ExecNursery(int count, char** words) {
  int before = 0;
  if (count < 5 || !absl::SimpleAtoi(words[1], &before) || before < 1 || count <= 4 + before)
    return 2;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (words[0][0] != '\0' && ::chdir(words[0]) < 0) return kFailed;
  const int text = ::memfd_create("regroup-nursery", 0);
  if (text < 0 || !io::WriteAll(text, kNurseryText).ok()) return kFailed;
  if (text != kTextFd && (::dup2(text, kTextFd) < 0 || ::close(text) < 0)) return kFailed;
  std::vector<std::string> line(words + 4, words + 4 + before);
  line.push_back(absl::StrCat("/proc/self/fd/", kTextFd));
  line.insert(line.end(), {words[1], words[2]});
  line.insert(line.end(), words + 4, words + count);
  line.push_back(std::string(kWordsRoom, ' '));
  std::vector<char*> argv;
  for (std::string& word : line) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execvp(words[3], argv.data());  // By the PATH of the workers.
  return kFailed;
}

}  // namespace regroup::shim
