#include "common/io/thread.h"

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <initializer_list>
#include <string>

namespace regroup::io {
namespace {

constexpr uid_t kNobody = 65534;
constexpr int kCannotBeNobody = 101;

// In a process that may have no thread but its first. Its status: what `run` returns.
int WithoutThreads(const std::function<int()>& run) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{0, 0};  // Whoever may do anything is held by no limit.
    if (::setrlimit(RLIMIT_NPROC, &none) != 0) _exit(100);
    if (::geteuid() == 0 && ::setuid(kNobody) != 0) _exit(kCannotBeNobody);
    _exit(run());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

bool Usable() {
  return WithoutThreads([] { return 0; }) == 0;
}

TEST(StartThread, RunsOrSaysThatThereIsNone) {
  if (!Usable()) GTEST_SKIP() << "root of a container without other users is held by no limit";
  bool ran = false;
  absl::StatusOr<std::thread> thread = StartThread([&ran] { ran = true; });
  ASSERT_TRUE(thread.ok());
  thread->join();
  EXPECT_TRUE(ran);
  EXPECT_EQ(WithoutThreads([] {
              const absl::StatusOr<std::thread> none = StartThread([] { _exit(102); });
              return absl::IsResourceExhausted(none.status()) ? 7 : 8;
            }),
            7);
}

TEST(StartThread, OneThatAProgramCannotBeWithoutEndsItClearly) {
  if (!Usable()) GTEST_SKIP() << "root of a container without other users is held by no limit";
  for (const std::function<void()>& start : std::initializer_list<std::function<void()>>{
           [] { std::thread([] {}).join(); }, [] { boost::asio::thread_pool pool(1); }}) {
    EXPECT_EQ(WithoutThreads([&]() noexcept {
                EndClearlyWithoutThreads(77);
                start();
                return 9;
              }),
              77);
  }
  const int status = WithoutThreads([]() noexcept {
    EndClearlyWithoutThreads(77);
    return std::stoi("no number");
  });
  EXPECT_LT(status, 0) << "any other exception ends it as before";
}

}  // namespace
}  // namespace regroup::io
