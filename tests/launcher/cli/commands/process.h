#pragma once

// Runs a program to its end and keeps what it said.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace regroup::cli {

struct Ended {
  int code = -1;  // Exit status; -1: by a signal.
  int signal = 0;
  std::string out, err;
};

// `environment` is all there is, with PATH. stdin is /dev/null.
inline Ended RunProgram(const std::string& path, std::vector<std::string> args,
                        std::map<std::string, std::string> environment,
                        const std::string& directory = "/") {
  args.insert(args.begin(), path);
  environment.emplace("PATH", "/usr/bin:/bin");
  std::vector<std::string> entries;
  for (const auto& [name, value] : environment) entries.push_back(absl::StrCat(name, "=", value));
  std::vector<char*> argv, envp;
  for (std::string& arg : args) argv.push_back(arg.data());
  for (std::string& entry : entries) envp.push_back(entry.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  int out[2], err[2];
  EXPECT_EQ(::pipe2(out, O_CLOEXEC) | ::pipe2(err, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  ::posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  ::posix_spawn_file_actions_addchdir_np(&actions, directory.c_str());
  pid_t pid = 0;
  EXPECT_EQ(::posix_spawn(&pid, path.c_str(), &actions, nullptr, argv.data(), envp.data()), 0)
      << path;
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(out[1]);
  ::close(err[1]);
  Ended ended;
  std::array<pollfd, 2> fds = {{{out[0], POLLIN, 0}, {err[0], POLLIN, 0}}};
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    ::poll(fds.data(), fds.size(), -1);
    for (std::size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      char buffer[4096];
      ssize_t got = ::read(fds[i].fd, buffer, sizeof buffer);
      if (got > 0) (i == 0 ? ended.out : ended.err).append(buffer, static_cast<std::size_t>(got));
      if (got > 0) continue;
      ::close(fds[i].fd);
      fds[i].fd = -1;
    }
  }
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ended.signal = WTERMSIG(status);
  return ended;
}

// A folder of its own, removed at the end, and `regroup` run in it with a state directory of its
// own.
class RegroupTest : public ::testing::Test {
 protected:
  RegroupTest() {
    std::string pattern = BinDir() + "/../cli_test_XXXXXX";
    folder_ = std::filesystem::canonical(::mkdtemp(pattern.data())).string();
    std::filesystem::create_directory(folder_ + "/home");
    environment_ = {
        {"HOME", folder_ + "/home"}, {"XDG_STATE_HOME", folder_ + "/state"}, {"LANG", "C.UTF-8"}};
  }
  ~RegroupTest() override { std::filesystem::remove_all(folder_); }

  static std::string BinDir() {
    const char* dir = ::getenv("REGROUP_BIN_DIR");
    return dir == nullptr ? std::string(REGROUP_BIN_DIR_DEFAULT) : dir;
  }
  Ended Run(const std::vector<std::string>& args) const {
    return RunProgram(program_, args, environment_, folder_);
  }
  void Write(const std::string& name, const std::string& text, unsigned mode = 0644) const {
    std::string path = folder_ + "/" + name;
    int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    ASSERT_GE(fd, 0) << path;
    ASSERT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    ::close(fd);
  }

  std::string folder_, program_ = BinDir() + "/regroup";
  std::map<std::string, std::string> environment_;
};

}  // namespace regroup::cli
