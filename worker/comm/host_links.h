#pragma once

// How the first ranks of neighbouring hosts come to hold connections, and what travels over them.
// Private to worker/comm.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/control.h"
#include "common/base/time.h"
#include "common/io/fd.h"
#include "worker/comm/segment.h"

namespace regroup::worker {

inline constexpr int kMaxWorld = 512;

// Consecutive ranks on one machine. Where the ranks of two machines alternate, one machine is
// several hosts: sums visit hosts in the order of ranks.
struct HostRanks {
  int first = 0, count = 0;
};
// The hosts of a world, in the order of their ranks.
using Hosts = std::vector<HostRanks>;
int HostOf(const Hosts& hosts, int rank);

using Secret = std::array<std::byte, 32>;

// A call begins with one of these from either side of a link; what follows it is as long as the
// call says.
inline constexpr std::uint64_t kCallMagic = 0x5247434F43414C31;  // "RGCOCAL1".
struct CallMessage {
  std::uint64_t magic = kCallMagic;
  CallHeader header{};
};

// What hosts tell each other outside of calls. Each is passed on to the neighbour on the other
// side, so that all hosts get it.
inline constexpr std::uint64_t kControlMagic = 0x5247434F4354524C;  // "RGCOCTRL".
enum ControlKind : std::uint32_t {
  kFailed = 1,  // `value` is the failure word.
  kLeft,        // Rank `value` takes part in no call after `call`.
  kAsk,         // Which ranks have not begun `call`? `value` numbers the question.
  kAnswer,      // To question `value`, of host `call`: a rank in `rank`, or none missing.
};
struct ControlMessage {
  std::uint64_t magic = kControlMagic;
  std::uint32_t kind = 0;
  std::int32_t rank = -1;
  std::uint64_t value = 0, call = 0;
};

// To a host's neighbours in the chain; a descriptor is -1 where there is no neighbour.
struct HostLink {
  io::UniqueFd calls, control;
};
struct HostLinks {
  HostLink previous, next;
};

// Bound to one address of this host, at a port that the kernel chooses.
absl::StatusOr<io::UniqueFd> ListenForHosts(const std::string& ip);

struct HostMeeting {
  int own = 0;                     // Which of the hosts this is.
  std::vector<Address> addresses;  // Where each host listens.
  Secret secret{};                 // Of the generation, from its store.
  Duration deadline = std::chrono::seconds(60);
};
// Dials the previous host and takes the connections of the next one, each from its own address. Who
// comes from another address, shows another secret or says nothing is turned away, and holds nobody
// up.
absl::StatusOr<HostLinks> MeetNeighbors(const HostMeeting& meeting, const io::UniqueFd& listener);

}  // namespace regroup::worker
