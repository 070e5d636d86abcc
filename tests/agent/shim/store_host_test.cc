// The store as a process of its own.

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "common/io/address.h"
#include "tests/agent/shim/shim_fixture.h"
#include "tests/agent/store/wire.h"

namespace regroup::shim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
namespace wire = regroup::store::wire;

class StoreProcess : public ShimTest {
 protected:
  Group SpawnStore(int lifeline = -1) {
    Spec spec = CommandSpec({});
    spec.role = Role::kStore;
    spec.store_members = {"127.0.0.1"};
    return Spawn(spec, lifeline);
  }
};

io::UniqueFd Dial(const Address& address, const std::string& from = "127.0.0.1") {
  io::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  io::SocketAddress source = *io::ToSocketAddress({from, 0}),
                    target = *io::ToSocketAddress(address);
  if (::bind(fd.get(), source.get(), source.size) < 0 ||
      ::connect(fd.get(), target.get(), target.size) < 0)
    fd.reset();
  return fd;
}
std::string Ask(const io::UniqueFd& fd, const std::string& request, std::size_t size) {
  EXPECT_EQ(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string reply(size, '\0');
  ssize_t n = ::recv(fd.get(), reply.data(), size, MSG_WAITALL);
  return reply.substr(0, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
}

TEST_F(StoreProcess, ServesAndSurvivesItsAgent) {
  Group store = SpawnStore();
  // Connected before the process even runs: the agent bound the socket.
  io::UniqueFd client = Dial(store.witness);
  EXPECT_EQ(Ask(client, wire::Validate() + wire::Set("/a", "1") + wire::Get("/a"), 9),
            wire::String("1"));
  ASSERT_TRUE(store.WaitForPhase(Phase::kRunning));
  store.link.reset();  // The agent goes away and another one comes.
  EXPECT_EQ(Ask(client, wire::Add("/a", 1), 8), wire::Number(2));
  store.link = std::move(*Link::Connect(store.directory, store.spec, false));
  store.state = State{};
  ASSERT_TRUE(store.WaitForPhase(Phase::kRunning));
  EXPECT_TRUE(ReadRunDirectory(store.directory.path)->shim_alive);
  io::UniqueFd stranger = Dial(store.witness, "127.0.0.9");
  char byte;
  EXPECT_LE(::recv(stranger.get(), &byte, 1, 0), 0);
  EXPECT_THAT(ShimLog(store), testing::HasSubstr("127.0.0.9"));
  ASSERT_TRUE(store.link->Send(Kill{}).ok());
  ASSERT_TRUE(store.WaitForEnd());
  EXPECT_LE(::recv(client.get(), &byte, 1, 0), 0);
  EXPECT_FALSE(Dial(store.witness));
  EXPECT_FALSE(ReadRunDirectory(store.directory.path)->supervisor_lost());
}

TEST_F(StoreProcess, AnAgentIsToldOfAClientThatIsTooOld) {
  Group store = SpawnStore();
  io::UniqueFd garbage = Dial(store.witness), old = Dial(store.witness);
  EXPECT_EQ(Ask(garbage, "GET / HTTP/1.1\r\n\r\n", 1), "");
  EXPECT_EQ(Ask(old, wire::Op(3) + wire::String("init/") + wire::Number(1), 1), "");
  EXPECT_TRUE(store.WaitFor([](const State& state) {
    return state.log_trouble.find("PyTorch 2.0 or older") != std::string::npos;
  }));
  EXPECT_EQ(store.state.phase, Phase::kRunning);
}

TEST_F(StoreProcess, StopsWhenTheLastClientIsGone) {
  Group store = SpawnStore();
  io::UniqueFd client = Dial(store.witness);
  EXPECT_EQ(Ask(client, wire::Validate() + wire::Ping(1), 4).size(), 4u);
  store.Stop(seconds(3600));
  ASSERT_TRUE(store.WaitForPhase(Phase::kStopping));
  EXPECT_FALSE(Dial(store.witness));  // No new ones.
  EXPECT_EQ(Ask(client, wire::Ping(2), 4).size(), 4u);
  client.reset();
  ASSERT_TRUE(store.WaitForEnd());
}

TEST_F(StoreProcess, StopsAtTheDeadline) {
  Group store = SpawnStore();
  io::UniqueFd client = Dial(store.witness);
  EXPECT_EQ(Ask(client, wire::Validate() + wire::Ping(1), 4).size(), 4u);
  store.Stop(milliseconds(50));
  ASSERT_TRUE(store.WaitForEnd());
}

TEST_F(StoreProcess, EndsWithItsLifeline) {
  Lifeline lifeline = std::move(*MakeLifeline());
  Group store = SpawnStore(lifeline.read_end.get());
  ASSERT_TRUE(store.WaitForPhase(Phase::kRunning));
  lifeline.write_end.reset();
  ASSERT_TRUE(store.WaitForEnd());
}

TEST_F(StoreProcess, ASigkillIsToldByTheSocketAndTheRecord) {
  Group store = SpawnStore();
  ASSERT_TRUE(store.WaitForPhase(Phase::kRunning));
  ::kill(store.shim.pid, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return !store.link->OnReadable().ok(); }));
  store.gone = true;
  RunRecord record;
  EXPECT_TRUE(Eventually(
      [&] { return (record = *ReadRunDirectory(store.directory.path)).supervisor_lost(); }));
  EXPECT_EQ(*KillLeftovers(record), 0);
}

}  // namespace
}  // namespace regroup::shim
