#include "common/io/connections.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <vector>

#include "common/io/address.h"

namespace regroup::io {
namespace {

TEST(IsConnectedTo, TheListenersPortWhileAConnectionStands) {
  std::vector<UniqueFd> listeners;
  Address address;
  do {  // Another process may have connected from that port of another address.
    absl::StatusOr<UniqueFd> listener = ListenTcp({"127.0.0.1", 0});
    ASSERT_TRUE(listener.ok()) << listener.status();
    listeners.push_back(*std::move(listener));
    address = *LocalAddressOf(listeners.back().get());
  } while (IsConnectedTo(address.port) && listeners.size() < 16);
  EXPECT_FALSE(IsConnectedTo(address.port)) << "listening is no connection";
  const SocketAddress to = *ToSocketAddress(address);
  UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(client.get(), to.get(), to.size), 0);
  EXPECT_TRUE(IsConnectedTo(address.port));
}

}  // namespace
}  // namespace regroup::io
