#include "agent/shell/nursery.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "common/io/proc.h"
#include "tests/agent/shell/scratch.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;
using boost::asio::posix::stream_descriptor;
using testing::Scratch;

class NurseryTest : public ::testing::Test {
 protected:
  // A program that has its connection at descriptor 3, as SpawnNursery passes it, and says that it
  // is ready before it does `script`.
  void Start(const std::string& script) {
    const std::string program = scratch_.path() + "/nursery";
    std::ofstream(program) << "#!/bin/sh\nprintf ready >&3\n" << script;
    ::chmod(program.c_str(), 0700);
    shim::Spec spec;
    spec.command = {"python3", "train.py"};
    spec.directory = scratch_.path();
    nursery_ =
        Nursery::Start(loop_, program, spec, {}, [&](std::string why) { cold_ = std::move(why); });
    RunUntil([&] { return nursery_->ready(); });
  }
  void RunUntil(const std::function<bool()>& holds) {
    const auto limit = std::chrono::steady_clock::now() + 10s;
    while (!holds() && std::chrono::steady_clock::now() < limit) {
      loop_.restart();
      loop_.run_one_for(50ms);
    }
    EXPECT_TRUE(holds());
  }
  void StartShim() {
    nursery_->StartShim({.words = {"shim"}, .passed = {}},
                        [&](const shim::ShimStart&) { failed_ = true; });
  }
  std::string File(const std::string& name) const { return scratch_.path() + "/" + name; }

  Scratch scratch_;
  boost::asio::io_context loop_{1};
  std::shared_ptr<Nursery> nursery_;
  std::string cold_;
  bool failed_ = false;
};

// It closes with what the agent has sent unread, which the kernel tells before its last words.
TEST_F(NurseryTest, ItsLastWordsAreHeardWhereItHasNotReadOurs) {
  Start("until [ -e " + File("go") + " ]; do sleep 0.01; done\nprintf 'cold why' >&3\n" +
        "exec 3>&-\n: >" + File("over") + "\n");
  StartShim();
  std::ofstream(File("go")) << "yes";
  for (int i = 0; i < 1000 && !std::filesystem::exists(File("over")); ++i)
    std::this_thread::sleep_for(10ms);
  RunUntil([&] { return failed_ && !cold_.empty(); });
  EXPECT_EQ(cold_, "why");
}

// Two events of one turn: the handler of the first closes the other's descriptor, and the wait for
// the answer takes its place in the loop, where the second event still is.
TEST_F(NurseryTest, AnEventOfAClosedDescriptorIsNoAnswer) {
  Start("exec sleep 60\n");
  stream_descriptor reads[2] = {stream_descriptor(loop_), stream_descriptor(loop_)};
  io::UniqueFd writes[2];
  bool asked = false;
  for (int i = 0; i < 2; ++i) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    reads[i].assign(ends[0]);
    writes[i] = io::UniqueFd(ends[1]);
    ASSERT_EQ(::write(ends[1], "x", 1), 1);
    reads[i].async_wait(stream_descriptor::wait_read, [&, i](auto error) {
      if (error || std::exchange(asked, true)) return;
      reads[1 - i].close();
      StartShim();
    });
  }
  loop_.restart();
  loop_.run_for(200ms);
  EXPECT_TRUE(asked);
  EXPECT_TRUE(nursery_->ready()) << cold_;
  EXPECT_FALSE(failed_);
}

}  // namespace
}  // namespace regroup::agent
