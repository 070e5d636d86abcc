#include "agent/shell/group_warnings.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/io/address.h"
#include "common/report/text_style.h"

namespace regroup::agent {

std::string HostNameProblem() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "";
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error = ::getaddrinfo(name, nullptr, &hints, &found);
  if (error != 0) {
    return absl::StrCat("this host's own name ", name, " has no address (", ::gai_strerror(error),
                        "), and gloo asks for it");
  }
  bool usable = false;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    char host[NI_MAXHOST] = {};
    if (::getnameinfo(at->ai_addr, at->ai_addrlen, host, sizeof host, nullptr, 0, NI_NUMERICHOST) ==
        0)
      usable = usable || !io::IsLoopback(host);
  }
  ::freeaddrinfo(found);
  return usable ? ""
                : absl::StrCat("this host's own name ", name,
                               " is an address of this host alone, and gloo gives it to others");
}

std::string LeftBehindSentence(const shim::State& state) {
  std::set<int> ranks;
  std::string names;
  for (const shim::LeftBehind& left : state.left_behind) {
    const auto of = std::find_if(state.ranks.begin(), state.ranks.end(), [&](const auto& rank) {
      return rank.local_rank == left.local_rank;
    });
    if (of != state.ranks.end()) ranks.insert(of->rank);
    absl::StrAppend(&names, names.empty() ? "" : ", ", EscapeControls(left.name), " (", left.pid,
                    ")");
  }
  const int count = state.left_behind_count;
  if (count > static_cast<int>(state.left_behind.size())) names += ", ...";
  std::string by = ranks.empty() ? "" : ranks.size() == 1 ? " by rank" : " by ranks";
  for (const int rank : ranks) absl::StrAppend(&by, " ", rank);
  const bool one = count == 1;
  return absl::StrCat(count, one ? " process" : " processes", " left behind", by,
                      state.left_behind_kept ? (one ? " runs on: " : " run on: ")
                                             : (one ? " was ended: " : " were ended: "),
                      names);
}

std::string OwnPortSentence() {
  return "no rank here has come to the job's store: the program sets MASTER_PORT itself, and ranks "
         "that wait at a port of their own wait for ever under a launcher · leave MASTER_ADDR and "
         "MASTER_PORT as they are, or set TORCHELASTIC_USE_AGENT_STORE=False beside them";
}

}  // namespace regroup::agent
