#include "agent/store/server.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>

#include "common/base/check.h"
#include "common/io/address.h"
#include "tests/agent/store/wire.h"

namespace regroup::store {
namespace {

using namespace wire;  // NOLINT: the requests' vocabulary.
using testing::ElementsAre;
using testing::HasSubstr;

// A server and its clients in one thread: whoever waits for bytes turns the server meanwhile.
class StoreServer : public testing::Test {
 protected:
  void Start(std::vector<std::string> members, std::size_t max_connections = 16384) {
    io::UniqueFd listener = std::move(*io::ListenTcp({"127.0.0.1", 0}));
    address_ = *io::LocalAddressOf(listener.get());
    ServerOptions options;
    options.members = std::move(members);
    options.max_connections = max_connections;
    options.log = [this](const std::string& line) { log_.push_back(line); };
    options.on_old_client = [this](const std::string& line) { old_.push_back(line); };
    server_ = std::move(*Server::Create(std::move(listener), std::move(options)));
  }
  io::UniqueFd Connect(const std::string& from = "127.0.0.1") {
    io::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    io::SocketAddress source = *io::ToSocketAddress({from, 0}),
                      target = *io::ToSocketAddress(address_);
    CHECK(::bind(fd.get(), source.get(), source.size) == 0);
    CHECK(::connect(fd.get(), target.get(), target.size) == 0);
    CHECK(io::SetNonBlocking(fd.get(), true).ok());
    return fd;
  }
  void Turn() {
    pollfd poll{server_->epoll_fd(), POLLIN, 0};
    if (::poll(&poll, 1, 1) > 0) server_->HandleReady();
  }
  void Send(const io::UniqueFd& fd, std::string_view bytes) {
    while (!bytes.empty()) {
      ssize_t n = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
      if (n < 0 && errno != EAGAIN) return;
      Turn();
    }
  }
  // Reads `size` bytes; fewer: the server closed.
  std::string Receive(const io::UniqueFd& fd, std::size_t size) {
    std::string bytes(size, '\0');
    std::size_t have = 0;
    while (have < size) {
      ssize_t n = ::recv(fd.get(), bytes.data() + have, size - have, 0);
      if (n == 0 || (n < 0 && errno != EAGAIN)) break;
      if (n > 0) have += static_cast<std::size_t>(n);
      if (n < 0) Turn();
    }
    return bytes.substr(0, have);
  }
  bool IsClosed(const io::UniqueFd& fd) { return Receive(fd, 1).empty(); }

