#pragma once

// The process behind the c10d side of a coordinator's port: real torchrun agents meet in its store.
// A client of that store never reconnects, so their sockets are not the coordinator's: it passes
// each accepted one on (SendFd, one byte with it) and may then be killed; the next coordinator
// finds this process by the same Unix socket. It ends soon after its last client.

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "agent/store/server.h"
#include "common/io/fd.h"

namespace regroup::shim {

inline constexpr std::string_view kC10dMode = "--c10d";
inline constexpr int kC10dListenerFd = 3;

// The --rdzv-id whose key this is (`/torch.rendezvous.ID`, `/torch.rendezvous.ID.ROUND/…`), or "".
std::string RendezvousOf(std::string_view key);

class C10dHost {
 public:
  // `listener`: the Unix socket at which connections are handed over.
  static absl::StatusOr<std::unique_ptr<C10dHost>> Create(io::UniqueFd listener);
  void Run();  // Until no client has been there for a while.

 private:
  explicit C10dHost(io::UniqueFd listener) : listener_(std::move(listener)) {}
  absl::Status SetUp();
  void AcceptHander();
  void TakeFrom(int hander);

  io::UniqueFd listener_, epoll_;
  std::unique_ptr<store::Server> server_;
  std::unordered_map<int, io::UniqueFd> handers_;  // Connected, and nothing handed over yet.
};

}  // namespace regroup::shim
