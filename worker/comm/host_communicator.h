#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "worker/comm/communicator.h"

namespace regroup::worker {

struct HostCommunicatorOptions {
  int rank = 0;
  int world_size = 1;
  std::string store_host;  // MASTER_ADDR.
  std::uint16_t store_port = 0;
  std::string build{};  // Of the program, equal on all ranks; what they share has its layout.
  std::string name = "world";  // Of this communicator within the store's generation.
  Duration join_deadline = std::chrono::seconds(60);  // Until every rank is here.
  Duration deadline = std::chrono::seconds(300);      // Of one call; SetDeadline changes it.
  // For tests: what this host is called, and its address for other hosts. Empty: its name, and the
  // address from which the store is reached, which is that of a member: a store serves no other.
  std::string host_name{}, host_address{};
};

// Ranks are processes of one user on each host, however many nodes that host plays. They meet
// through the generation's store. Ranks of one host share memory that the first of them made
// without a name (memfd) and the others open through its /proc entry: nothing is left on the
// machine however they die. A dead rank is noticed by its pidfd, and on other hosts by what its
// host tells, or by the end of its host's connection. Where all ranks are on one host there is
// nothing but shared memory. Collective: returns once every rank is here. A world of one needs no
// store.
//   kFailedPrecondition  ranks are of different builds; the message names them.
//   kUnavailable         the store or another host does not answer, or a rank died meanwhile.
//   kPermissionDenied    what answers at another host's address is not of this generation.
//   kDeadlineExceeded    ranks or hosts are missing; the message names them.
absl::StatusOr<std::unique_ptr<Communicator>> JoinHostCommunicator(
    const HostCommunicatorOptions& options);

}  // namespace regroup::worker
