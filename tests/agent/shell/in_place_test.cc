// A group that goes into the next generation of its job with the ranks that live, as the loop sees
// it: real shims and ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/post.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "agent/shell/group_host.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "tests/agent/shell/kill_rounds.h"
#include "tests/agent/shell/scratch.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;
using namespace testing;  // NOLINT: what a host tells is all that these are about.

GroupKey Key(std::uint64_t generation) { return {JobId("a-1"), Generation(generation)}; }

// Says who it is in its first generation, and lives until it is told to end.
constexpr char kScript[] =
    "printf %s $REGROUP_WORKER_TOKEN > $WORK/token.$LOCAL_RANK.$REGROUP_GENERATION.tmp; mv "
    "$WORK/token.$LOCAL_RANK.$REGROUP_GENERATION.tmp $WORK/token.$LOCAL_RANK.$REGROUP_GENERATION; "
    "while :; do sleep 0.01; done";

// One life of an agent, without its core.
class Life {
 public:
  explicit Life(const Scratch& scratch) : folder_(scratch.path()) {
    GroupHost::Options options;
    options.node_base = folder_ + "/run";
    std::filesystem::create_directories(options.node_base);
    const char* bin = std::getenv("REGROUP_BIN_DIR");
    options.shim_program =
        std::string(bin != nullptr ? bin : REGROUP_BIN_DIR_DEFAULT) + "/regroup-shim";
    options.log_root = folder_ + "/logs";
    options.worker_socket = "/nowhere";
    options.cgroup_base = shim::FindCgroupBase().value_or("");
    options.node = NodeId("n");
    options.boot = *io::ReadBootId();
    options.program = [this](const Prepare&) {
      return GroupProgram{
          {"/bin/sh", "-c", kScript}, {{"PATH", "/usr/bin:/bin"}, {"WORK", folder_}}, "/"};
    };
    host_.emplace(loop_, disk_, std::move(options),
                  GroupHost::Handler{[this](const Event& event) { telling_(event); },
                                     {},
                                     [](const std::string&) {},
                                     {},
                                     [this](const NewGeneration& next) { told_.push_back(next); }});
  }

  template <class Done>
  void RunUntil(Done done) {
    const auto limit = std::chrono::steady_clock::now() + 20s;
    while (!done() && std::chrono::steady_clock::now() < limit) {
      loop_.restart();
      loop_.run_one_for(20ms);
    }
    ASSERT_TRUE(done());
  }
  // The position of the first such event of that group.
  template <class T>
  std::optional<std::size_t> Find(std::uint64_t generation) const {
    for (std::size_t i = 0; i < telling_.told().size(); ++i) {
      const T* found = std::get_if<T>(&telling_.told()[i]);
      if (found != nullptr && found->key == Key(generation)) return i;
    }
    return std::nullopt;
  }
  template <class T>
  const T& WaitFor(std::uint64_t generation) {
    RunUntil([&] { return Find<T>(generation).has_value(); });
    return std::get<T>(telling_.told().at(Find<T>(generation).value()));
  }
  void Write(std::uint64_t generation, int workers) {
    Prepare prepare;
    prepare.generation = Generation(generation);
    prepare.spec.workers = workers;
    prepare.spec.job.in_place = true;
    prepare.advertise = "127.0.0.1";
    host_->Carry(WriteRunDirectory{Key(generation), prepare});
    WaitFor<RunDirectoryWritten>(generation);
  }
  void StartFirst(int workers) {
    Write(1, workers);
    host_->Carry(SpawnShim{Key(1)});
    WaitFor<ShimReady>(1);
    Start(1, workers, {});
    for (int i = 0; i < workers; ++i)
      RunUntil([&] { return std::filesystem::exists(TokenFile(i, 1)); });
  }
  void Start(std::uint64_t generation, int workers, std::set<int> kept) {
    regroup::Run run;
    run.generation = Generation(generation);
    run.store = {"127.0.0.1", 1};
    run.world_size = workers;
    // Numbers change from generation to generation.
    for (int i = 0; i < workers; ++i) run.mine.push_back({i, RankOf(generation, i)});
    host_->Carry(StartRanks{Key(generation), run, std::move(kept)});
    RunUntil([&] { return StartsOf(generation).size() == static_cast<std::size_t>(workers); });
  }
  static int RankOf(std::uint64_t generation, int local_rank) {
    return static_cast<int>(generation) * 10 + local_rank;
  }
  // The newest.
  std::map<int, std::int64_t> StartsOf(std::uint64_t generation) const {
    std::map<int, std::int64_t> pids;
    for (const Happening& event : telling_.told()) {
      const auto* started = std::get_if<RanksStarted>(&event);
      if (started == nullptr || started->key != Key(generation)) continue;
      for (const RankStarted& start : started->starts) pids[start.local_rank] = start.pid;
    }
    return pids;
  }
  void HandOverTo(std::uint64_t generation, int workers) {
    Write(generation, workers);
    host_->Carry(HandOver{Key(generation - 1), Key(generation)});
  }
  std::string TokenFile(int local_rank, std::uint64_t generation) const {
    return absl::StrCat(folder_, "/token.", local_rank, ".", generation);
  }
  std::string Token(int local_rank, std::uint64_t generation) const {
    return io::ReadFile(TokenFile(local_rank, generation), 100).value_or("");
  }
  std::vector<RunRecord> Scan() {
    std::optional<std::vector<RunRecord>> found;
    host_->Scan([&](std::vector<RunRecord> records) { found = std::move(records); });
    RunUntil([&] { return found.has_value(); });
    for (const RunRecord& record : *found) telling_.Begin(record);
    return *found;
  }
  void End(std::uint64_t generation) {
    host_->Carry(StopRanks{Key(generation), io::BootNow()});
    WaitFor<GroupEmpty>(generation);
    Remove(generation);
    RunUntil([&] { return std::filesystem::is_empty(folder_ + "/run"); });
  }
  void KillAll(const GroupKey& key) { testing::KillAll(*host_, telling_.told(), key); }
  void Remove(std::uint64_t generation) { host_->Carry(RemoveRunDirectory{Key(generation)}); }

