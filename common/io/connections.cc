#include "common/io/connections.h"

#include <cstdio>
#include <sstream>
#include <string>

#include "common/io/files.h"

namespace regroup::io {

bool IsConnectedTo(std::uint16_t port) {
  constexpr std::size_t kMaxBytes = 16u << 20;
  constexpr unsigned kEstablished = 1;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    const absl::StatusOr<std::string> text = ReadFile(path, kMaxBytes);
    if (absl::IsNotFound(text.status())) continue;  // No IPv6 here.
    if (!text.ok()) return true;
    std::istringstream lines(*text);
    for (std::string line; std::getline(lines, line);) {
      unsigned remote_port = 0, state = 0;
      const int read =
          std::sscanf(line.c_str(), " %*d: %*[^:]:%*x %*[^:]:%x %x", &remote_port, &state);
      if (read == 2 && remote_port == port && state == kEstablished) return true;
    }
  }
  return false;
}

}  // namespace regroup::io
