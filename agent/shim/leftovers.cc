#include "agent/shim/leftovers.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/io/files.h"

namespace regroup::shim {
namespace {

constexpr std::size_t kProcessFileBytes = 1u << 20;

}  // namespace

std::vector<io::ProcessStat> LiveDescendants() {
  std::vector<io::ProcessStat> processes = io::DescendantsOf(::getpid());
  std::erase_if(processes, [](const io::ProcessStat& process) { return process.dead(); });
  return processes;
}

LeftBehind DescribeProcess(pid_t pid) {
  LeftBehind left;
  left.pid = pid;
  const std::string process = absl::StrCat("/proc/", pid);
  if (absl::StatusOr<std::string> name = io::ReadFile(process + "/comm", 64); name.ok())
    left.name = std::string(absl::StripTrailingAsciiWhitespace(*name));
  const absl::StatusOr<std::string> environment =
      io::ReadFile(process + "/environ", kProcessFileBytes);
  constexpr std::string_view kRank = "REGROUP_LOCAL_RANK=";
  for (const std::string& entry :
       std::vector<std::string>(absl::StrSplit(environment.value_or(""), '\0'))) {
    if (entry.rfind(kRank, 0) != 0) continue;
    if (!absl::SimpleAtoi(entry.substr(kRank.size()), &left.local_rank)) left.local_rank = -1;
  }
  return left;
}

std::vector<io::ProcessStat> LeftBehindBy(const std::multimap<int, pid_t>& ended,
                                          const std::set<pid_t>& others) {
  std::set<pid_t> sessions, spared = others, doomed;
  for (const auto& [local_rank, pid] : ended) sessions.insert(pid);
  std::vector<io::ProcessStat> found;
  for (const io::ProcessStat& process : LiveDescendants()) {
    if (spared.contains(process.pid) || spared.contains(process.parent)) {
      spared.insert(process.pid);
    } else if (doomed.contains(process.parent) || sessions.contains(process.session) ||
               ended.contains(DescribeProcess(process.pid).local_rank)) {
      doomed.insert(process.pid);
      found.push_back(process);
    }
  }
  return found;
}

}  // namespace regroup::shim
