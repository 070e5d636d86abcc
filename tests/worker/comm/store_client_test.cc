#include "worker/comm/store_client.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <thread>

#include "tests/worker/comm/tiny_store.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(StoreClientTest, SetsGetsAddsAndChecks) {
  TinyStore store;
  store.Start();
  auto client = StoreClient::Connect("localhost", store.port(), seconds(5));
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE(client->Set("k", "value").ok());
  EXPECT_EQ(*client->Get("k"), "value");
  EXPECT_EQ(*client->Add("n", 5), 5);
  EXPECT_EQ(*client->Add("n", -2), 3);
  EXPECT_TRUE(*client->Check({"k", "n"}));
  EXPECT_FALSE(*client->Check({"k", "missing"}));
}

TEST(StoreClientTest, WaitReturnsWhenAnotherClientSetsTheLastKey) {
  TinyStore store;
  store.Start();
  auto waiter = StoreClient::Connect("127.0.0.1", store.port(), seconds(5));
  auto setter = StoreClient::Connect("127.0.0.1", store.port(), seconds(5));
  ASSERT_TRUE(waiter.ok() && setter.ok());
  std::thread late([&] {
    EXPECT_TRUE(setter->Set("a", "").ok());
    EXPECT_TRUE(setter->Set("b", "").ok());
  });
  EXPECT_TRUE(waiter->Wait({"a", "b"}, seconds(10)).ok());
  late.join();
}

TEST(StoreClientTest, AfterAWaitThatTimedOutTheConnectionStillWorks) {
  TinyStore store;
  store.Start();
  auto client = StoreClient::Connect("127.0.0.1", store.port(), seconds(5));
  ASSERT_TRUE(client.ok());
  EXPECT_EQ(client->Wait({"never"}, milliseconds(20)).code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(client->Set("k", "v").ok());
  EXPECT_EQ(*client->Get("k"), "v");
}

// An answer that comes late would be taken for that of the next call.
TEST(StoreClientTest, AfterAnAnswerThatDidNotComeInTimeNothingIsAskedAnyMore) {
  TinyStore store;
  store.Start();
  auto client = StoreClient::Connect("127.0.0.1", store.port(), seconds(5));
  ASSERT_TRUE(client.ok());
  ASSERT_EQ(*client->Add("n", 5), 5);
  client->SetPatience(seconds(0));
  absl::Status late;
  while (late.ok()) late = client->Add("n", 1).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  StoreClient moved = *std::move(client);
  moved.SetPatience(seconds(20));
  EXPECT_EQ(moved.Add("other", 1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(moved.Check({"n"}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(moved.Wait({"n"}, seconds(1)).code(), absl::StatusCode::kUnavailable);
  ASSERT_EQ(moved.Renew(seconds(5)), absl::OkStatus());
  EXPECT_EQ(*moved.Add("other", 1), 1);
}

// What follows a value that is too large would be taken for the next answer.
TEST(StoreClientTest, AfterAValueThatIsTooLargeNothingIsAskedAnyMore) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size), 0);
  std::thread store([&] {
    const int client = accept(listener, nullptr, nullptr);
    char said[64];
    EXPECT_EQ(recv(client, said, 10, MSG_WAITALL), 10);  // Its greeting ends with a number.
    EXPECT_EQ(send(client, said + 6, 4, MSG_NOSIGNAL), 4);
    EXPECT_GT(recv(client, said, sizeof said, 0), 0);
    const std::uint64_t answer[] = {9u << 20, 7};
    EXPECT_EQ(send(client, answer, sizeof answer, MSG_NOSIGNAL), ssize_t{sizeof answer});
    while (recv(client, said, sizeof said, 0) > 0) continue;
    close(client);
  });
  {
    auto client = StoreClient::Connect("127.0.0.1", ntohs(at.sin_port), seconds(10));
    ASSERT_TRUE(client.ok()) << client.status();
    EXPECT_EQ(client->Get("k").status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(client->Add("n", 1).status().code(), absl::StatusCode::kResourceExhausted);
  }
  store.join();
  close(listener);
}

TEST(StoreClientTest, NamesTheAddressThatDoesNotAnswer) {
  const auto client = StoreClient::Connect("127.0.0.1", 1, milliseconds(30));
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(client.status().message()).find("127.0.0.1:1"), std::string::npos)
      << client.status();
}

TEST(StoreClientTest, SomethingElseThatListensIsNoStore) {
  // It accepts, but says nothing: the handshake must not wait for ever.
  const TinyStore silent;
  const auto client = StoreClient::Connect("127.0.0.1", silent.port(), milliseconds(100));
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable) << client.status();
}

}  // namespace
}  // namespace regroup::worker
