// The store where real torchrun agents meet, as a process of its own.

#include "agent/shim/c10d_host.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "common/io/address.h"
#include "common/io/proc.h"
#include "common/io/spawn.h"
#include "common/io/unix_socket.h"
#include "tests/agent/shim/shim_fixture.h"
#include "tests/agent/store/wire.h"

namespace regroup::shim {
namespace {

namespace wire = regroup::store::wire;

TEST(RendezvousOf, StateAndRoundsOfAnyId) {
  EXPECT_EQ(RendezvousOf("/torch.rendezvous.none"), "none");
  EXPECT_EQ(RendezvousOf("/torch.rendezvous.none.0/torchelastic/role_info/3"), "none");
  EXPECT_EQ(RendezvousOf("/torch.rendezvous.v1.2"), "v1.2");
  EXPECT_EQ(RendezvousOf("/torch.rendezvous.v1.2.17/MASTER_ADDR"), "v1.2");
  EXPECT_EQ(RendezvousOf("/torch.rendezvous.team/job"), "team/job");
  EXPECT_EQ(RendezvousOf("/torch.rendezvous.team/job.0/MASTER_PORT"), "team/job");
  EXPECT_EQ(RendezvousOf("/default_pg/0//cpu//0/0"), "");
  EXPECT_EQ(RendezvousOf("init/"), "");
}

class C10dProcess : public testing::Test {
 protected:
  C10dProcess() {
    io::UniqueFd handing = *io::ListenUnix(directory_ / "s");
    pid_ =
        *io::SpawnDetached(ShimProgram(), {std::string(kC10dMode)}, STDERR_FILENO, handing.get());
    listener_ = *io::ListenTcp(Address{"127.0.0.1", 0});
  }
  ~C10dProcess() override {
    if (!pid_) return;
    ::kill(*pid_, SIGKILL);
    ::waitpid(*pid_, nullptr, 0);
  }

  // A client whose connection was accepted here and passed on; our end stays open in `accepted_`.
  io::UniqueFd Client() {
    const Address address = *io::LocalAddressOf(listener_.get());
    io::SocketAddress target = *io::ToSocketAddress(address);
    io::UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(client.get(), target.get(), target.size), 0);
    accepted_.reset();
    while (!accepted_) accepted_.reset(::accept(listener_.get(), nullptr, nullptr));
    const io::UniqueFd hander = *io::ConnectUnix(directory_ / "s");
    EXPECT_TRUE(io::SendFd(hander.get(), accepted_.get()).ok());
    return client;
  }
  static std::string Ask(const io::UniqueFd& client, const std::string& request, std::size_t size) {
    EXPECT_EQ(::send(client.get(), request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    std::string reply(size, '\0');
    const ssize_t got = ::recv(client.get(), reply.data(), size, MSG_WAITALL);
    return reply.substr(0, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }
  // Reaped. Within 20 s, or the test fails.
  bool HasEnded() {
    const io::UniqueFd process = *io::OpenPidfd(*pid_);
    pollfd ended{process.get(), POLLIN, 0};
    if (::poll(&ended, 1, 20'000) != 1) return false;
    ::waitpid(*pid_, nullptr, 0);
    pid_.reset();
    return true;
  }

  io::TempDirectory directory_;
  io::UniqueFd listener_, accepted_;
  std::optional<pid_t> pid_;
};

TEST_F(C10dProcess, ServesWhatIsPassedOnAndEndsAfterTheLast) {
  const std::string key = "/torch.rendezvous.job";
  io::UniqueFd first = Client(), second = Client();
  EXPECT_EQ(Ask(first, wire::Validate() + wire::Ping(7), 4), std::string("\7\0\0\0", 4));
  EXPECT_EQ(Ask(first, wire::CompareSet(key, "", "state"), 13), wire::String("state"));
  EXPECT_EQ(Ask(second, wire::Validate() + wire::Get(key), 13), wire::String("state"));
  accepted_.reset();
  first.reset();
  EXPECT_EQ(Ask(second, wire::Get(key), 13), wire::String("state"));
  second.reset();
  // The next job of that name finds nothing of this one.
  io::UniqueFd third = Client();
  EXPECT_EQ(Ask(third, wire::Validate() + wire::CompareSet(key, "", "new"), 11),
            wire::String("new"));
  accepted_.reset();
  third.reset();
  EXPECT_TRUE(HasEnded());
}

TEST_F(C10dProcess, AClientWhoseHostIsGoneIsNoticed) {
  io::UniqueFd client = Client();
  EXPECT_EQ(Ask(client, wire::Validate() + wire::Ping(7), 4), std::string("\7\0\0\0", 4));
  int on = 0;
  socklen_t size = sizeof on;
  ASSERT_EQ(::getsockopt(accepted_.get(), SOL_SOCKET, SO_KEEPALIVE, &on, &size), 0);
  EXPECT_NE(on, 0);
}

TEST_F(C10dProcess, AHanderWithoutADescriptorIsLetGo) {
  const io::UniqueFd hander = *io::ConnectUnix(directory_ / "s");
  ASSERT_EQ(::send(hander.get(), "x", 1, MSG_NOSIGNAL), 1);
  io::UniqueFd client = Client();
  EXPECT_EQ(Ask(client, wire::Validate() + wire::Add("init/", 1), 8), wire::Number(1));
}

}  // namespace
}  // namespace regroup::shim
