#include "common/io/unix_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "tests/common/io/temp_directory.h"

namespace regroup::io {
namespace {

TEST(UnixSockets, WorkAtAnyPathLength) {
  TempDirectory directory;
  std::string deep = directory.path();
  for (int i = 0; i < 10; ++i) deep += "/" + std::string(60, 'd');
  ASSERT_TRUE(MakeDirectories(deep).ok());
  absl::StatusOr<UniqueFd> server = ListenUnix(deep + "/s");
  ASSERT_TRUE(server.ok()) << server.status();
  absl::StatusOr<UniqueFd> client = ConnectUnix(deep + "/s");
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(PeerCredentialsOf(client->get())->pid, ::getpid());
  EXPECT_EQ(PeerCredentialsOf(client->get())->uid, ::geteuid());
}

TEST(UnixSockets, ReplaceADeadOneButNotALiveOne) {
  TempDirectory directory;
  absl::StatusOr<UniqueFd> server = ListenUnix(directory / "s");
  ASSERT_TRUE(server.ok());
  EXPECT_TRUE(absl::IsUnavailable(ListenUnix(directory / "s").status()));
  server->reset();
  EXPECT_TRUE(absl::IsUnavailable(ConnectUnix(directory / "s").status()));
  EXPECT_TRUE(ListenUnix(directory / "s").ok());
  EXPECT_TRUE(absl::IsNotFound(ConnectUnix(directory / "other").status()));
}

// Two would serve under one name, each with a part of the clients.
TEST(UnixSockets, OneThatIsBehindIsNotReplaced) {
  TempDirectory directory;
  absl::StatusOr<UniqueFd> server = ListenUnix(directory / "s", 1);
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<UniqueFd> waiting;
  absl::Status last;
  for (int i = 0; i < 16 && last.ok(); ++i) {
    absl::StatusOr<UniqueFd> client = ConnectUnix(directory / "s");
    last = client.status();
    if (client.ok()) waiting.push_back(*std::move(client));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(last)) << last;
  EXPECT_TRUE(absl::IsUnavailable(ListenUnix(directory / "s").status()));
  UniqueFd accepted(::accept(server->get(), nullptr, nullptr));
  EXPECT_TRUE(ConnectUnix(directory / "s").ok());
}

TEST(UnixSockets, PassADescriptorOn) {
  int pair[2] = {};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
  UniqueFd a(pair[0]), b(pair[1]);
  EXPECT_TRUE(absl::IsUnavailable(ReceiveFd(b.get()).status()));
  UniqueFd sent(::eventfd(7, 0));
  ASSERT_TRUE(SendFd(a.get(), sent.get()).ok());
  absl::StatusOr<UniqueFd> got = ReceiveFd(b.get());
  ASSERT_TRUE(got.ok()) << got.status();
  sent.reset();
  std::uint64_t value = 0;
  EXPECT_EQ(::read(got->get(), &value, sizeof(value)), 8);
  EXPECT_EQ(value, 7u);
  EXPECT_NE(::fcntl(got->get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(::send(a.get(), "x", 1, 0), 1);
  EXPECT_TRUE(absl::IsInvalidArgument(ReceiveFd(b.get()).status()));
  a.reset();
  EXPECT_FALSE(ReceiveFd(b.get()).ok());
  EXPECT_FALSE(SendFd(b.get(), got->get()).ok());
}

}  // namespace
}  // namespace regroup::io
