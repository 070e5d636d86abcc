#include "launcher/coordinator/shell/tcp_gate.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "common/io/address.h"
#include "common/io/proc.h"
#include "launcher/coordinator/shell/http2_meter.h"
#include "launcher/coordinator/shell/memory_guard.h"
#include "tests/launcher/coordinator/shell/daemon_fixture.h"

namespace regroup::coordinator {
namespace {

using namespace std::chrono_literals;

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string Frame(int type, std::uint32_t stream, const std::string& payload, int flags = 0) {
  std::string frame;
  for (int shift : {16, 8, 0}) frame += static_cast<char>(payload.size() >> shift);
  frame += static_cast<char>(type);
  frame += static_cast<char>(flags);
  for (int shift : {24, 16, 8, 0}) frame += static_cast<char>(stream >> shift);
  return frame + payload;
}
std::string Headers(std::uint32_t stream) {
  // POST, http, /nothing, authority "a".
  return Frame(1, stream,
               "\x83\x86\x44\x08/nothing\x41\x01"
               "a",
               4);
}
std::string Reset(std::uint32_t stream, char error = 8) {
  return Frame(3, stream, std::string(3, '\0') + error);
}
std::string Times(int n, const std::string& frame) {
  std::string frames;
  while (n-- > 0) frames += frame;
  return frames;
}

// Each of another stream.
std::string Calls(int n) {
  std::string frames;
  for (int i = 0; i < n; ++i) frames += Headers(static_cast<std::uint32_t>(2 * i + 1));
  return frames;
}

struct MeterRow {
  const char* name;
  Http2Meter::From from;
  std::string frames;
  const char* excess;  // Null: none.
};

// Each is fed in pieces of every size from one byte on.
TEST(Http2Meter, CountsWhatOneSideMakesTheOtherDo) {
  const auto client = Http2Meter::From::kClient, server = Http2Meter::From::kServer;
  const std::string data = Frame(0, 1, std::string(70'000, '\x03'));
  const std::string large = Frame(0, 1, std::string(64 << 10, '\x03'));
  const char* const controls = "settings, pings and priorities";
  const MeterRow rows[] = {
      {"a share of resets", client, kPreface + Times(200, Headers(1) + Reset(1)), nullptr},
      {"one more", client, kPreface + Times(201, Headers(1) + Reset(1)), "resets"},
      {"a reset without its error", client, kPreface + Times(201, Frame(3, 1, "")), "resets"},
      {"a long reset", client, kPreface + Times(201, Frame(3, 1, std::string(9, 1))), "resets"},
      {"payload is no frame", client, kPreface + Times(50, data), nullptr},
      {"open streams", client, kPreface + Calls(300), nullptr},
      {"one more open", client, kPreface + Calls(301), "streams open at once"},
      {"an upload", client, kPreface + Headers(1) + Times(300, large), nullptr},
      {"a window of what came late", client, kPreface + Times(256, large), nullptr},
      {"data after its end", client,
       kPreface + Headers(3) + Headers(1) + Reset(1) + Times(257, large), "data after its end"},
      {"a share of settings", client, kPreface + Times(200, Frame(4, 0, "")), nullptr},
      {"settings", client, kPreface + Times(201, Frame(4, 0, "")), controls},
      {"pings", client, kPreface + Times(201, Frame(6, 0, "12345678")), controls},
      {"priorities", client, kPreface + Times(201, Frame(2, 1, "12345")), controls},
      {"a share of empty frames", client, kPreface + Headers(1) + Times(200, Frame(0, 1, "")),
       nullptr},
      {"empty frames", client, kPreface + Headers(1) + Times(201, Frame(0, 1, "")), "empty frames"},
      {"a farewell", client, kPreface + Times(4, Frame(7, 0, "12345678")), nullptr},
      {"goaways", client, kPreface + Times(5, Frame(7, 0, "12345678")), "goaways"},
      {"a server that ends", server, Times(300, Frame(7, 0, "12345678")), nullptr},
      {"a reader", client, kPreface + Times(50'000, Frame(8, 0, "1234")), nullptr},
      {"window updates", client, kPreface + Times(50'001, Frame(8, 0, "1234")), "window updates"},
      {"what a server makes room for", server, Times(50'001, Frame(8, 0, "1234")), nullptr},
      {"what a server answers", server, Times(30'000, Headers(1) + Reset(1, '\0')), nullptr},
      {"what a server was made to reset", server, Times(201, Reset(1, 1)), "resets"},
  };
  for (const MeterRow& row : rows) {
    for (const std::size_t piece : {1, 2, 5, 9, 13, 1'000, 1'000'000}) {
      Http2Counts counts;
      Http2Meter meter(row.from);
      const char* excess = nullptr;
      for (std::size_t at = 0; at < row.frames.size() && excess == nullptr; at += piece)
        excess = meter.Take(std::string_view(row.frames).substr(at, piece), Instant(5s), counts);
      EXPECT_STREQ(excess, row.excess) << row.name << " in pieces of " << piece;
    }
  }
}

TEST(Http2Meter, AStreamIsOpenUntilTheServerEndsIt) {
  Http2Counts counts;
  Http2Meter client(Http2Meter::From::kClient), server(Http2Meter::From::kServer);
  const Instant now(5s);
  EXPECT_EQ(client.Take(kPreface, now, counts), nullptr);
  for (int i = 0; i < 6'000; ++i) {
    ASSERT_EQ(client.Take(Headers(1) + Frame(0, 1, "message", 1), now, counts), nullptr);
    const std::string end = i % 2 ? Frame(1, 1, "trailers", 5) : Frame(0, 1, "", 1);
    ASSERT_EQ(server.Take(Headers(1) + Frame(0, 1, "reply") + end, now, counts), nullptr);
  }
  EXPECT_TRUE(counts.open.empty());
  EXPECT_EQ(client.Take(Times(100, Headers(1) + Reset(1)), now, counts), nullptr);
  EXPECT_TRUE(counts.open.empty()) << "a reset ends one as well";
  const std::string exchange = Headers(1);
  for (int i = 0; i < 20'000 - 6'100; ++i) {
    ASSERT_EQ(client.Take(exchange, now, counts), nullptr);
    ASSERT_EQ(server.Take(Frame(1, 1, "trailers", 5), now, counts), nullptr);
  }
  EXPECT_STREQ(client.Take(exchange, now, counts), "streams");
}

TEST(Http2Meter, EachSecondHasItsOwnShare) {
  Http2Counts counts;
  Http2Meter client(Http2Meter::From::kClient), server(Http2Meter::From::kServer);
  EXPECT_EQ(client.Take(kPreface, Instant(1s), counts), nullptr);
  for (int second = 1; second < 5; ++second) {
    EXPECT_EQ(client.Take(Times(150, Reset(1)), Instant(second * 1s), counts), nullptr);
    EXPECT_EQ(server.Take(Times(50, Reset(1)), Instant(second * 1s + 900ms), counts), nullptr);
  }
  EXPECT_STREQ(server.Take(Times(1, Reset(1)), Instant(4s + 950ms), counts), "resets")
      << "both directions share the counts";
  EXPECT_EQ(client.Take(Calls(300), Instant(6s), counts), nullptr);
  EXPECT_STREQ(client.Take(Headers(601), Instant(8s), counts), "streams open at once");
}

TEST(Http2Meter, EachSecondHasItsOwnShareOfLateData) {
  Http2Counts counts;
  Http2Meter client(Http2Meter::From::kClient);
  const std::string large = Frame(0, 1, std::string(1 << 20, 'x'));
  EXPECT_EQ(client.Take(kPreface, Instant(1s), counts), nullptr);
  for (int second = 1; second < 4; ++second)
    EXPECT_EQ(client.Take(Times(16, large), Instant(second * 1s), counts), nullptr);
  EXPECT_STREQ(client.Take(large, Instant(3s + 900ms), counts), "data after its end");
}

TEST(Http2Meter, GoawaysAreCountedForLife) {
  Http2Counts counts;
  Http2Meter client(Http2Meter::From::kClient);
  EXPECT_EQ(client.Take(kPreface, Instant(1s), counts), nullptr);
  for (int second = 1; second < 5; ++second)
    EXPECT_EQ(client.Take(Frame(7, 0, "12345678"), Instant(second * 1s), counts), nullptr);
  EXPECT_STREQ(client.Take(Frame(7, 0, "12345678"), Instant(10s), counts), "goaways");
}

// A gate alone: `peer` is what dialled, `server` the end that gRPC would have.
class Passages : public ::testing::Test {
 protected:
  struct Pair {
    io::UniqueFd peer, server;
  };
  Pair Connect(TcpGate& gate) {
    Pair pair;
    const io::SocketAddress to = *io::ToSocketAddress(*io::LocalAddressOf(listener_.get()));
    pair.peer = io::UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(pair.peer.get(), to.get(), to.size), 0);
    pollfd waiting{listener_.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&waiting, 1, 10'000), 1);
    io::UniqueFd accepted(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    absl::StatusOr<io::UniqueFd> server = gate.Admit(accepted);
    EXPECT_TRUE(server.ok()) << server.status();
    pair.server = *std::move(server);
    ::fcntl(pair.server.get(), F_SETFL, 0);  // Waits, as the peer's does.
    const timeval limit{20, 0};
    for (const io::UniqueFd* fd : {&pair.peer, &pair.server}) {
      ::setsockopt(fd->get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      ::setsockopt(fd->get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    }
    return pair;
  }
  static void SendAll(const io::UniqueFd& fd, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      ASSERT_GT(sent, 0) << std::strerror(errno);
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  static std::string ReceiveToEnd(const io::UniqueFd& fd) {
    std::string all;
    char piece[5'000];
    for (ssize_t got; (got = ::recv(fd.get(), piece, sizeof piece, 0)) > 0;)
      all.append(piece, static_cast<std::size_t>(got));
    return all;
  }
  static std::size_t OpenDescriptors() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      ++count;
    return count;
  }

  static void Untold(const std::string&, const std::string&, int) {}
  bool Refused() { return repute_.Refuses("127.0.0.1", io::MonotonicNow()); }
  Repute repute_;
  io::UniqueFd listener_ = *io::ListenTcp({"127.0.0.1", 0});
};

// Of frames, because the meter reads them; no byte of it is like another in its place.
std::string Large() {
  std::string payload(4 << 20, '\0');
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(i * i >> 7);
  return Frame(0, 1, payload);
}

TEST_F(Passages, WhatIsSentArrivesWholeBothWaysAtOnce) {
  TcpGate gate(Untold, repute_);
  const Pair pair = Connect(gate);
  const std::string down = Large(), up = kPreface + Headers(1) + Large() + Large();
  std::thread sender([&] { SendAll(pair.server, down); });
  std::thread uploader([&] { SendAll(pair.peer, up); });
  std::string heard(up.size(), '\0');
  std::thread reader([&] {
    EXPECT_EQ(::recv(pair.server.get(), heard.data(), heard.size(), MSG_WAITALL),
              static_cast<ssize_t>(up.size()));
  });
  std::string told(down.size(), '\0');
  EXPECT_EQ(::recv(pair.peer.get(), told.data(), told.size(), MSG_WAITALL),
            static_cast<ssize_t>(down.size()));
  uploader.join();
  sender.join();
  reader.join();
  EXPECT_TRUE(told == down);
  EXPECT_TRUE(heard == up);
}

TEST_F(Passages, TheEndOfEitherSideIsTheEndOfTheOtherAfterAllThatItSaid) {
  TcpGate gate(Untold, repute_);
  const std::string hello = kPreface + Frame(4, 0, "");
  Pair closed = Connect(gate), halved = Connect(gate), reset = Connect(gate), ended = Connect(gate);
  SendAll(closed.peer, hello);
  closed.peer.reset();
  EXPECT_EQ(ReceiveToEnd(closed.server), hello);
  SendAll(halved.peer, hello);
  ::shutdown(halved.peer.get(), SHUT_WR);
  EXPECT_EQ(ReceiveToEnd(halved.server), hello);
  EXPECT_EQ(ReceiveToEnd(halved.peer), "");
  const linger at_once{1, 0};
  ::setsockopt(reset.peer.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  reset.peer.reset();
  EXPECT_EQ(ReceiveToEnd(reset.server), "");
  SendAll(ended.server, hello);
  ended.server.reset();
  EXPECT_EQ(ReceiveToEnd(ended.peer), hello);
}

// What waits is bounded, and gRPC's end is the end of it, read or not.
TEST_F(Passages, AReaderThatDoesNotReadIsHeldNoLongerThanItLingers) {
  TcpGate gate(Untold, repute_, 50ms);
  Pair pair = Connect(gate);
  const std::string piece = Frame(0, 1, std::string(16'000, 'x'));
  std::size_t taken = 0;
  for (int full = 0; full < 20;) {
    const ssize_t sent = ::send(pair.server.get(), piece.data(), piece.size(), MSG_DONTWAIT);
    full = sent > 0 ? 0 : full + 1;
    if (sent > 0) taken += static_cast<std::size_t>(sent);
    pollfd writable{pair.server.get(), POLLOUT, 0};
    if (sent < 0) ::poll(&writable, 1, 10);
    ASSERT_LT(taken, 64u << 20) << "nothing bounds what waits";
  }
  pair.server.reset();
  EXPECT_TRUE(Eventually(
      [&] { return ::send(pair.peer.get(), kPreface, sizeof kPreface - 1, MSG_NOSIGNAL) < 0; }));
}

TEST_F(Passages, ItsEndPassesOnWhatTheServerSaidLast) {
  for (int i = 0; i < 200; ++i) {
    Pair pair;
    const std::string last = Frame(0, 1, std::string(100'000, 'l'));
    {
      TcpGate gate(Untold, repute_);
      pair = Connect(gate);
      SendAll(pair.server, last);
      pair.server.reset();
    }
    ASSERT_EQ(ReceiveToEnd(pair.peer).size(), last.size()) << "round " << i;
  }
}

TEST_F(Passages, ThousandsLeaveNoDescriptor) {
  TcpGate gate(Untold, repute_);
  const std::size_t before = OpenDescriptors();
  for (int round = 0; round < 20; ++round) {
    std::vector<Pair> pairs;
    for (int i = 0; i < 100; ++i) pairs.push_back(Connect(gate));
    for (int i = 0; i < 100; ++i) (i % 2 ? pairs[i].peer : pairs[i].server).reset();
  }
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() <= before; }))
      << OpenDescriptors() << " descriptors, before " << before;
}

// gRPC keeps 40 KiB for a connection whether anything comes of it or not.
TEST_F(Passages, OfThoseWithoutACallTheLongestQuietGoes) {
  TcpGate gate(Untold, repute_);
  Pair called = Connect(gate), answered = Connect(gate);
  const std::string call = kPreface + Frame(4, 0, "") + Headers(1);
  for (const Pair* pair : {&called, &answered}) {
    SendAll(pair->peer, call);
    std::string heard(call.size(), '\0');
    ASSERT_EQ(::recv(pair->server.get(), heard.data(), heard.size(), MSG_WAITALL),
              static_cast<ssize_t>(call.size()));
  }
  const std::string answer = Frame(1, 1, "x", /*flags=*/1);  // Its end: it is quiet from now on.
  SendAll(answered.server, answer);
  std::string told(answer.size(), '\0');
  ASSERT_EQ(::recv(answered.peer.get(), told.data(), told.size(), MSG_WAITALL),
            static_cast<ssize_t>(answer.size()));
  std::vector<Pair> quiet;
  for (std::size_t i = 0; i + 1 < kMaxQuietConnections; ++i) quiet.push_back(Connect(gate));
  const auto open = [](const Pair& pair) {
    char byte = 0;
    return ::recv(pair.peer.get(), &byte, 1, MSG_DONTWAIT) < 0;
  };
  EXPECT_TRUE(open(answered));
  quiet.push_back(Connect(gate));
  EXPECT_EQ(ReceiveToEnd(answered.peer), "");
  EXPECT_TRUE(open(called));
  EXPECT_TRUE(open(quiet.front()));
  quiet.push_back(Connect(gate));
  EXPECT_EQ(ReceiveToEnd(quiet.front().peer), "");
  EXPECT_TRUE(open(called));
  for (int i = 0; i < 100; ++i) quiet.push_back(Connect(gate));
  EXPECT_EQ(ReceiveToEnd(quiet[50].peer), "");
  EXPECT_FALSE(Refused()) << "who has to make room is hardly at fault";
}

TEST_F(Passages, ACutOrManyWithoutACallKeepTheirAddressOut) {
  TcpGate gate(Untold, repute_);
  const std::string call = kPreface + Frame(4, 0, "") + Headers(1);
  const auto cut = [&] {
    Pair flood = Connect(gate);
    SendAll(flood.peer, call + Times(kMaxResetsPerSecond + 1, Reset(1)));
    ReceiveToEnd(flood.peer);
  };
  for (int i = 0; i < 100; ++i) {
    Pair useful = Connect(gate);
    SendAll(useful.peer, call);
    useful.peer.reset();
    ReceiveToEnd(useful.server);
    ASSERT_FALSE(Refused());
  }
  cut();
  cut();
  EXPECT_TRUE(Refused());
  EXPECT_FALSE(repute_.Refuses("127.0.0.2", io::MonotonicNow()));

  Repute other;
  TcpGate another(Untold, other);
  for (int i = 0; i < 60; ++i) {
    Pair useless = Connect(another);
    SendAll(useless.peer, kPreface);
    useless.peer.reset();
    ReceiveToEnd(useless.server);
  }
  EXPECT_TRUE(other.Refuses("127.0.0.1", io::MonotonicNow()));
}

// As it does with what is no HTTP/2.
TEST_F(Passages, WhomTheServerCutsHasItsAddressKeptOut) {
  TcpGate gate(Untold, repute_);
  for (int i = 0; i < 2; ++i) {
    Pair pair = Connect(gate);
    SendAll(pair.peer, kPreface + Headers(1));
    std::string heard(sizeof kPreface - 1, '\0');
    ASSERT_GT(::recv(pair.server.get(), heard.data(), heard.size(), MSG_WAITALL), 0);
    EXPECT_FALSE(Refused());
    pair.server.reset();
    EXPECT_EQ(ReceiveToEnd(pair.peer), "");
  }
  EXPECT_TRUE(Refused());
}

// As it does with one that is idle for a minute, or whose agent was silent for a lease.
TEST_F(Passages, WhomTheServerLeavesWithoutACallOwesNothing) {
  TcpGate gate(Untold, repute_);
  for (int i = 0; i < 20; ++i) {
    Pair pair = Connect(gate);
    const std::string call = kPreface + Headers(1), answer = Frame(1, 1, "x", /*flags=*/5);
    SendAll(pair.peer, call);
    std::string heard(call.size(), '\0');
    ASSERT_GT(::recv(pair.server.get(), heard.data(), heard.size(), MSG_WAITALL), 0);
    SendAll(pair.server, answer);
    std::string told(answer.size(), '\0');
    ASSERT_GT(::recv(pair.peer.get(), told.data(), told.size(), MSG_WAITALL), 0);
    pair.server.reset();
    EXPECT_EQ(ReceiveToEnd(pair.peer), "");
  }
  EXPECT_FALSE(Refused());
}

class TcpGateTest : public DaemonFixture {
 protected:
  io::UniqueFd Connect() {
    const io::SocketAddress to = *io::ToSocketAddress(daemon_->addresses().front());
    io::UniqueFd fd(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd.get(), to.get(), to.size), 0);
    return fd;
  }
  // Sends until the other side is gone; how many rounds that took.
  static int SendUntilCut(const io::UniqueFd& fd, const std::function<std::string(int)>& round) {
    int rounds = 0;
    for (; rounds < 100'000; ++rounds) {
      const std::string bytes = round(rounds);
      if (::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) break;
      char ignored[4096];
      while (::recv(fd.get(), ignored, sizeof ignored, MSG_DONTWAIT) > 0) {
      }
    }
    return rounds;
  }
};

// One connection had made the process grow by a gigabyte in six seconds.
TEST_F(TcpGateTest, AConnectionThatResetsItsStreamsIsCutAndOthersAreServed) {
  Start();
  Client other = OverTcp();
  const io::UniqueFd attacker = Connect();
  const std::string hello = kPreface + Frame(4, 0, "");
  ASSERT_EQ(::send(attacker.get(), hello.data(), hello.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(hello.size()));
  const int rounds = SendUntilCut(attacker, [](int i) {
    const auto stream = static_cast<std::uint32_t>(2 * i + 1);
    return Headers(stream) + Reset(stream);
  });
  EXPECT_LT(rounds, 100'000);
  EXPECT_TRUE(other.Submit(SubmittedJob("train", 1, 1), "k").ok());
}

TEST(PeerText, NamesThePeerOfAConnectionThroughTheGateOrNot) {
  EXPECT_EQ(PeerText("ipv4:10.0.0.4:5123"), "10.0.0.4:5123");
  EXPECT_EQ(PeerText("ipv6:%5Bfe80::1%25eth0%5D:5123"), "[fe80::1%eth0]:5123");
  EXPECT_EQ(PeerText("unix-abstract:tcp%2F10.0.0.4%3A5123%2F77.3"), "10.0.0.4:5123");
  EXPECT_EQ(PeerText("unix-abstract:tcp/[fe80::1%25eth0]:5123/77.3"), "[fe80::1%eth0]:5123");
  EXPECT_EQ(PeerText("unix:"), "unix:");
}

TEST_F(TcpGateTest, BeyondTheMemoryLimitOnlyTheUnixSocketIsServed) {
  const std::string large(200u << 20, 'x');  // Of this process, which is the coordinator's as well.
  config_.memory_limit_bytes = 64u << 20;
  Start();
  EXPECT_TRUE(Eventually([&] {
    const io::UniqueFd fd = Connect();
    char byte;
    const timeval limit{1, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return ::recv(fd.get(), &byte, 1, 0) == 0;
  }));
  Client host = OverUnix();
  EXPECT_TRUE(host.Submit(SubmittedJob("train", 1, 1), "k").ok()) << large.size();
  pb::ReadRequest nodes;
  nodes.set_what(pb::ReadRequest::WHAT_NODES);
  const absl::StatusOr<pb::ReadReply> told = host.Read(nodes);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_GT(told->memory().resident_bytes(), large.size());
  EXPECT_EQ(told->memory().limit_bytes(), config_.memory_limit_bytes);
  EXPECT_GE(told->memory().refused_connections(), 1u);
  ASSERT_EQ(told->warnings_size(), 1);
  EXPECT_NE(told->warnings(0).find("more than its --memory-limit of 64.0 MiB"), std::string::npos)
      << told->warnings(0);
}

}  // namespace
}  // namespace regroup::coordinator
