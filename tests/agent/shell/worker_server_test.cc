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
          if (key == GroupKey{JobId("a-1"), Generation(3)}) return token == "next";
          return key == GroupKey{JobId("a-1"), Generation(2)} && rank == local_rank + 2 &&
                 token == (rank == 3 ? "ours" : "theirs");
        },
        [this](Event event) { events_.push_back(std::move(event)); },
        [this](std::string text) { warnings_.push_back(std::move(text)); },
        [this](const GroupKey& key, int local_rank) {
          const bool newer = next_ && key.generation < next_->key.generation;
          return newer && local_rank == next_->local_rank ? next_ : std::nullopt;
        });
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
  std::optional<NewGeneration> next_;  // Of the ranks that live on.
  std::optional<WorkerServer> server_;
};

constexpr char kNextHello[] =
    R"({"hello": {"version": 1, "job": "a-1", "generation": "3", "rank": 7, "localRank": 1, "token": "next", "inPlace": true}})"
    "\n";

NewGeneration NextOf(int local_rank) {
  return {{JobId("a-1"), Generation(3)}, 7, local_rank, {{"RANK", "7"}}};
}
constexpr char kNewGeneration[] =
    "{\"newGeneration\":{\"generation\":\"3\",\"environment\":{\"RANK\":\"7\"}}}\n";

TEST_F(WorkerServerTest, AWorkerRetiresAndGoesOnInTheNextGeneration) {
  const GroupKey old{JobId("a-1"), Generation(2)};
  const io::UniqueFd worker = Connect(), other = Connect();
  Say(worker, kHello);
  EXPECT_FALSE(ReadLine(worker).empty());
  Say(other,
      R"({"hello": {"version": 1, "job": "a-1", "generation": "2", "rank": 2, "localRank": 0, "token": "theirs", "inPlace": true}})"
      "\n");
  EXPECT_FALSE(ReadLine(other).empty());
  EXPECT_FALSE(std::get<WorkerHello>(Said(0).what).in_place);
  EXPECT_TRUE(std::get<WorkerHello>(Said(1).what).in_place);
  server_->TellRetire(old, 1, 20s);
  EXPECT_EQ(ReadLine(worker), "{\"retire\":{\"generation\":\"2\",\"leftS\":20}}\n");
  // Said twice, and once of a generation that is long over.
  Say(worker,
      "{\"retired\": {\"generation\": \"2\"}}\n{\"retired\": {\"generation\": \"1\"}}\n"
      "{\"retired\": {\"generation\": \"2\"}}\n");
  RunUntil([&] { return events_.size() == 4; });
  for (std::size_t i : {2u, 3u}) {
    EXPECT_TRUE(std::holds_alternative<WorkerRetired>(Said(i).what));
    EXPECT_EQ(Said(i).key, old);
    EXPECT_EQ(Said(i).local_rank, 1);
  }
  server_->TellNewGeneration(NextOf(1));
  EXPECT_EQ(ReadLine(worker), kNewGeneration);
  Say(worker, kNextHello);
  EXPECT_NE(ReadLine(worker).find("welcome"), std::string::npos);
  ASSERT_EQ(events_.size(), 5u);
  EXPECT_EQ(Said(4).key.generation, Generation(3));
  EXPECT_EQ(Said(4).rank, 7);
  // From here on it is in that one.
  Say(worker,
      "{\"progress\": {\"step\": 1}}\n{\"retired\": {\"generation\": \"2\"}}\n"
      "{\"cannotGoOn\": {\"generation\": \"2\"}}\n{\"retired\": {\"generation\": \"3\"}}\n");
  RunUntil([&] { return events_.size() == 7; });
  EXPECT_EQ(std::get<WorkerProgress>(Said(5).what).rank, 7);
  EXPECT_TRUE(std::holds_alternative<WorkerRetired>(Said(6).what));
  EXPECT_EQ(Said(6).key.generation, Generation(3));
  server_->TellRetire(old, 1, 20s);
  server_->TellNotice(Said(6).key, 1, 5s);
  EXPECT_EQ(ReadLine(worker), "{\"notice\":{\"leftS\":5}}\n");
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(WorkerServerTest, WhoComesBackWithItsOldGenerationHearsOfTheNew) {
  next_ = NextOf(1);
  const io::UniqueFd worker = Connect();
  Say(worker, kHello);
  EXPECT_NE(ReadLine(worker).find("welcome"), std::string::npos);
  EXPECT_EQ(ReadLine(worker), kNewGeneration);
  Say(worker, R"({"cannotGoOn": {"generation": "3", "why": "no room"}})"
              "\n");
  RunUntil([&] { return events_.size() == 2; });
  EXPECT_EQ(std::get<WorkerCannotGoOn>(Said(1).what).why, "no room");
  EXPECT_EQ(Said(1).key, next_->key);
  EXPECT_EQ(Said(1).rank, 7);
  Say(worker, kNextHello);
  EXPECT_NE(ReadLine(worker).find("welcome"), std::string::npos);
  Say(worker, kNextHello);
  EXPECT_NE(ReadLine(worker).find("welcome"), std::string::npos) << "and nothing else between";
}

TEST_F(WorkerServerTest, WhatIsOfAForeignGenerationClosesItsConnection) {
  next_ = NextOf(0);
  for (
      const std::string said :
      {R"({"retired": {"generation": "3"}})", R"({"cannotGoOn": {"generation": "3"}})",
       R"({"cannotGoOn": {"generation": "18446744073709551615"}})",
       // Another rank's token; another local rank; another job; back again.
       R"({"hello": {"version": 1, "job": "a-1", "generation": "3", "rank": 7, "localRank": 1, "token": "ours"}})",
       R"({"hello": {"version": 1, "job": "a-1", "generation": "3", "rank": 7, "localRank": 0, "token": "next"}})",
       R"({"hello": {"version": 1, "job": "a-2", "generation": "3", "rank": 7, "localRank": 1, "token": "next"}})",
       R"({"hello": {"version": 1, "job": "a-1", "generation": "1", "rank": 3, "localRank": 1, "token": "ours"}})"}) {
    const std::size_t before = events_.size();
    const io::UniqueFd bad = Connect();
    Say(bad, kHello);
    EXPECT_NE(ReadLine(bad).find("welcome"), std::string::npos);
    Say(bad, said + "\n");
    EXPECT_EQ(ReadLine(bad), "") << said;
    RunUntil([&] { return events_.size() == before + 2; });
    EXPECT_TRUE(std::holds_alternative<WorkerHungUp>(events_.back())) << said;
  }
}

TEST_F(WorkerServerTest, NothingIsSaidBeforeAHello) {
  for (const char* said : {"{\"retired\": {\"generation\": \"2\"}}\n",
                           "{\"cannotGoOn\": {\"generation\": \"2\"}}\n"}) {
    const io::UniqueFd bad = Connect();
    Say(bad, said);
    EXPECT_EQ(ReadLine(bad), "");
  }
  EXPECT_TRUE(events_.empty());
}

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
