#pragma once

#include <cstdint>

namespace regroup::io {

// Has a process of this network namespace a TCP connection to that port of any host? True where it
// cannot be told.
bool IsConnectedTo(std::uint16_t port);

}  // namespace regroup::io
