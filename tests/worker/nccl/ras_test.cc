// What NCCL knows of a hang, by its RAS service, or what else may be at that port.

#include "worker/nccl/ras.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "common/config/env.h"
#include "tests/worker/nccl/nccl_ranks.h"
#include "tests/worker/nccl/ras_server.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using Is = RasServer::Is;

constexpr Duration kPatience = milliseconds(200);
constexpr Duration kBusy = seconds(4);  // What a busy machine may add.

std::string Ask(Is is, const std::string& says = RasServer::Mismatch()) {
  RasServer server(is, says);
  const auto begin = steady_clock::now();
  std::string told = AskRas(server.address(), kPatience);
  EXPECT_LT(Seconds(steady_clock::now() - begin), Seconds(kPatience + kBusy));
  const std::size_t at = told.find(server.address());
  if (at != std::string::npos) told.replace(at, server.address().size(), "HERE");
  return told;
}

TEST(Ras, WhatMattersOfAnAnswerIsTold) {
  EXPECT_EQ(Ask(Is::kSound),
            "NCCL's RAS service at HERE says:\n"
            "  Communicators... (0.01s)\n"
            "  Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
            "      #  in group  per comm  per node  per comm  in group\n"
            "      0         1         1         4         4         4   RUNNING  MISMATCH\n"
            "  Errors\n"
            "  Warnings\n"
            "  #0-0 (9ed2a04ffa1f3a4b) MISMATCH\n"
            "    Communicator ranks have different collective operation counts\n"
            "    3 ranks have launched up to operation 2\n"
            "    1 rank has launched up to operation 1\n"
            "    Rank 2 -- GPU 2 managed by process 4711 on node 10.0.0.1\n");
}

TEST(Ras, WhateverListensIsAskedForNoLongerThanTheTimeThatThereIs) {
  EXPECT_EQ(Ask(Is::kSilent), "NCCL's RAS service at HERE does not answer\n");
  EXPECT_EQ(Ask(Is::kCloses), "NCCL's RAS service at HERE does not answer\n");
  EXPECT_EQ(Ask(Is::kClosesAtStatus), "NCCL's RAS service at HERE does not answer\n");
  EXPECT_EQ(Ask(Is::kOther), "what listens at HERE is not NCCL's RAS service\n");
  EXPECT_EQ(
      Ask(Is::kSilentAtStatus),
      "NCCL's RAS service at HERE says:\n  Communicators...\n  (and had not ended in time)\n");
}

TEST(Ras, AnAnswerHasAnEnd) {
  const auto ends = [](const std::string& told) {
    EXPECT_LE(std::count(told.begin(), told.end(), '\n'), 2 + std::ptrdiff_t(kMostRasLines));
    EXPECT_LE(told.size(), kMostRasBytes + 100);
    EXPECT_TRUE(told.ends_with("\n  (and more, which was cut)\n")) << told;
  };
  ends(Ask(Is::kEndless));
  std::string lines;
  for (int i = 0; i < 10; ++i) lines += std::string(1000, 'x') + "\n";
  ends(Ask(Is::kSound, lines));
  ends(Ask(Is::kSound, std::string(1'000'000, 'x')));
  EXPECT_EQ(Ask(Is::kSound,
                "a\x1b[2Jb\r\n\tc\x9b\xff"
                "d\n"),
            "NCCL's RAS service at HERE says:\n  a [2Jb\n   c  d\n");
}

TEST(Ras, WhereNothingListensNothingIsSaid) {
  std::string address;
  { address = RasServer(Is::kSound).address(); }
  for (const std::string& at : {address, std::string("localhost:1"), std::string("[::1]:1"),
                                std::string("a-name-to-be-looked-up:28028"), std::string("?:?")})
    EXPECT_EQ(AskRas(at, seconds(20)), "") << at;
}

// By default processes of several jobs would listen at one port, and any of them would answer.
TEST(Ras, EachProcessHasAPortOfItsOwnUnlessItIsTold) {
  unsetenv("NCCL_RAS_ADDR");
  EXPECT_EQ(ChooseRasPlace(NcclVersion(2, 23, 4)).address, "");
  setenv("NCCL_RAS_ENABLE", "0", 1);
  EXPECT_EQ(ChooseRasPlace(NcclVersion(2, 28, 9)).address, "");
  unsetenv("NCCL_RAS_ENABLE");
  EXPECT_EQ(GetEnv("NCCL_RAS_ADDR"), std::nullopt);
  const RasPlace own = ChooseRasPlace(NcclVersion(2, 28, 9));
  EXPECT_EQ(own.address.find("127.0.0.1:"), 0u) << own.address;
  EXPECT_EQ(GetEnv("NCCL_RAS_ADDR"), own.address);
  EXPECT_EQ(AskRas(own.address, seconds(20)), "");  // Nothing listens.
  unsetenv("NCCL_RAS_ADDR");
  EXPECT_NE(ChooseRasPlace(NcclVersion(2, 28, 9)).address, own.address);
  // NCCL can listen there all the same, and is who answers.
  const auto port = static_cast<std::uint16_t>(std::stoi(own.address.substr(10)));
  RasServer nccl(Is::kSound, "this one\n", port);
  EXPECT_EQ(nccl.address(), own.address);
  EXPECT_NE(AskRas(own.address, seconds(20)).find("this one"), std::string::npos);
  setenv("NCCL_RAS_ADDR", "localhost:28028", 1);
  EXPECT_EQ(ChooseRasPlace(NcclVersion(2, 28, 9)).address, "localhost:28028");
  setenv("NCCL_RAS_ADDR", "some-name:28028", 1);
  EXPECT_EQ(ChooseRasPlace(NcclVersion(2, 28, 9)).address, "");
  unsetenv("NCCL_RAS_ADDR");
}