  GroupHost& host() { return *host_; }
  const std::vector<NewGeneration>& told() const { return told_; }

 private:
  const std::string folder_;
  boost::asio::io_context loop_{1};
  boost::asio::thread_pool disk_{1};
  Telling telling_;
  std::vector<NewGeneration> told_;
  std::optional<GroupHost> host_;
};

TEST(InPlace, RanksThatLiveAreKeptAndTheOthersReplaced) {
  Scratch scratch;
  Life life(scratch);
  life.StartFirst(3);
  std::map<int, std::int64_t> first = life.StartsOf(1);
  life.host().Carry(KillRank{Key(1), 1});
  EXPECT_EQ(life.WaitFor<RankExited>(1).exit.code, SIGKILL);
  const std::optional<Address> witness = life.WaitFor<ShimReady>(1).witness;
  life.HandOverTo(2, 3);
  EXPECT_EQ(life.WaitFor<ShimReady>(2).witness, witness);
  life.WaitFor<GroupEmpty>(1);
  EXPECT_LT(life.Find<ShimReady>(2), life.Find<GroupEmpty>(1));
  EXPECT_FALSE(life.Find<RanksStarted>(2)) << "not before it is told to";
  life.Remove(1);
  life.Start(2, 3, {0, 2});
  std::map<int, std::int64_t> second = life.StartsOf(2);
  EXPECT_EQ(second[0], first[0]);
  EXPECT_NE(second[1], first[1]);
  EXPECT_EQ(second[2], first[2]);
  life.RunUntil([&] { return life.told().size() == 2; });
  for (const NewGeneration& next : life.told()) {
    EXPECT_EQ(next.key, Key(2));
    EXPECT_EQ(next.rank, Life::RankOf(2, next.local_rank));
    EXPECT_EQ(next.environment.at("RANK"), absl::StrCat(next.rank));
    EXPECT_EQ(next.environment.at("REGROUP_GENERATION"), "2");
    EXPECT_EQ(next.environment.at("REGROUP_JOB"), "a-1");
    EXPECT_FALSE(next.environment.contains("PATH"));
    EXPECT_TRUE(life.host().IsRank(Key(2), next.rank, next.local_rank,
                                   next.environment.at("REGROUP_WORKER_TOKEN")));
  }
  EXPECT_FALSE(life.Find<RankExited>(2));
  life.End(2);
  EXPECT_TRUE(life.Find<RankExited>(2));
}

