#include "agent/shell/relay.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "common/io/proc.h"
#include "tests/agent/shell/scratch.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;
using testing::Scratch;

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  // What comes until the writer is closed.
  std::string All() {
    write.reset();
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = ::read(read.get(), buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(n));
    return text;
  }
  io::UniqueFd read, write;
};

TEST(Relay, FollowsLogsAndSaysItsOwnOnStderr) {
  Scratch scratch;
  Pipe out, err;
  const std::string logs = scratch.path() + "/0";
  io::LogWriter writer(logs, io::LogStream::kStdout, {});
  {
    Relay relay(out.write.get(), err.write.get());
    relay.Follow(logs, {});
    writer.Append(std::string("a\0b", 3), io::WallNow());
    relay.Poke();
    char first[3];
    ASSERT_EQ(::read(out.read.get(), first, 3), 3) << "shown while it runs";
    relay.Say("regroup: hello\n");
    writer.Append("partial", io::WallNow());
    EXPECT_TRUE(relay.Finish("regroup: end\n", 10s));
  }
  EXPECT_EQ(out.All(), "partial");
  EXPECT_EQ(err.All(), "regroup: hello\nregroup: end\n");
}

TEST(Relay, WhatIsNotShownIsFilteredAllTheSame) {
  Scratch scratch;
  Pipe out, err;
  const std::string logs = scratch.path() + "/train-1/1/0", kept = scratch.path() + "/a/kept.log";
  io::LogWriter to_stdout(logs, io::LogStream::kStdout, {}),
      to_stderr(logs, io::LogStream::kStderr, {});
  Relay::Rules rules;
  rules.out.shown = false;
  rules.out.filters = {"loss", "step"};
  rules.out.filtered_file = kept;
  rules.out.filtered_prefix = "[rank 5]:";
  rules.err.prefix = "[default0]:";
  rules.err.raw = false;
  rules.link = scratch.path() + "/train-1_n/attempt_0/0";
  rules.link_target = "../../train-1/1/0";
  {
    Relay relay(out.write.get(), err.write.get());
    relay.Follow(logs, rules);
    to_stdout.Append("step 1\nnothing\nlo", io::WallNow());
    to_stdout.Append("ss 2\nmore step", io::WallNow());
    to_stderr.Append("oops\n", io::WallNow());
    EXPECT_TRUE(relay.Finish("", 10s));
  }
  EXPECT_EQ(out.All(), "");
  EXPECT_EQ(err.All(), "[default0]:oops\n");
  std::ifstream in(kept);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}),
            "[rank 5]:step 1\n[rank 5]:loss 2\n[rank 5]:more step\n");
  EXPECT_TRUE(std::filesystem::exists(rules.link + "/stdout.log"));
}

TEST(Relay, TellsHowFarItIsAndShowsNoNotes) {
  Scratch scratch;
  Pipe out, err;
  const std::string logs = scratch.path() + "/0", passing = scratch.path() + "/passing";
  io::LogWriter writer(logs, io::LogStream::kStdout, {.segment_bytes = 4096, .segments = 2},
                       passing);
  writer.Hold(io::LogPosition{});
  std::atomic<int> told = 0;
  Relay relay(out.write.get(), err.write.get(), nullptr, [&] { ++told; });
  Relay::Rules rules;
  rules.err.shown = false;
  rules.passing = passing;
  rules.limits = {.segment_bytes = 4096, .segments = 2};
  relay.Follow(logs, rules);
  EXPECT_EQ(relay.ShownSoFar().at(logs).out, io::LogPosition{});
  EXPECT_EQ(relay.ShownSoFar().at(logs).err, io::kNotAwaited);
  std::string written;
  for (int i = 0; i < 6; ++i) {
    const std::string block(4096, static_cast<char>('a' + i));
    writer.Append(block, io::WallNow());
    written += block;
  }
  writer.Append("in memory", io::WallNow(), io::LogWriter::Place::kMemory);
  writer.Append("on disk", io::WallNow());
  written += "in memoryon disk";
  EXPECT_TRUE(relay.Finish("", 10s));
  EXPECT_EQ(out.All(), written);
  EXPECT_GT(told, 0);
  EXPECT_EQ(relay.ShownSoFar().at(logs).out.segment, 7);
  EXPECT_FALSE(std::filesystem::exists(logs + "/stdout.4.log")) << "the limit counts again";
  EXPECT_TRUE(std::filesystem::is_empty(passing));
}

// What one stream could not take is told on the other, once.
struct Told {
  std::string operator()(LineMixer::Sink sink, int error) {
    text = std::string(sink == LineMixer::Sink::kStdout ? "stdout: " : "stderr: ") +
           std::strerror(error) + "\n";
    ++*times;
    return text;
  }
  int* times;
  std::string text{};
};

