#include "launcher/coordinator/shell/prober.h"

#include <gtest/gtest.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <optional>

namespace regroup::coordinator {
namespace {

using boost::asio::ip::tcp;

class ProberTest : public ::testing::Test {
 protected:
  tcp::acceptor Listen(int backlog = 16) {
    tcp::acceptor acceptor(io_);
    acceptor.open(tcp::v4());
    acceptor.bind({boost::asio::ip::make_address("127.0.0.1"), 0});
    acceptor.listen(backlog);
    return acceptor;
  }
  ProbeResult Probe(const Address& address) {
    std::optional<ProbeResult> result;
    prober_.Probe(address, [&](ProbeResult r) {
      result = r;
      io_.stop();
    });
    io_.restart();
    io_.run();
    return *result;
  }
  boost::asio::io_context io_;
  Prober prober_{io_};
};

TEST_F(ProberTest, AWitnessThatAcceptsAndClosesLives) {
  tcp::acceptor acceptor = Listen();
  acceptor.async_accept([](const auto&, tcp::socket) {});
  EXPECT_EQ(Probe({"127.0.0.1", acceptor.local_endpoint().port()}), ProbeResult::kAccepted);
}

TEST_F(ProberTest, APortNobodyHasIsRefused) {
  tcp::acceptor acceptor = Listen();
  const std::uint16_t port = acceptor.local_endpoint().port();
  acceptor.close();
  EXPECT_EQ(Probe({"127.0.0.1", port}), ProbeResult::kRefused);
}

TEST_F(ProberTest, AHandshakeAloneIsSilence) {
  tcp::acceptor acceptor =
      Listen();  // As of a stopped process: the kernel answers, nobody accepts.
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Probe({"127.0.0.1", acceptor.local_endpoint().port()}), ProbeResult::kSilent);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, Prober::kLimit);
}

TEST_F(ProberTest, WhoSpeaksIsNoWitness) {
  tcp::acceptor acceptor = Listen();
  std::optional<tcp::socket> kept;
  acceptor.async_accept([&](const auto&, tcp::socket socket) {
    boost::asio::write(socket, boost::asio::buffer("hello", 5));
    kept.emplace(std::move(socket));
  });
  EXPECT_EQ(Probe({"127.0.0.1", acceptor.local_endpoint().port()}), ProbeResult::kSilent);
}

TEST_F(ProberTest, AnAddressThatIsNoneIsSilence) {
  EXPECT_EQ(Probe({"not an address", 1}), ProbeResult::kSilent);
}

TEST_F(ProberTest, ProbesAboveTheLimitWaitForAPlace) {
  tcp::acceptor acceptor = Listen(256);
  std::function<void()> accept = [&] {
    acceptor.async_accept([&](const auto& error, tcp::socket) {
      if (!error) accept();
    });
  };
  accept();
  Prober narrow(io_, 2);
  int accepted = 0;
  for (int i = 0; i < 50; ++i) {
    narrow.Probe({"127.0.0.1", acceptor.local_endpoint().port()}, [&](ProbeResult result) {
      accepted += result == ProbeResult::kAccepted ? 1 : 0;
      if (accepted == 50) io_.stop();
    });
  }
  io_.run();
  EXPECT_EQ(accepted, 50);
}

}  // namespace
}  // namespace regroup::coordinator
