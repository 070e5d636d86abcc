#include "agent/shell/exit_error.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "common/base/control.h"
#include "tests/agent/shell/scratch.h"

namespace regroup::agent {
namespace {

TEST(ExitError, BothShapesOfAnErrorFile) {
  struct Row {
    const char* json;
    const char* text;
  };
  for (
      const Row& row :
      {Row{R"({"message": {"message": "ValueError: x", "extraInfo": {"timestamp": "1", "py_callstack": "Traceback\n  f\nValueError: x\n"}}})",
           "Traceback\n  f\nValueError: x"},
       Row{R"({"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "at f"}}})",
           "at f\nValueError: x"},
       Row{R"({"message": {"message": "ValueError: x"}})", "ValueError: x"},
       Row{R"({"message": "plain", "timestamp": 12})", "plain"}, Row{R"({"message": 5})", ""},
       Row{"{}", ""}, Row{"[1]", ""}, Row{"", ""},
       Row{R"({"message": {"message": ["x"], "extraInfo": 3}})", ""}}) {
    EXPECT_EQ(TextOfErrorFile(row.json), row.text) << row.json;
  }
}

TEST(ExitError, TheLastTracebackOrTwentyLines) {
  std::string lines;
  for (int i = 1; i <= 30; ++i) lines += "line " + std::to_string(i) + "\n";
  const std::string tail = TailOfStderr(lines);
  EXPECT_EQ(tail.substr(0, 8), "line 11\n");
  EXPECT_EQ(tail.substr(tail.size() - 7), "line 30");
  EXPECT_EQ(TailOfStderr(""), "");
  EXPECT_EQ(TailOfStderr("one"), "one");
  const std::string traceback =
      "Traceback (most recent call last):\n  File \"a\"\nRuntimeError: no";
  EXPECT_EQ(TailOfStderr("Traceback (most recent call last):\n  old\nKeyError: 1\n" + lines +
                         traceback + "\n"),
            traceback);
}

TEST(ExitError, OfAFatalErrorTheThreadThatFailed) {
  const std::string fatal =
      "Traceback (most recent call last):\nKeyError: 1\nFatal Python error: Segmentation fault\n\n"
      "Thread 0x00007f01 (most recent call first):\n  File \"pool.py\", line 1 in wait\n\n"
      "Current thread 0x00007f02 (most recent call first):\n  File \"a.py\", line 7 in f\n"
      "  File \"a.py\", line 9 in <module>\n\nExtension modules: numpy (total: 1)\n";
  EXPECT_EQ(TailOfStderr(fatal),
            "Fatal Python error: Segmentation fault\n"
            "Current thread 0x00007f02 (most recent call first):\n  File \"a.py\", line 7 in f\n"
            "  File \"a.py\", line 9 in <module>");
  EXPECT_EQ(TailOfStderr("x\nFatal Python error: Aborted\n"), "Fatal Python error: Aborted");
}

TEST(ExitError, WhatIsNoErrorFileCountsAsAbsent) {
  testing::Scratch scratch;
  const std::string file = scratch.path() + "/error.json", logs = scratch.path() + "/none";
  const auto read = [&] { return ReadExitError(file, logs); };
  const auto write = [&](std::string_view text) { std::ofstream(file) << text; };
  EXPECT_EQ(read().evidence, ErrorEvidence::kNone);
  for (const std::string& text :
       {std::string(), std::string("{\"message\": "), std::string("\0\xff\xfe{}", 5),
        std::string("{\"message\": \"\xff\"}"),
        "{\"message\": \"" + std::string(2 << 20, 'x') + "\"}", std::string(200000, '[')}) {
    write(text);
    EXPECT_EQ(read().text, "") << text.substr(0, 20);
    EXPECT_EQ(read().evidence, ErrorEvidence::kNone);
  }
  write(R"({"message": "plain", "timestamp": 12})");
  EXPECT_EQ(read().text, "plain");
  EXPECT_EQ(read().evidence, ErrorEvidence::kErrorFile);
  write(R"({"message": "torch.distributed.DistNetworkError: Connection reset by peer"})");
  EXPECT_EQ(read().evidence, ErrorEvidence::kCommunicator);
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  EXPECT_EQ(read().text, "");
  std::filesystem::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);  // Would wait for a writer.
  EXPECT_EQ(read().text, "");
}

TEST(ExitError, HandedOnItReadsTheSame) {
  RankCause cause;
  cause.node = "n";
  cause.rank = 3;
  cause.exit.code = 7;
  cause.exit.error = "Traceback (most recent call last):\n  f\nValueError: \xff x\n";
  cause.at = WallTime(std::chrono::seconds(1700000000));
  const std::string handed = ErrorFileOf(cause);
  EXPECT_THAT(handed, ::testing::HasSubstr("\"errorCode\":7"));
  EXPECT_THAT(handed, ::testing::HasSubstr("\"timestamp\":\"1700000000\""));
  EXPECT_EQ(TextOfErrorFile(handed),
            "Traceback (most recent call last):\n  f\nValueError: \xef\xbf\xbd x");
  cause.exit = RankExit();
  cause.exit.kind = ExitKind::kSignaled;
  cause.exit.code = 9;
  EXPECT_THAT(ErrorFileOf(cause), ::testing::HasSubstr("\"errorCode\":-9"));
  EXPECT_THAT(TextOfErrorFile(ErrorFileOf(cause)), ::testing::HasSubstr("rank 3 on n"));
}

TEST(ExitError, IsBounded) {
  const std::string long_line(20000, 'x');
  EXPECT_LE(TailOfStderr("a\n" + long_line).size(), kMaxErrorBytes);
  EXPECT_LE(TextOfErrorFile("{\"message\": \"" + long_line + "\"}").size(), kMaxErrorBytes);
}

}  // namespace
}  // namespace regroup::agent