TEST(Relay, AFullDiskIsToldOnceOnTheOtherStream) {
  Scratch scratch;
  Pipe err;
  const io::UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const std::string logs = scratch.path() + "/0";
  io::LogWriter writer(logs, io::LogStream::kStdout, {}), errors(logs, io::LogStream::kStderr, {});
  int times = 0;
  {
    Relay relay(full.get(), err.write.get(), Told{&times});
    relay.Follow(logs, {});
    for (int i = 0; i < 100; ++i) writer.Append("lost\n", io::WallNow() + std::chrono::seconds(i));
    errors.Append("kept\n", io::WallNow());
    EXPECT_TRUE(relay.Finish("regroup: end\n", 10s));
  }
  EXPECT_EQ(err.All(), "stdout: No space left on device\nkept\nregroup: end\n");
  EXPECT_EQ(times, 1);
}

std::string Gap(const std::string& directory, io::LogStream stream, const std::string& what) {
  return directory.substr(directory.rfind('/') + 1) + " " + std::string(io::NameOf(stream)) + ": " +
         what + "\n";
}

TEST(Relay, OutputThatIsGoneBeforeItWasShownIsTold) {
  Scratch scratch;
  Pipe out, err;
  const std::string logs = scratch.path() + "/3";
  io::LogWriter writer(logs, io::LogStream::kStdout, {.segment_bytes = 4096, .segments = 2});
  for (int i = 0; i < 5; ++i) writer.Append(std::string(4096, 'x'), io::WallNow());
  std::filesystem::create_directory(logs + "/stderr.0.log");
  for (int i = 1; i < 5; ++i) std::ofstream(logs + "/stderr." + std::to_string(i) + ".log") << "x";
  Relay::Rules rules;
  rules.limits = {.segment_bytes = 4096, .segments = 2};
  {
    Relay relay(out.write.get(), err.write.get(), nullptr, {}, Gap);
    relay.Follow(logs, rules);
    EXPECT_TRUE(relay.Finish("", 10s));
  }
  EXPECT_EQ(out.All(), std::string(8192, 'x'));
  const std::string told = err.All();
  EXPECT_NE(told.find("3 stdout: its log was removed before all of it was shown\n"),
            std::string::npos)
      << told;
  EXPECT_NE(told.find("3 stderr: "), std::string::npos) << told;
  EXPECT_NE(told.find("not a regular file"), std::string::npos) << told;
  EXPECT_TRUE(std::filesystem::exists(logs + "/stderr.1.log")) << "what could not be read stays";
}

TEST(Relay, ALogThatCouldNotBeReadForAMomentIsShownWhole) {
  Scratch scratch;
  Pipe out, err;
  const std::string logs = scratch.path() + "/3";
  std::filesystem::create_directories(logs + "/stdout.0.log");
  {
    Relay relay(out.write.get(), err.write.get(), nullptr, {}, Gap);
    relay.Follow(logs, {});
    relay.Say("looked\n");  // After a look at the logs.
    char looked[7];
    ASSERT_EQ(::read(err.read.get(), looked, sizeof looked), 7);
    std::filesystem::remove(logs + "/stdout.0.log");
    io::LogWriter writer(logs, io::LogStream::kStdout, {});
    writer.Append("whole", io::WallNow());
    EXPECT_TRUE(relay.Finish("", 10s));
  }
  EXPECT_EQ(out.All(), "whole");
  EXPECT_EQ(err.All(), "");
}

// Its rank would wait for ever once so much is not shown.
TEST(Relay, WhatComesAfterAPartThatCannotBeReadIsShownWithoutIt) {
  Scratch scratch;
  Pipe out, err;
  const std::string logs = scratch.path() + "/3";
  for (const char* unreadable : {"/stdout.0.log", "/stdout.2.log", "/stdout.3.log"})
    std::filesystem::create_directories(logs + unreadable);
  std::ofstream(logs + "/stdout.1.log") << "more";
  std::atomic<bool> told_on = false;
  {
    const Instant before = io::BootNow();
    Relay relay(
        out.write.get(), err.write.get(), nullptr,
        [&] {
          for (const auto& [directory, shown] : relay.ShownSoFar())
            told_on = told_on || shown.out.segment > 0;
        },
        Gap);
    Relay::Rules rules;
    rules.limits = {.segment_bytes = 4096, .segments = 1};
    relay.Follow(logs, rules);
    char more[4];
    ASSERT_EQ(::read(out.read.get(), more, sizeof more), 4);
    EXPECT_GE(io::BootNow() - before, Relay::kUnreadableLimit);
    for (int i = 0; i < 1000 && !told_on; ++i) std::this_thread::sleep_for(10ms);
    EXPECT_TRUE(told_on) << "or its shim would keep what cannot be shown";
    std::ofstream(logs + "/stdout.4.log") << "and the end";
    const Instant ends = io::BootNow();
    EXPECT_TRUE(relay.Finish("", 10s));
    EXPECT_LT(io::BootNow() - ends, Relay::kUnreadableLimit) << "nobody waits at the end";
  }
  EXPECT_EQ(out.All(), "and the end");
  const std::string told = err.All();
  const auto times = [&](const std::string& what) {
    int count = 0;
    for (std::size_t at = 0; (at = told.find(what, at)) != std::string::npos; ++at) ++count;
    return count;
  };
  EXPECT_EQ(times("3 stdout: "), 2) << told;
  EXPECT_EQ(times("not a regular file; what comes after it is shown\n"), 2) << told;
  EXPECT_TRUE(std::filesystem::exists(logs + "/stdout.1.log"))
      << "of what is not shown all is kept";
}

