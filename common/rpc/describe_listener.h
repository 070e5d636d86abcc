#pragma once

#include <string>

#include "common/base/control.h"
#include "common/base/time.h"

namespace regroup {

// Who listens at an address that Regroup could not use, for the message to the person who asked for
// it.
enum class ListenerKind {
  kNobody,        // Refused.
  kSilent,        // Nothing answers at this address.
  kRegroup,       // A coordinator that takes everybody: --insecure.
  kAsksForToken,  // A coordinator that takes nobody without its token.
  kTorchStore,    // A TCPStore, as torchrun hosts it.
  kGrpc,          // Another gRPC service.
  kSomething,     // Anything else.
};

struct ListenerDescription {
  ListenerKind kind = ListenerKind::kSilent;
  std::string sentence;  // "a torchrun seems to listen on 10.0.0.4:29400"
};

// Blocks for at most about `limit`; off the loop. REQUIRES: address.host is an IP literal.
ListenerDescription DescribeListener(const Address& address,
                                     Duration limit = std::chrono::milliseconds(1500));

}  // namespace regroup