TEST(InPlace, WhoStillIsInTheOldGenerationIsKnown) {
  Scratch scratch;
  Life life(scratch);
  life.StartFirst(1);
  const int rank = Life::RankOf(1, 0);
  life.HandOverTo(2, 1);
  life.WaitFor<GroupEmpty>(1);
  life.Remove(1);
  EXPECT_TRUE(life.host().IsRank(Key(1), rank, 0, life.Token(0, 1)));
  EXPECT_FALSE(life.host().NewerThan(Key(1), 0)) << "not known yet";
  life.Start(2, 1, {0});
  for (const bool again : {false, true}) {
    std::optional<Life> next;
    if (again) next.emplace(scratch);
    GroupHost& host = again ? next->host() : life.host();
    if (again) {
      EXPECT_EQ(next->Scan().size(), 1u);
    }
    EXPECT_TRUE(host.IsRank(Key(1), rank, 0, life.Token(0, 1)));
    EXPECT_FALSE(host.IsRank(Key(1), rank, 0, ""));
    EXPECT_FALSE(host.IsRank(Key(1), rank + 1, 0, life.Token(0, 1)));
    EXPECT_FALSE(host.IsRank({JobId("b-1"), Generation(1)}, rank, 0, life.Token(0, 1)));
    EXPECT_FALSE(host.IsRank(Key(0), rank, 0, life.Token(0, 1))) << "before its shim";
    EXPECT_FALSE(host.IsRank(Key(3), rank, 0, life.Token(0, 1)));
    const std::optional<NewGeneration> newer = host.NewerThan(Key(1), 0);
    ASSERT_TRUE(newer);
    EXPECT_EQ(newer->key, Key(2));
    EXPECT_EQ(newer->environment.at("RANK"), "20");
    EXPECT_FALSE(host.NewerThan(Key(2), 0));
    EXPECT_FALSE(host.NewerThan(Key(1), 1));
  }
  life.End(2);
}

TEST(InPlace, ARankThatEndsAsItIsHandedOverIsToldOfTheOldGroup) {
  Scratch scratch;
  Life life(scratch);
  life.StartFirst(2);
  std::map<int, std::int64_t> first = life.StartsOf(1);
  life.Write(2, 2);
  const io::ProcessStat rank = io::ReadProcessStat(static_cast<pid_t>(first[1])).value();
  ASSERT_EQ(::kill(rank.pid, SIGKILL), 0);
  const auto limit = std::chrono::steady_clock::now() + 20s;
  while (io::IsAlive(rank.pid, rank.start_ticks) && std::chrono::steady_clock::now() < limit) {
  }
  life.host().Carry(HandOver{Key(1), Key(2)});  // The loop has not run in between.
  life.WaitFor<ShimReady>(2);
  ASSERT_TRUE(life.Find<RankExited>(1));
  EXPECT_LT(life.Find<RankExited>(1), life.Find<ShimReady>(2));
  life.WaitFor<GroupEmpty>(1);
  life.Start(2, 2, {0, 1});
  EXPECT_EQ(life.StartsOf(2)[0], first[0]);
  EXPECT_NE(life.StartsOf(2)[1], first[1]);
  life.Remove(1);
  life.End(2);
}

TEST(InPlace, AShimThatStopsRefusesAndKeepsItsGroup) {
  Scratch scratch;
  Life life(scratch);
  life.StartFirst(1);
  life.Write(2, 1);
  life.host().Carry(StopRanks{Key(1), io::BootNow() + 1h});
  life.host().Carry(HandOver{Key(1), Key(2)});
  EXPECT_THAT(life.WaitFor<PrepareFailed>(2).why,
              ::testing::HasSubstr("the supervisor of its ranks did not take it over"));
  EXPECT_FALSE(life.Find<ShimReady>(2));
  EXPECT_FALSE(life.Find<ShimGone>(2));
  EXPECT_EQ(life.WaitFor<RankExited>(1).exit.code, SIGTERM);
  life.WaitFor<GroupEmpty>(1);
  // As a core does that must not kill by the nonce.
  life.KillAll(Key(2));
  life.Remove(2);
  life.End(1);
}