// Or its shim would keep what cannot be shown, and the rank wait for that.
TEST(Relay, APartThatIsLeftOutCountsAsShownThoughNothingFollows) {
  Scratch scratch;
  Pipe out, err;
  const std::string logs = scratch.path() + "/3";
  std::filesystem::create_directories(logs + "/stdout.0.log");
  std::ofstream(logs + "/stdout.1.log") << "";
  std::atomic<bool> told = false;
  Relay relay(
      out.write.get(), err.write.get(), nullptr, [&] { told = true; }, Gap);
  relay.Follow(logs, {});
  for (int i = 0; i < 2000 && !told; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(told);
  EXPECT_EQ(relay.ShownSoFar().at(logs).out, (io::LogPosition{1, 0}));
}

// Long after another moment in which it could not be read.
TEST(Relay, EachTimeALogCannotBeReadIsWaitedForAnew) {
  Scratch scratch;
  Pipe out, err;
  const std::string logs = scratch.path() + "/3";
  std::filesystem::create_directories(logs + "/stdout.0.log");
  {
    Relay relay(out.write.get(), err.write.get(), nullptr, {}, Gap);
    const auto look = [&] {
      relay.Poke();
      relay.Say("looked\n");  // After a look at the logs.
      char looked[7];
      ASSERT_EQ(::read(err.read.get(), looked, sizeof looked), 7);
    };
    relay.Follow(logs, {});
    look();
    std::filesystem::remove(logs + "/stdout.0.log");
    std::ofstream(logs + "/stdout.0.log") << "a";
    look();
    std::this_thread::sleep_for(Relay::kUnreadableLimit);
    std::filesystem::create_directory(logs + "/stdout.1.log");
    std::ofstream(logs + "/stdout.2.log") << "c";
    look();
    std::filesystem::remove(logs + "/stdout.1.log");
    std::ofstream(logs + "/stdout.1.log") << "b";
    EXPECT_TRUE(relay.Finish("", 10s));
  }
  EXPECT_EQ(out.All(), "abc");
  EXPECT_EQ(err.All(), "");
}

TEST(Relay, AReaderThatHasGoneIsToldOnce) {
  ::signal(SIGPIPE, SIG_IGN);
  Scratch scratch;
  Pipe out, err;
  err.read.reset();
  const std::string logs = scratch.path() + "/0";
  io::LogWriter writer(logs, io::LogStream::kStdout, {}), errors(logs, io::LogStream::kStderr, {});
  int times = 0;
  {
    Relay relay(out.write.get(), err.write.get(), Told{&times});
    relay.Follow(logs, {});
    errors.Append("nobody reads this\n", io::WallNow());
    EXPECT_TRUE(relay.Finish("regroup: end\n", 10s));
  }
  EXPECT_EQ(out.All(), "stderr: Broken pipe\n");
  EXPECT_EQ(times, 1);
}

TEST(Relay, AReaderThatDoesNotReadDelaysOnlyTheShow) {
  Scratch scratch;
  Pipe out, err;
  const std::string logs = scratch.path() + "/0";
  io::LogWriter writer(logs, io::LogStream::kStdout, {});
  const std::string block(256 << 10, 'x');  // More than a pipe holds.
  writer.Append(block, io::WallNow());
  Relay relay(out.write.get(), err.write.get());
  relay.Follow(logs, {});
  EXPECT_FALSE(relay.Finish("", 200ms));
  std::string got(block.size(), '\0');
  for (std::size_t done = 0; done < got.size();) {
    const ssize_t n = ::read(out.read.get(), got.data() + done, got.size() - done);
    ASSERT_GT(n, 0);
    done += static_cast<std::size_t>(n);
  }
  EXPECT_EQ(got, block);
}

}  // namespace
}  // namespace regroup::agent
