#include "agent/shell/exit_error.h"

#include <gtest/gtest.h>

#include "common/base/control.h"

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

TEST(ExitError, IsBounded) {
  const std::string long_line(20000, 'x');
  EXPECT_LE(TailOfStderr("a\n" + long_line).size(), kMaxErrorBytes);
  EXPECT_LE(TextOfErrorFile("{\"message\": \"" + long_line + "\"}").size(), kMaxErrorBytes);
}

}  // namespace
}  // namespace regroup::agent
