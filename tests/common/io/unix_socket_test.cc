#include "common/io/unix_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

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

}  // namespace
}  // namespace regroup::io