TEST(InPlace, WhatWasNeverTakenIsNotKilledInItsOwnersName) {
  Scratch scratch;
  std::int64_t pid = 0;
  {
    Life life(scratch);
    life.StartFirst(1);
    pid = life.StartsOf(1)[0];
    // An agent that dies between the spec and the word to the shim.
    life.Write(2, 1);
    const shim::RunRecord record = *shim::ReadRunDirectory(scratch.path() + "/run/a-1.1");
    const shim::RunDirectory next = *shim::OpenRunDirectory(scratch.path() + "/run/a-1.2");
    const std::string cgroup = shim::ReadSpec(next)->cgroup;
    if (!cgroup.empty()) shim::RemoveEmptyCgroup(cgroup);
    shim::Spec spec = record.spec;
    spec.generation = Generation(2);
    ASSERT_TRUE(shim::WriteSpec(next, spec).ok());
    ASSERT_TRUE(shim::PrepareAdoption(next).ok());
  }
  Life life(scratch);
  const std::vector<RunRecord> records = life.Scan();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_TRUE(records[0].shim_alive && records[0].started && records[0].key == Key(1));
  EXPECT_FALSE(records[1].shim_alive || records[1].started || !records[1].starts.empty());
  life.KillAll(Key(2));
  life.Remove(2);
  EXPECT_EQ(::kill(static_cast<pid_t>(pid), 0), 0);
  life.End(1);
}

TEST(InPlace, AnAgentThatRestartsFindsTheOldGroupFreeAndTheNewOneRunning) {
  Scratch scratch;
  std::map<int, std::int64_t> first;
  {
    Life life(scratch);
    life.StartFirst(2);
    first = life.StartsOf(1);
    life.host().Carry(KillRank{Key(1), 1});
    life.WaitFor<RankExited>(1);
    life.HandOverTo(2, 2);
    life.WaitFor<ShimReady>(2);
  }
  {
    Life life(scratch);
    const std::vector<RunRecord> records = life.Scan();
    ASSERT_EQ(records.size(), 2u);
    EXPECT_TRUE(records[0].key == Key(1) && records[0].empty && records[0].started);
    EXPECT_EQ(records[0].starts.size(), 2u);
    EXPECT_EQ(records[0].exits.size(), 1u);
    EXPECT_TRUE(records[1].shim_alive && !records[1].started && !records[1].empty);
    ASSERT_EQ(records[1].starts.size(), 1u) << "kept";
    EXPECT_EQ(records[1].starts[0].pid, first[0]);
    EXPECT_TRUE(records[1].exits.empty());
    EXPECT_EQ(records[1].kept, std::set<int>{0});
    life.Start(2, 2, {});  // A core that was not told who was kept.
    life.RunUntil([&] { return life.told().size() == 1; });
    EXPECT_EQ(life.told()[0].local_rank, 0);
    life.Remove(1);
  }
  Life life(scratch);
  const std::vector<RunRecord> records = life.Scan();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_TRUE(records[0].started && records[0].shim_alive);
  EXPECT_EQ(records[0].starts.size(), 2u);
  EXPECT_EQ(records[0].kept, std::set<int>{0});
  life.End(2);
}

TEST(InPlace, AShimThatDiesAfterwardsIsTheNewGroups) {
  Scratch scratch;
  Life life(scratch);
  life.StartFirst(1);
  const auto pid = static_cast<pid_t>(life.StartsOf(1)[0]);
  const io::ProcessStat rank = io::ReadProcessStat(pid).value();
  life.HandOverTo(2, 1);
  life.WaitFor<ShimReady>(2);
  life.WaitFor<GroupEmpty>(1);
  ASSERT_EQ(::kill(rank.parent, SIGKILL), 0);
  life.WaitFor<ShimGone>(2);
  EXPECT_FALSE(life.Find<ShimGone>(1));
  life.KillAll(Key(2));
  EXPECT_FALSE(io::IsAlive(rank.pid, rank.start_ticks));
  life.Remove(1);
  life.Remove(2);
}

TEST(InPlace, AnOrderFromNowhereFails) {
  Scratch scratch;
  Life life(scratch);
  life.HandOverTo(2, 1);
  EXPECT_EQ(life.WaitFor<PrepareFailed>(2).why, "the supervisor of its ranks has ended");
  life.Remove(2);
  life.StartFirst(2);
  life.HandOverTo(2, 1);
  life.RunUntil([&] { return life.Find<PrepareFailed>(2).has_value(); });
  life.Remove(2);
  life.End(1);
}

}  // namespace
}  // namespace regroup::agent