  Address address_;
  std::unique_ptr<Server> server_;
  std::vector<std::string> log_, old_;
};

TEST_F(StoreServer, OnlyMembersMayConnect) {
  Start({"127.0.0.3"});
  io::UniqueFd own = Connect("127.0.0.1"), member = Connect("127.0.0.3"),
               stranger = Connect("127.0.0.2");
  EXPECT_TRUE(IsClosed(stranger));
  for (const io::UniqueFd* fd : {&own, &member}) {
    Send(*fd, Validate() + Ping(5));
    EXPECT_EQ(Receive(*fd, 4).size(), 4u);
  }
  EXPECT_THAT(log_, ElementsAre(HasSubstr("127.0.0.2")));
}

TEST_F(StoreServer, ViolationsCloseTheirConnectionAndAreNamed) {
  Start({});
  io::UniqueFd good = Connect(), bad = Connect(), old = Connect();
  Send(good, Validate() + Wait({"/a"}));
  Send(bad, Validate() + Set("/a", "1") + Op(99));  // What came before counts.
  Send(old, Op(3) + String("x"));
  EXPECT_TRUE(IsClosed(bad));
  EXPECT_TRUE(IsClosed(old));
  EXPECT_EQ(Receive(good, 1), kStop);
  EXPECT_THAT(log_, testing::UnorderedElementsAre(HasSubstr("unknown opcode 99"),
                                                  HasSubstr("PyTorch 2.0 or older")));
  EXPECT_THAT(old_, ElementsAre(HasSubstr("PyTorch 2.0 or older")));
}

TEST_F(StoreServer, LargeValuesPassInBothDirections) {
  Start({});
  io::UniqueFd writer = Connect(), reader = Connect();
  const std::string value(8 << 20, 'v');
  Send(writer, Validate() + Set("/v", value));
  Send(reader, Validate() + Wait({"/v"}));
  EXPECT_EQ(Receive(reader, 1), kStop);
  Send(reader, MultiGet({"/v", "/v", "/v"}));
  std::string all = Receive(reader, 3 * (8 + value.size()));
  EXPECT_EQ(all.size(), 3 * (8 + value.size()));
  EXPECT_EQ(all.substr(all.size() - value.size()), value);
}

TEST_F(StoreServer, AReaderThatNeverReadsIsBoundedByBackPressure) {
  Start({});
  io::UniqueFd greedy = Connect(), other = Connect();
  Send(greedy, Validate() + Set("/v", std::string(1 << 20, 'v')));
  const std::string get = Get("/v");
  for (int i = 0; i < 3000; ++i) {  // Would be 3 GB of answers.
    if (::send(greedy.get(), get.data(), get.size(), MSG_NOSIGNAL) < 0) break;
  }
  for (int i = 0; i < 20; ++i) server_->HandleReady();
  Send(other, Validate() + Ping(9));
  EXPECT_EQ(Receive(other, 4).size(), 4u);
}

TEST(ServerOptions, DescriptorsBoundConnections) {
  const auto within = [](std::size_t descriptors) {
    ServerOptions options;
    options.FitInto(descriptors, 300);
    return options.max_connections;
  };
  EXPECT_EQ(within(1 << 20), 16384u);
  EXPECT_EQ(within(1024), 724u);
  EXPECT_EQ(within(256), 128u);
}

TEST_F(StoreServer, ConnectionsAreBounded) {
  Start({}, 2);
  io::UniqueFd first = Connect(), second = Connect();
  Send(first, Validate() + Ping(1));
  EXPECT_EQ(Receive(first, 4).size(), 4u);
  io::UniqueFd third = Connect();
  EXPECT_TRUE(IsClosed(third));
  second.reset();
  while (server_->connection_count() > 1) Turn();
  io::UniqueFd fourth = Connect();
  Send(fourth, Validate() + Ping(1));
  EXPECT_EQ(Receive(fourth, 4).size(), 4u);
}

TEST_F(StoreServer, ClosedListenerKeepsItsConnections) {
  Start({});
  io::UniqueFd client = Connect();
  Send(client, Validate() + Ping(1));
  EXPECT_EQ(Receive(client, 4).size(), 4u);
  server_->CloseListener();
  Send(client, Ping(2));
  EXPECT_EQ(Receive(client, 4).size(), 4u);
  io::UniqueFd late(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  io::SocketAddress target = *io::ToSocketAddress(address_);
  EXPECT_EQ(::connect(late.get(), target.get(), target.size), -1);
}

TEST_F(StoreServer, ScannersAmongManyClientsHarmOnlyThemselves) {
  constexpr int kClients = 200;
  Start({});
  const std::vector<std::string> garbage = {
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      std::string("\x16\x03\x01\x02\x00\x01", 6),
      std::string("\x03\x00\x00\x13\x0e\xe0\x00\x00\x00\x00", 10),  // RDP.
      std::string(4096, '\xff'),
      Validate() + Op(1) + Number(1 << 30),  // A key of a gigabyte.
      Validate() + Op(1) + String("/k") + Number(std::int64_t{1} << 40),
      Validate() + Keys(6, {}).substr(0, 1) + Number(-1),
      Validate() + Op(77)};
  std::vector<io::UniqueFd> clients, strangers;
  for (int i = 0; i < kClients; ++i) {
    strangers.push_back(Connect());
    Send(strangers.back(), garbage[static_cast<std::size_t>(i) % garbage.size()]);
    clients.push_back(Connect());
    Send(clients.back(), Validate() + Add("init/", 1) + Barrier("/b", kClients));
  }
  for (const io::UniqueFd& client : clients) EXPECT_EQ(Receive(client, 9).substr(8), kStop);
  for (const io::UniqueFd& stranger : strangers) EXPECT_TRUE(IsClosed(stranger));
  EXPECT_EQ(server_->connection_count(), static_cast<std::size_t>(kClients));
  EXPECT_EQ(log_.size(), static_cast<std::size_t>(kClients));
  EXPECT_THAT(old_, testing::IsEmpty());
}

TEST_F(StoreServer, FourThousandClientsMeetAtABarrier) {
  constexpr int kClients = 4000;
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 2 * kClients + 100)
    GTEST_SKIP() << "needs " << 2 * kClients + 100 << " descriptors";
  Start({});
  std::vector<io::UniqueFd> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(Connect());
    Send(clients.back(), Validate() + Add("init/", 1) + Barrier("/b", kClients));
  }
  for (const io::UniqueFd& client : clients) ASSERT_EQ(Receive(client, 9).substr(8), kStop);
  Send(clients[0], Get("/b"));
  EXPECT_EQ(Receive(clients[0], 12), String("4000"));
}

}  // namespace
}  // namespace regroup::store
