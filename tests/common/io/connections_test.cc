#include "common/io/connections.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "common/io/address.h"

namespace regroup::io {
namespace {

TEST(IsConnectedTo, TheListenersPortWhileAConnectionStands) {
  absl::StatusOr<UniqueFd> listener = ListenTcp({"127.0.0.1", 0});
  ASSERT_TRUE(listener.ok()) << listener.status();
  const Address address = *LocalAddressOf(listener->get());
  EXPECT_FALSE(IsConnectedTo(address.port)) << "listening is no connection";
  const SocketAddress to = *ToSocketAddress(address);
  UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(client.get(), to.get(), to.size), 0);
  EXPECT_TRUE(IsConnectedTo(address.port));
}

}  // namespace
}  // namespace regroup::io
