#include "agent/shim/control_socket.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "agent/shim/wire.h"
#include "common/io/unix_socket.h"

namespace regroup::shim {
namespace {

class ControlSocketTest : public ::testing::Test {
 protected:
  ControlSocketTest()
      : epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        socket_(*ControlSocket::Open(epoll_.get(), *io::ListenUnix(path_), "nonce")),
        agent_(*io::ConnectUnix(path_)) {
    Say(Hello{.nonce = "nonce"});
  }
  ~ControlSocketTest() override { std::filesystem::remove_all(folder_); }
  void Say(const Command& command) {
    const std::string frame = Frame(Encode(command));
    ASSERT_EQ(::send(agent_.get(), frame.data(), frame.size(), 0),
              static_cast<ssize_t>(frame.size()));
  }
  // Until there is nothing left that the kernel tells of.
  std::vector<Command> Receive() {
    std::vector<Command> commands;
    epoll_event event;
    for (int i = 0; i < 20 && ::epoll_wait(epoll_.get(), &event, 1, 0) == 1; ++i) {
      for (ControlSocket::Received& received : socket_.OnEvent(event.data.fd, event.events))
        commands.push_back(std::move(received.command));
    }
    EXPECT_EQ(::epoll_wait(epoll_.get(), &event, 1, 0), 0) << "it spins";
    return commands;
  }
  static std::string MakeFolder() {
    std::string name = "/tmp/regroup-test.XXXXXX";
    return ::mkdtemp(name.data());
  }

  const std::string folder_ = MakeFolder(), path_ = folder_ + "/socket";
  io::UniqueFd epoll_;
  ControlSocket socket_;
  io::UniqueFd agent_;
};

TEST_F(ControlSocketTest, WhatWasSaidBeforeAnEndIsReceivedAfterAStateThatFoundIt) {
  EXPECT_TRUE(Receive().empty());
  EXPECT_TRUE(socket_.HasAgent());
  Say(Kill{});
  agent_.reset();
  socket_.Send({}, ControlSocket::To::kAll);
  const std::vector<Command> commands = Receive();
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<Kill>(commands[0]));
  EXPECT_FALSE(socket_.HasAgent());
}

TEST_F(ControlSocketTest, WhatASlowReaderHasSaidBeforeItsEndIsReceived) {
  EXPECT_TRUE(Receive().empty());
  State state;
  state.log_trouble = std::string(1 << 20, 'x');  // More than a socket takes.
  for (int i = 0; i < 3; ++i) socket_.Send(state, ControlSocket::To::kAll);
  EXPECT_TRUE(Receive().empty());
  Say(Release{});
  agent_.reset();
  const std::vector<Command> commands = Receive();
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<Release>(commands[0]));
  EXPECT_FALSE(socket_.HasAgent());
}

}  // namespace
}  // namespace regroup::shim