// What is said of a hang and of an error.
class RasOfRanks : public testing::Test {
 protected:
  static constexpr int kWorld = 4;
  static constexpr Duration kDeadline = milliseconds(800);

  std::set<std::string> Play(const FakeScript& script, const std::string& address) {
    ranks_.options.deadline = kDeadline;
    ranks_.options.init_deadline =
        script.fault == FakeFault::kInitHangs ? kDeadline : Duration(seconds(20));
    ranks_.options.ras_address = address;
    ranks_.gpu.play(&script);
    std::set<std::string> told;
    std::mutex mutex;
    ranks_.Run([&](NcclRanks::Rank& rank) {
      absl::Status status = rank.nccl.status();
      const auto begin = steady_clock::now();
      if (status.ok()) {
        const auto stream = rank.device.NewStream(StreamKind::kMove);
        const Tensor arena = *(*rank).AllocateTensor(DType::kF32, 100);
        (*rank).AllReduceSum(*stream, arena);
        (*rank).AllReduceSum(*stream, arena);
        status = stream->Await();
      }
      const std::scoped_lock lock(mutex);
      EXPECT_LT(Seconds(steady_clock::now() - begin), Seconds(kDeadline + seconds(1) + kBusy));
      told.insert(std::string(status.message()));
    });
    ranks_.gpu.play(nullptr);
    EXPECT_EQ(ranks_.gpu.Refusals(), "");
    return told;
  }
  NcclRanks ranks_{kWorld};
};

TEST_F(RasOfRanks, WhatItSaysStandsBeforeTheSentenceWhichIsTheLastLine) {
  for (
      const auto& [script, ends] :
      {std::pair(FakeScript{FakeFault::kOpHangs, 1, 1},
                 "all_reduce 2 (f32[100]): not over after 0.8 s; every rank has begun it"),
       {{FakeFault::kOpRemoteError, 2, 0},
        "rank 2, all_reduce 1 (f32[100]): NCCL: remote process exited or there was a network error "
        "(NCCL error 6): the fake was told to"},
       {{FakeFault::kInitHangs, 3}, "init of 4 ranks: NCCL did not take it in time; every rank"}}) {
    RasServer server(Is::kSound);
    for (const std::string& told : Play(script, server.address())) {
      EXPECT_EQ(told.find("NCCL's RAS service at " + server.address() + " says:\n"), 0u) << told;
      EXPECT_NE(told.find("Rank 2 -- GPU 2 managed by process 4711"), std::string::npos) << told;
      EXPECT_NE(told.substr(told.rfind('\n')).find(ends), std::string::npos) << told;
    }
    EXPECT_EQ(server.asked(), 1);
  }
}

// Where all ranks see the error, one asks and the others tell it too.
TEST_F(RasOfRanks, WhatOneRankAsksForAllHaveToldBeforeTheyEnd) {
  RasServer server(Is::kSlow);
  const std::set<std::string> all =
      Play({FakeFault::kOpRemoteError, kEveryRank, 0}, server.address());
  for (const std::string& told : all)
    EXPECT_NE(told.find("Rank 2 -- GPU 2 managed by process 4711"), std::string::npos) << told;
  EXPECT_EQ(server.asked(), 1);
}

TEST_F(RasOfRanks, AServiceOfNoUseDelaysNothing) {
  for (const Is is : {Is::kSilent, Is::kEndless, Is::kCloses}) {
    RasServer server(is);
    for (const FakeFault fault : {FakeFault::kOpHangs, FakeFault::kOpRemoteError}) {
      for (const std::string& told : Play({fault, 1, 0}, server.address()))
        EXPECT_NE(told.find("all_reduce 1 (f32[100])"), std::string::npos) << told;
    }
    EXPECT_EQ(server.asked(), 2);
  }
}

// A collective that is late and comes to its end asks once, and what was said of it is of no other.
TEST_F(RasOfRanks, WhatWasSaidOfAnotherCollectiveIsNotTold) {
  RasServer server(Is::kSound);
  const std::set<std::string> told =
      Play({FakeFault::kOpIsSlow, 1, 0, 600, int(FakeFault::kNone)}, server.address());
  EXPECT_EQ(told, std::set<std::string>{""});
  EXPECT_GE(server.asked(), 1);
}

}  // namespace
}  // namespace regroup::worker
