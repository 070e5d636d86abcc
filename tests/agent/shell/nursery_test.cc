#include "agent/shell/nursery.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "common/io/proc.h"
#include "tests/agent/shell/scratch.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;
using testing::Scratch;

// It closes with what the agent has sent unread, which the kernel tells before its last words.
TEST(Nursery, ItsLastWordsAreHeardWhereItHasNotReadOurs) {
  Scratch scratch;
  const std::string program = scratch.path() + "/nursery", go = scratch.path() + "/go",
                    over = scratch.path() + "/over";
  // At descriptor 3, as SpawnNursery passes it.
  std::ofstream(program) << "#!/bin/sh\nprintf ready >&3\nuntil [ -e " << go
                         << " ]; do sleep 0.01; done\nprintf 'cold why' >&3\nexec 3>&-\n: >" << over
                         << "\n";
  ::chmod(program.c_str(), 0700);
  shim::Spec spec;
  spec.command = {"python3", "train.py"};
  spec.directory = scratch.path();
  boost::asio::io_context loop{1};
  std::string cold;
  const auto nursery =
      Nursery::Start(loop, program, spec, {}, [&](std::string why) { cold = std::move(why); });
  const auto limit = std::chrono::steady_clock::now() + 10s;
  while (!nursery->ready() && std::chrono::steady_clock::now() < limit) loop.run_one_for(50ms);
  ASSERT_TRUE(nursery->ready());
  bool failed = false;
  nursery->StartShim({.words = {"shim"}, .passed = {}},
                     [&](const shim::ShimStart&) { failed = true; });
  std::ofstream(go) << "yes";
  while (!std::filesystem::exists(over) && std::chrono::steady_clock::now() < limit)
    std::this_thread::sleep_for(10ms);
  while (!(failed && !cold.empty()) && std::chrono::steady_clock::now() < limit) {
    loop.restart();
    loop.run_one_for(50ms);
  }
  EXPECT_EQ(cold, "why");
  EXPECT_TRUE(failed);
}

}  // namespace
}  // namespace regroup::agent
