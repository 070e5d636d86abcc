#include "launcher/cli/commands/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace regroup::cli {
namespace {

using ::testing::ElementsAre;

class ProgramTest : public ::testing::Test {
 protected:
  ProgramTest() : path_(::getenv("PATH")) {
    std::string pattern = ::testing::TempDir() + "program_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    ::setenv("PATH", (folder_ + "/bin").c_str(), 1);
    ::unsetenv("PYTHON_EXEC");
    std::filesystem::create_directory(folder_ + "/bin");
  }
  ~ProgramTest() override {
    ::setenv("PATH", path_.c_str(), 1);
    ::unsetenv("PYTHON_EXEC");
    std::filesystem::remove_all(folder_);
  }
  std::string Make(const std::string& name, unsigned mode,
                   const std::string& text = "#!/bin/sh\n") {
    std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  absl::StatusCode CodeOf(const std::vector<std::string>& words, ProgramFlags flags = {}) {
    return ResolveProgram(words, flags).status().code();
  }
  std::string folder_, path_;
};

TEST_F(ProgramTest, PythonRunsScriptsAndModules) {
  std::string script = Make("train.py", 0644), python3 = Make("bin/python3", 0755);
  absl::StatusOr<Program> program = ResolveProgram({script, "--lr", "1"}, {});
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(program->executable, python3);
  EXPECT_THAT(program->argv, ElementsAre(python3, "-u", script, "--lr", "1"));
  std::string python = Make("bin/python", 0755);
  EXPECT_EQ(ResolveProgram({script}, {})->executable, python);  // Before python3.
  program = ResolveProgram({"pkg.train", "x"}, {.module = true, .no_python = false});
  ASSERT_TRUE(program.ok());
  EXPECT_THAT(program->argv, ElementsAre(python, "-u", "-m", "pkg.train", "x"));
  std::string own = Make("mypython", 0755);
  ::setenv("PYTHON_EXEC", own.c_str(), 1);
  EXPECT_EQ(ResolveProgram({script}, {})->executable, own);
  ::setenv("PYTHON_EXEC", (folder_ + "/none").c_str(), 1);
  EXPECT_EQ(CodeOf({script}), absl::StatusCode::kNotFound);
}

TEST_F(ProgramTest, AProgramThatSetsMasterPortIsKnown) {
  Make("bin/python3", 0755);
  const std::string script = Make("train.py", 0644, "os.environ['MASTER_PORT'] = '12355'");
  EXPECT_TRUE(ResolveProgram({script}, {})->hints.sets_master_port);
  EXPECT_TRUE(ResolveProgram({script}, {.run_path = true})->hints.sets_master_port);
  EXPECT_FALSE(ResolveProgram({Make("other.py", 0644, "")}, {})->hints.sets_master_port);
  EXPECT_FALSE(ResolveProgram({"no.such.module"}, {.module = true})->hints.sets_master_port);
  EXPECT_FALSE(ResolveProgram({Make("train", 0755)}, {})->hints.sets_master_port);
}

TEST_F(ProgramTest, EverythingElseIsExecuted) {
  std::string program = Make("bin/train", 0755), script = Make("train.py", 0755);
  EXPECT_EQ(ResolveProgram({"train"}, {})->executable, program);
  EXPECT_THAT(ResolveProgram({"train", "-x"}, {})->argv, ElementsAre("train", "-x"));
  EXPECT_EQ(ResolveProgram({script}, {.module = false, .no_python = true})->executable, script);
  EXPECT_FALSE(ResolveProgram({script}, {.module = false, .no_python = true})->python);
}

TEST_F(ProgramTest, WhatCanNotBeExecuted) {
  using enum absl::StatusCode;
  EXPECT_EQ(CodeOf({"nowhere"}), kNotFound);
  EXPECT_EQ(CodeOf({folder_ + "/nowhere"}), kNotFound);
  EXPECT_EQ(CodeOf({folder_ + "/nowhere.py"}), kNotFound);
  EXPECT_EQ(CodeOf({""}), kNotFound);
  EXPECT_EQ(CodeOf({folder_}), kFailedPrecondition);
  EXPECT_EQ(CodeOf({Make("plain", 0644)}), kFailedPrecondition);
  EXPECT_EQ(CodeOf({Make("file", 0644) + "/inside"}), kNotFound);
  EXPECT_EQ(CodeOf({Make("bad", 0755, "#!/no/such/interpreter\n")}), kFailedPrecondition);
  Make("bin/found", 0644);
  EXPECT_EQ(CodeOf({"found"}), kFailedPrecondition);  // As execvp: there, but not executable.
  Make("train.py", 0644);
  EXPECT_EQ(CodeOf({folder_ + "/train.py"}), kNotFound);  // No Python on this PATH.
}

TEST_F(ProgramTest, JobsAreNamedAfterTheirProgram) {
  EXPECT_EQ(DefaultJobName({"/a/b/Train_GPT.py"}), "train-gpt");
  EXPECT_EQ(DefaultJobName({"./train"}), "train");
  EXPECT_EQ(DefaultJobName({"pkg.train"}), "pkg-train");
  EXPECT_EQ(DefaultJobName({"..."}), "job");
  EXPECT_EQ(DefaultJobName({"/"}), "job");
}

}  // namespace
}  // namespace regroup::cli
