#include "agent/shell/worker_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/io/unix_socket.h"
#include "tests/agent/shell/scratch.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;
using testing::Scratch;

constexpr char kHello[] =
    R"({"hello": {"version": 1, "job": "a-1", "generation": "2", "rank": 3, "localRank": 1, "token": "ours", "takesNotice": true}})"
    "\n";

class WorkerServerTest : public ::testing::Test {
 protected:
  WorkerServerTest() {
    auto listener = io::ListenUnix(path_);
    EXPECT_TRUE(listener.ok()) << listener.status();
    server_.emplace(
        loop_, *std::move(listener), 4,
        [](const GroupKey& key, int rank, int local_rank, const std::string& token) {
          return key == GroupKey{JobId("a-1"), Generation(2)} && rank == local_rank + 2 &&
                 token == (rank == 3 ? "ours" : "theirs");
        },
        [this](Event event) { events_.push_back(std::move(event)); },
        [this](std::string text) { warnings_.push_back(std::move(text)); });
  }
  io::UniqueFd Connect() {
    auto fd = io::ConnectUnix(path_);
    EXPECT_TRUE(fd.ok()) << fd.status();
    return *std::move(fd);
  }
  static void Say(const io::UniqueFd& fd, std::string_view text) {
    ASSERT_EQ(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // Runs the loop until `done` holds; fails after 5 s.
  template <class Done>
  void RunUntil(Done done) {
    const auto limit = std::chrono::steady_clock::now() + 5s;
    while (!done() && std::chrono::steady_clock::now() < limit) loop_.run_one_for(50ms);
    ASSERT_TRUE(done());
  }
  // What was sent to a worker, whole lines; empty string at the end of the connection.
  std::string ReadLine(const io::UniqueFd& fd) {
    std::string line;
    bool over = false;
    RunUntil([&] {
      for (char c; !over && (line.empty() || line.back() != '\n');) {
        const ssize_t n = ::recv(fd.get(), &c, 1, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) over = true;
        if (n <= 0) break;
        line += c;
      }
      return over || (!line.empty() && line.back() == '\n');
    });
    return over ? "" : line;
  }
  const WorkerSaid& Said(std::size_t i) { return std::get<WorkerSaid>(events_.at(i)); }

  Scratch scratch_;
  const std::string path_ = scratch_.path() + "/workers";
  boost::asio::io_context loop_{1};
  std::vector<Event> events_;
  std::vector<std::string> warnings_;
  std::optional<WorkerServer> server_;
};

TEST_F(WorkerServerTest, WithoutDescriptorsItWaitsAndDoesNotSpin) {
  io::UniqueFd worker = Connect();
  io::UniqueFd lowest(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{static_cast<rlim_t>(lowest.get()) + 1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  std::size_t handlers = loop_.run_for(350ms);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_LE(handlers, 16u);
  EXPECT_EQ(warnings_.size(), 1u);
  Say(worker, kHello);
  EXPECT_NE(ReadLine(worker).find("welcome"), std::string::npos) << "what waited is served";
}

TEST_F(WorkerServerTest, HelloThenProgressAndCommit) {
  const io::UniqueFd worker = Connect();
  Say(worker, kHello);
  EXPECT_NE(ReadLine(worker).find("welcome"), std::string::npos);
  Say(worker,
      R"({"progress": {"step": "12", "samples": 48, "tokens": "49152", "loss": 2.5, "initS": 0.25}})"
      "\n"
      R"({"commit": {"attempt": 2, "step": 12, "manifestHash": "ab", "path": "/ckpt", "forNotice": true}})"
      "\n");
  RunUntil([&] { return events_.size() == 3; });
  EXPECT_EQ(Said(0).key, (GroupKey{JobId("a-1"), Generation(2)}));
  EXPECT_EQ(Said(0).rank, 3);
  EXPECT_EQ(Said(0).local_rank, 1);
  EXPECT_TRUE(std::get<WorkerHello>(Said(0).what).takes_notice);
  const auto& progress = std::get<WorkerProgress>(Said(1).what);
  EXPECT_EQ(progress.step, 12);
  EXPECT_EQ(progress.samples, 48);
  EXPECT_EQ(progress.tokens, 49152);
  EXPECT_EQ(progress.rank, 3);
  EXPECT_EQ(progress.loss, 2.5);
  EXPECT_EQ(progress.init, Duration(250ms));
  EXPECT_FALSE(progress.restore);
  EXPECT_EQ(std::get<CommitRequest>(Said(2).what).path, "/ckpt");
  server_->TellNotice({JobId("a-1"), Generation(2)}, 1, 20s);
  EXPECT_EQ(ReadLine(worker), "{\"notice\":{\"leftS\":20}}\n");
}

TEST_F(WorkerServerTest, NoticesReachOnlyTheirRank) {
  const io::UniqueFd worker = Connect();
  Say(worker, kHello);
  EXPECT_FALSE(ReadLine(worker).empty());
  server_->TellNotice({JobId("a-1"), Generation(2)}, 0, 20s);
  server_->TellNotice({JobId("a-1"), Generation(1)}, 1, 20s);
  server_->TellNotice({JobId("a-1"), Generation(2)}, 1, 5s);
  EXPECT_EQ(ReadLine(worker), "{\"notice\":{\"leftS\":5}}\n");
}

TEST_F(WorkerServerTest, AWorkerMayBeginToTakeNotices) {
  const io::UniqueFd worker = Connect();
  Say(worker,
      R"({"hello": {"version": 1, "job": "a-1", "generation": "2", "rank": 3, "localRank": 1, "token": "ours"}})"
      "\n");
  EXPECT_FALSE(ReadLine(worker).empty());
  Say(worker, kHello);
  EXPECT_NE(ReadLine(worker).find("welcome"), std::string::npos);
  ASSERT_EQ(events_.size(), 2u);
  EXPECT_FALSE(std::get<WorkerHello>(Said(0).what).takes_notice);
  EXPECT_TRUE(std::get<WorkerHello>(Said(1).what).takes_notice);
  server_->TellNotice({JobId("a-1"), Generation(2)}, 1, 5s);
  EXPECT_EQ(ReadLine(worker), "{\"notice\":{\"leftS\":5}}\n");
}

TEST_F(WorkerServerTest, AnotherRanksTokenIsRefusedAndSaidOnce) {
  const std::string without =
      R"({"hello": {"version": 1, "job": "a-1", "generation": "2", "rank": 3, "localRank": 1}})"
      "\n";
  const std::string as_another =
      R"({"hello": {"version": 1, "job": "a-1", "generation": "2", "rank": 2, "localRank": 0, "token": "ours"}})"
      "\n";
  for (const std::string& hello : {without, without, as_another}) {
    const io::UniqueFd bad = Connect();
    Say(bad, hello + R"({"progress": {"step": 1}})" + "\n");
    EXPECT_EQ(ReadLine(bad), "");
  }
  EXPECT_TRUE(events_.empty());
  ASSERT_EQ(warnings_.size(), 2u);
  EXPECT_EQ(
      warnings_[0],
      "a connection to the worker socket said to be rank 3 (local rank 1) of a-1 generation 2 "
      "without REGROUP_WORKER_TOKEN: closed. What it reports does not count");
  EXPECT_NE(warnings_[1].find("with another rank's REGROUP_WORKER_TOKEN"), std::string::npos);
}

TEST_F(WorkerServerTest, RefusalsWithoutEndAreToldAFewTimes) {
  for (std::size_t i = 0; i < 3 * kMaxRefusalsTold; ++i) {
    const io::UniqueFd bad = Connect();
    Say(bad, absl::StrCat(R"({"hello": {"version": 1, "generation": "1", "rank": )", i,
                          R"(, "job": ")", std::string(10'000, 'x'), "\"}}\n"));
    EXPECT_EQ(ReadLine(bad), "");
  }
  ASSERT_EQ(warnings_.size(), kMaxRefusalsTold);
  EXPECT_LT(warnings_[0].size(), 300u);
}

TEST_F(WorkerServerTest, GarbageClosesItsOwnConnectionOnly) {
  const io::UniqueFd good = Connect();
  Say(good, kHello);
  EXPECT_FALSE(ReadLine(good).empty());
  for (const std::string& garbage :
       {std::string("not json\n"), std::string("{\"progress\": {\"step\": 1}}\n"),
        std::string("\0\0\0\n", 4), std::string("{\"hello\": {\"version\": 9}}\n"),
        std::string(kMaxLineBytes + 2, '{'), std::string("\n")}) {
    const io::UniqueFd bad = Connect();
    Say(bad, garbage);
    EXPECT_EQ(ReadLine(bad), "") << garbage.substr(0, 20);
  }
  for (
      const std::string absurd :
      {R"({"progress": {"step": -1}})", R"({"commit": {"manifestHash": "zz"}})",
       R"({"hello": {"version": 1, "job": "a-1", "generation": "2", "rank": 4, "localRank": 1, "token": "ours"}})"}) {
    const io::UniqueFd bad = Connect();
    Say(bad, kHello);
    EXPECT_FALSE(ReadLine(bad).empty());
    Say(bad, absurd + "\n");
    EXPECT_EQ(ReadLine(bad), "") << absurd;
  }
  EXPECT_FALSE(warnings_.empty());
  const std::size_t before = events_.size();
  Say(good, "{\"progress\": {\"step\": 1}}\n");
  RunUntil([&] { return events_.size() == before + 1; });
}

TEST_F(WorkerServerTest, ConnectionsAreBounded) {
  std::vector<io::UniqueFd> workers;
  for (int i = 0; i < 4; ++i) {
    workers.push_back(Connect());
    Say(workers.back(), kHello);
    EXPECT_FALSE(ReadLine(workers.back()).empty());
  }
  const io::UniqueFd surplus = Connect();
  EXPECT_EQ(ReadLine(surplus), "");
  workers.clear();
  RunUntil([&] { return events_.size() == 8; });
  EXPECT_TRUE(std::holds_alternative<WorkerHungUp>(events_.back()));
}

TEST_F(WorkerServerTest, SilentConnectionsKeepNoWorkerOut) {
  std::vector<io::UniqueFd> silent;
  for (int i = 0; i < 9; ++i) silent.push_back(Connect());
  const io::UniqueFd worker = Connect();
  Say(worker, kHello);
  EXPECT_NE(ReadLine(worker).find("welcome"), std::string::npos);
  EXPECT_EQ(ReadLine(silent.front()), "");
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(WorkerServerTest, AFloodIsReadAtItsShareAndKeepsNobodyWaiting) {
  const io::UniqueFd flooder = Connect(), worker = Connect();
  Say(flooder, kHello);
  Say(worker, kHello);
  EXPECT_FALSE(ReadLine(flooder).empty());
  EXPECT_FALSE(ReadLine(worker).empty());
  const std::size_t before = events_.size();
  const std::string line = "{\"progress\": {\"step\": 1}}\n";
  std::string lines;
  while (lines.size() < (48 << 10)) lines += line;
  const auto begun = std::chrono::steady_clock::now();
  const auto took = [&] { return std::chrono::steady_clock::now() - begun; };
  std::size_t at = 0;
  while (took() < 450ms) {
    const ssize_t sent =
        ::send(flooder.get(), lines.data() + at, lines.size() - at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) at = (at + static_cast<std::size_t>(sent)) % lines.size();
    loop_.run_one_for(10ms);
  }
  const std::size_t windows = static_cast<std::size_t>(took() / 100ms) + 2;
  EXPECT_GE(events_.size() - before, 100u);
  EXPECT_LE(events_.size() - before, 100u * windows);
  Say(worker, "{\"progress\": {\"step\": 77}}\n");
  RunUntil([&] {
    const auto* progress = std::get_if<WorkerProgress>(&Said(events_.size() - 1).what);
    return progress != nullptr && progress->step == 77;
  });
  EXPECT_LE(events_.size() - before, 100u * (windows + 2));
  EXPECT_TRUE(warnings_.empty());
}

}  // namespace
}  // namespace regroup::agent
