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
};

// Ranks are processes of one user on one host, however many nodes that host plays. They meet
// through the generation's store, then share memory that rank 0 made without a name (memfd) and the
// others open through its /proc entry: nothing is left on the machine however they die. A dead rank
// is noticed by its pidfd. Collective: returns once every rank is here. A world of one needs no
// store.
//   kFailedPrecondition  ranks are on different hosts or of different builds; the message names
//                        them.
//   kUnavailable         the store does not answer, or a rank died meanwhile.
//   kDeadlineExceeded    ranks are missing; the message names them.
absl::StatusOr<std::unique_ptr<Communicator>> JoinHostCommunicator(
    const HostCommunicatorOptions& options);

}  // namespace regroup::worker
