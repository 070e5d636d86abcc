#include "worker/checkpoint/repository.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/rng.h"
#include "common/base/user_error.h"
#include "tests/worker/checkpoint/testing.h"
#include "worker/checkpoint/checksum.h"
#include "worker/checkpoint/load.h"
#include "worker/checkpoint/restore.h"
#include "worker/comm/in_process_communicator.h"

namespace regroup::worker {
namespace {

class RepositoryTest : public testing::Test {
 protected:
  RepositoryTest() : repository_(*Repository::OpenForTraining(directory_ / "ckpt")) {}
  std::string File(const std::string& name) const { return repository_.path() + "/" + name; }
  absl::StatusOr<Restored> Restore() {
    auto alone = MakeInProcessCommunicators(1);
    return RestoreNewest(*alone[0], repository_, state_.tensors());
  }
  // The same step again, written by a later attempt and not committed.
  Manifest SecondAttempt(Manifest manifest) const {
    manifest.attempt = 2;
    EXPECT_TRUE(repository_.PrepareAttempt(10, 1, 2).ok());
    std::filesystem::copy_file(File("step-10/1-1/rank-0-of-1.safetensors"),
                               File("step-10/1-2/rank-0-of-1.safetensors"));
    return manifest;
  }
  // By one rank alone.
  absl::Status LoadAlone(const Manifest& manifest, const std::vector<StateTensor>& state) const {
    auto alone = MakeInProcessCommunicators(1);
    return Load(*alone[0], repository_, manifest, state);
  }
  std::vector<std::int64_t> Steps() const { return *repository_.CommittedSteps(); }

  TemporaryDirectory directory_;
  TestState state_;
  Repository repository_;
};

TEST_F(RepositoryTest, NothingThereIsAFreshStart) {
  state_.SetStep(0);
  const auto restored = Restore();
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_FALSE(restored->manifest.has_value());
  EXPECT_TRUE(state_.IsStep(0));
}

TEST_F(RepositoryTest, TheHighestStepIsLoaded) {
  for (std::int64_t step : {8, 9, 10, 100}) CommitStep(repository_, state_, step, 3);
  state_.SetStep(0);
  const auto restored = Restore();
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->manifest->step, 100);
  EXPECT_EQ(restored->manifest->counters.at("samples"), 3200);
  EXPECT_TRUE(restored->skipped.empty());
  EXPECT_TRUE(state_.IsStep(100));
}

TEST_F(RepositoryTest, LoadsAtEveryOtherWorldSize) {
  for (int saved = 1; saved <= 5; ++saved) {
    CommitStep(repository_, state_, saved, saved);
    for (int loading = 1; loading <= 4; ++loading) {
      auto ranks = MakeInProcessCommunicators(loading);
      std::vector<std::thread> threads;
      for (auto& rank : ranks) {
        threads.emplace_back([&, communicator = rank.get()] {
          TestState mine;
          const auto restored = RestoreNewest(*communicator, repository_, mine.tensors());
          ASSERT_TRUE(restored.ok()) << restored.status();
          EXPECT_TRUE(mine.IsStep(saved));
        });
      }
      for (std::thread& t : threads) t.join();
    }
  }
}

// An uneven part of each tensor for each rank, for some nothing.
std::pair<std::int64_t, std::int64_t> PartOf(std::int64_t elements, int rank, int world) {
  return {elements * rank * rank / (world * world),
          elements * (rank + 1) * (rank + 1) / (world * world)};
}

std::vector<StateTensor> OnlyParts(const std::vector<StateTensor>& state,
                                   const std::vector<int>& parts, int world) {
  std::vector<StateTensor> held;
  for (const StateTensor& whole : state) {
    std::vector<StateSlice> slices;
    for (const int part : parts) {
      const auto [begin, end] = PartOf(whole.info.elements(), part, world);
      if (begin < end) {
        slices.push_back(
            {begin, whole.slices[0].data.subspan(static_cast<std::size_t>(begin),
                                                 static_cast<std::size_t>(end - begin))});
      }
    }
    held.emplace_back(whole.info, std::move(slices));
  }
  return held;
}

// Two ranges of each slice.
std::vector<ElementRange> HalvesOf(const std::vector<StateTensor>& state) {
  std::vector<ElementRange> ranges;
  for (std::uint32_t t = 0; t < state.size(); ++t) {
    for (const StateSlice& slice : state[t].slices) {
      const std::int64_t begin = slice.begin,
                         end = begin + static_cast<std::int64_t>(slice.data.size()),
                         middle = begin + (end - begin) / 2;
      for (const auto& [from, to] : {std::pair(begin, middle), std::pair(middle, end)}) {
        if (from < to) ranges.push_back({t, from, to});
      }
    }
  }
  return ranges;
}

// Files of ranks that each hold and write a part of their own, down to nothing; and what is loaded
// need not be all of it either.
TEST_F(RepositoryTest, PartsAreSavedAndLoadedWhateverTheyAre) {
  constexpr int kWorld = 4;
  state_.SetStep(7);
  Manifest manifest{"job-1", 1, 1, 7, {kWorld, kWorld, "zero-3"}, {}, {}, {}, state_.infos(), {}};
  ASSERT_TRUE(repository_.PrepareAttempt(7, 1, 1).ok());
  for (int r = 0; r < kWorld; ++r) {
    const std::vector<StateTensor> mine = OnlyParts(state_.tensors(), {r}, kWorld);
    ShardImage image = *ShardImage::Create(state_.infos(), HalvesOf(mine), r, kWorld);
    image.Fill(mine);
    const auto info = WriteShard(image, repository_.AttemptPath(7, 1, 1) + "/" + image.info().name,
                                 [] { return false; });
    ASSERT_TRUE(info.ok()) << info.status();
    manifest.files.push_back(*info);
  }
  ASSERT_TRUE(Commit(repository_, manifest).ok());
  state_.SetStep(0);
  ASSERT_TRUE(Restore().ok());
  EXPECT_TRUE(state_.IsStep(7));

  for (int r = 0; r < 3; ++r) {  // Two slices of each tensor, and between them a hole.
    TestState target;
    target.SetStep(0);
    ASSERT_TRUE(LoadAlone(manifest, OnlyParts(target.tensors(), {r, r + 2}, 5)).ok());
    const std::vector<StateTensor> loaded = target.tensors();
    for (std::size_t t = 0; t < loaded.size(); ++t) {
      for (std::size_t i = 0; i < loaded[t].slices[0].data.size(); ++i) {
        const auto in = [&](int part) {
          const auto [begin, end] = PartOf(loaded[t].info.elements(), part, 5);
          return static_cast<std::int64_t>(i) >= begin && static_cast<std::int64_t>(i) < end;
        };
        ASSERT_EQ(loaded[t].slices[0].data[i], TestState::Value(t, i, in(r) || in(r + 2) ? 7 : 0))
            << t << " " << i;
      }
    }
  }
}

// As another writer may divide a matrix: rank r of 2 has columns 700 r to 700 (r + 1), more bytes
// than a chunk. Of the other tensor rank 0 has the middle of a cube, and rank 1 what is around it.
TEST_F(RepositoryTest, BoxesOfAnyFormAreLoadedByWhoeverHoldsAnyPart) {
  const std::vector<TensorInfo> infos = {{"matrix", {1600, 1400}}, {"cube", {3, 3, 3}}};
  const std::vector<std::vector<std::pair<std::uint32_t, Box>>> boxes = {
      {{0, {{0, 0}, {1600, 700}}}, {1, {{1, 1, 1}, {1, 1, 1}}}},
      {{1, {{0, 0, 0}, {1, 3, 3}}},
       {1, {{2, 0, 0}, {1, 3, 3}}},
       {1, {{1, 0, 0}, {1, 1, 3}}},
       {1, {{1, 2, 0}, {1, 1, 3}}},
       {1, {{1, 1, 0}, {1, 1, 1}}},
       {1, {{1, 1, 2}, {1, 1, 1}}},
       {0, {{0, 700}, {1600, 700}}}}};
  Manifest manifest{"job-1", 1, 1, 7, {2, 2, "columns"}, {}, {}, {}, infos, {}};
  ASSERT_TRUE(repository_.PrepareAttempt(7, 1, 1).ok());
  for (int r = 0; r < 2; ++r) {
    std::string bytes(100, ' ');
    FileInfo file{ShardName(r, 2), 0, "", {}, {}};
    for (const auto& [t, box] : boxes[static_cast<std::size_t>(r)]) {
      file.pieces.push_back({t, box, bytes.size()});
      const Runs runs(infos[t].shape, box);
      for (std::int64_t run = 0; run < runs.count(); ++run) {
        for (std::int64_t i = 0; i < runs.length(); ++i) {
          const float value = TestState::Value(t, static_cast<std::size_t>(runs.Begin(run) + i), 7);
          bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
        }
      }
    }
    file.bytes = bytes.size();
    const auto all = std::as_bytes(std::span(bytes));
    file.xxh3 = Xxh3Hex(all);
    for (std::size_t at = 0; at < all.size(); at += kChunkBytes)
      file.crc32c.push_back(Crc32c(all.subspan(at, std::min(kChunkBytes, all.size() - at))));
    WriteAll(repository_.AttemptPath(7, 1, 1) + "/" + file.name, bytes);
    manifest.files.push_back(std::move(file));
  }
  ASSERT_TRUE(Commit(repository_, manifest).ok());
  for (const int world : {1, 3}) {
    auto ranks = MakeInProcessCommunicators(world);
    TestState together(infos);  // Each rank holds its own part of it.
    std::vector<std::thread> threads;
    for (int r = 0; r < world; ++r) {
      threads.emplace_back([&, r] {
        EXPECT_TRUE(RestoreNewest(*ranks[static_cast<std::size_t>(r)], repository_,
                                  OnlyParts(together.tensors(), {r}, world))
                        .ok());
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_TRUE(together.IsStep(7)) << world;
  }
}

struct Damage {
  const char* name;
  std::function<void(const std::string& record, const std::string& attempt)> apply;
  const char* says;
};

TEST_F(RepositoryTest, ADamagedNewestFallsBackToTheOneBeforeAndSaysWhy) {
  const std::vector<Damage> rows = {
      {"record cut", [](auto& record, auto&) { WriteAll(record, ReadAll(record).substr(0, 100)); },
       "hash"},
      {"record empty", [](auto& record, auto&) { WriteAll(record, ""); }, "cut off"},
      {"record of another step",
       [this](auto& record, auto&) { WriteAll(record, ReadAll(File("commits/step-10"))); },
       "step 10"},
      {"file missing",
       [](auto&, auto& attempt) { std::filesystem::remove(attempt + "/rank-1-of-2.safetensors"); },
       "rank-1-of-2"},
      {"file cut",
       [](auto&, auto& attempt) {
         std::filesystem::resize_file(attempt + "/rank-0-of-2.safetensors", 5000);
       },
       "5000 bytes"},
      {"files swapped",
       [](auto&, auto& attempt) {
         std::filesystem::rename(attempt + "/rank-0-of-2.safetensors", attempt + "/x");
         std::filesystem::rename(attempt + "/rank-1-of-2.safetensors",
                                 attempt + "/rank-0-of-2.safetensors");
         std::filesystem::rename(attempt + "/x", attempt + "/rank-1-of-2.safetensors");
       },
       "rank-0-of-2"},
      {"stale file of another step",
       [this](auto&, auto& attempt) {
         std::filesystem::copy_file(File("step-10/1-1/rank-1-of-2.safetensors"),
                                    attempt + "/rank-1-of-2.safetensors",
                                    std::filesystem::copy_options::overwrite_existing);
       },
       "CRC"},
      {"directory instead of a file",
       [](auto&, auto& attempt) {
         std::filesystem::remove(attempt + "/rank-0-of-2.safetensors");
         std::filesystem::create_directory(attempt + "/rank-0-of-2.safetensors");
       },
       "not a regular file"},
      {"file instead of the attempt",
       [](auto&, auto& attempt) {
         std::filesystem::remove_all(attempt);
         WriteAll(attempt, "x");
       },
       "rank-0-of-2"},
      {"directory instead of the record",
       [](auto& record, auto&) {
         std::filesystem::remove(record);
         std::filesystem::create_directory(record);
       },
       "step-20"},
      {"attempt missing", [](auto&, auto& attempt) { std::filesystem::remove_all(attempt); },
       "rank-0-of-2"},
  };
  for (const Damage& row : rows) {
    std::filesystem::remove_all(repository_.path());
    repository_ = *Repository::OpenForTraining(repository_.path());
    CommitStep(repository_, state_, 10, 2);
    CommitStep(repository_, state_, 20, 2);
    row.apply(File("commits/step-20"), File("step-20/1-1"));
    const auto restored = Restore();
    ASSERT_TRUE(restored.ok()) << row.name << restored.status();
    EXPECT_EQ(restored->manifest->step, 10) << row.name;
    EXPECT_TRUE(state_.IsStep(10)) << row.name;
    ASSERT_EQ(restored->skipped.size(), 1u) << row.name;
    EXPECT_NE(restored->skipped[0].find(row.says), std::string::npos)
        << row.name << ": " << restored->skipped[0];
    EXPECT_NE(restored->skipped[0].find("step 20"), std::string::npos) << row.name;
  }
}

// Whoever reads it would wait for ever.
TEST_F(RepositoryTest, AFifoInPlaceOfARecordIsDamageToo) {
  CommitStep(repository_, state_, 10, 2);
  CommitStep(repository_, state_, 20, 2);
  std::filesystem::remove(File("commits/step-20"));
  ASSERT_EQ(mkfifo(File("commits/step-20").c_str(), 0600), 0);
  const auto restored = Restore();
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->manifest->step, 10);
  ASSERT_EQ(restored->skipped.size(), 1u);
  EXPECT_NE(restored->skipped[0].find("is a FIFO, not a regular file"), std::string::npos)
      << restored->skipped[0];
}

TEST_F(RepositoryTest, RandomDamageNeverLoadsSilentlyWrong) {
  CommitStep(repository_, state_, 10, 2);
  CommitStep(repository_, state_, 20, 2);
  Rng rng(3);
  const std::vector<std::string> files = {"commits/step-20", "step-20/1-1/rank-0-of-2.safetensors",
                                          "step-20/1-1/rank-1-of-2.safetensors"};
  for (int i = 0; i < 120; ++i) {
    const std::string path = File(files[rng.Below(files.size())]);
    const std::string good = ReadAll(path);
    std::string bad = good;
    const std::uint64_t at = rng.Below(good.size());
    if (rng.Below(4) == 0) {
      bad.resize(at);
    } else {
      bad[at] = static_cast<char>(bad[at] ^ (1 << rng.Below(8)));
    }
    WriteAll(path, bad);
    const auto restored = Restore();
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ(restored->manifest->step, 10);
    EXPECT_TRUE(state_.IsStep(10));
    WriteAll(path, good);
  }
  EXPECT_EQ(Restore()->manifest->step, 20);
}

TEST_F(RepositoryTest, WhenNoneVerifiesNothingIsStartedFromZero) {
  CommitStep(repository_, state_, 10);
  WriteAll(File("commits/step-10"), "garbage");
  const auto restored = Restore();
  EXPECT_EQ(restored.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(restored.status().message()).find("step 10"), std::string::npos)
      << restored.status();
}

TEST_F(RepositoryTest, AnotherModelIsRefusedInsteadOfSkippedAndWhatDiffersIsNamed) {
  CommitStep(repository_, state_, 10);
  const std::string tensor = "tensor exp_avg/wte.weight is ";
  const std::vector<std::pair<TensorInfo, std::string>> rows = {
      {{"exp_avg/wte.weight", {37, 12}, "F32", "exp_avg"},
       tensor + "of shape (37, 11) there and of shape (37, 12) here"},
      {{"exp_avg/wte.weight", {37, 11}, "BF16", "exp_avg"}, tensor + "F32 there and BF16 here"},
      {{"exp_avg/wte.weight", {37, 11}, "F32", "momentum_buffer"},
       tensor + "the optimizer's exp_avg there and the optimizer's momentum_buffer here"},
      {{"exp_avg/wte.weight", {37, 11}},
       tensor + "the optimizer's exp_avg there and a weight here"},
      {{"exp_avg/wpe.weight", {37, 11}},
       "it has a tensor exp_avg/wte.weight, and this one has none"},
  };
  for (const auto& [info, says] : rows) {
    std::vector<TensorInfo> infos = state_.infos();
    infos[3] = info;
    TestState other(infos);
    auto alone = MakeInProcessCommunicators(1);
    const auto restored = RestoreNewest(*alone[0], repository_, other.tensors());
    EXPECT_EQ(restored.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(std::string(restored.status().message()).find(says), std::string::npos)
        << restored.status();
  }
}

// A sound record of less than the model must not leave the rest of the weights as they were.
TEST_F(RepositoryTest, ACommitOfFewerTensorsIsAnotherModel) {
  CommitStep(repository_, state_, 10);
  Manifest manifest = *repository_.ReadManifest(10);
  for (const bool none : {false, true}) {
    manifest.tensors.resize(none ? 0 : manifest.tensors.size() - 1);
    manifest.files.clear();
    const absl::Status loaded = LoadAlone(manifest, state_.tensors());
    EXPECT_EQ(loaded.code(), absl::StatusCode::kFailedPrecondition) << loaded;
  }
}

TEST_F(RepositoryTest, OneRanksBadReadMakesAllRanksFallBack) {
  CommitStep(repository_, state_, 10, 1);
  CommitStep(repository_, state_, 20, 1);
  // Rank 1 sees a copy of the directory in which the newest is damaged.
  const std::string other = directory_ / "other";
  std::filesystem::copy(repository_.path(), other, std::filesystem::copy_options::recursive);
  const Repository damaged = *Repository::Open(other);
  std::filesystem::resize_file(other + "/step-20/1-1/rank-0-of-1.safetensors", 4096);
  auto ranks = MakeInProcessCommunicators(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      TestState mine;
      const auto restored =
          RestoreNewest(*ranks[r], r == 0 ? repository_ : damaged, mine.tensors());
      ASSERT_TRUE(restored.ok()) << restored.status();
      EXPECT_EQ(restored->manifest->step, 10);
      EXPECT_TRUE(mine.IsStep(10));
      EXPECT_NE(restored->skipped.at(0).find(other), std::string::npos) << restored->skipped[0];
    });
  }
  for (std::thread& t : threads) t.join();
}

// What only one rank finds is told to all, and ends the restore of all in the same way.
TEST_F(RepositoryTest, OneRanksRefusalIsThatOfAllRanks) {
  CommitStep(repository_, state_, 10, 1);
  const Repository unlistable = *Repository::OpenForTraining(directory_ / "gone");
  std::filesystem::remove_all(directory_ / "gone");
  const std::vector<TensorInfo> other = {{"wte.weight", {37, 12}}};
  const struct {
    const char* what;
    const Repository& of_rank_0;
    const std::vector<TensorInfo>& model_of_rank_2;
    absl::StatusCode code;
    const char* says;
  } kRows[] = {
      {"rank 0 cannot list the commits", unlistable, state_.infos(), absl::StatusCode::kDataLoss,
       "gone/commits"},
      {"rank 2 has another model", repository_, other, absl::StatusCode::kFailedPrecondition,
       "another model"},
  };
  for (const auto& row : kRows) {
    auto ranks = MakeInProcessCommunicators(3);
    std::vector<std::thread> threads;
    for (int r = 0; r < 3; ++r) {
      threads.emplace_back([&, r] {
        TestState mine(r == 2 ? row.model_of_rank_2 : state_.infos());
        const auto restored =
            RestoreNewest(*ranks[r], r == 0 ? row.of_rank_0 : repository_, mine.tensors());
        EXPECT_EQ(restored.status().code(), row.code) << row.what << ": " << restored.status();
        EXPECT_NE(std::string(restored.status().message()).find(row.says), std::string::npos)
            << row.what << ": " << restored.status();
        EXPECT_TRUE(ranks[r]->Barrier().ok()) << row.what;  // In step still.
      });
    }
    for (std::thread& t : threads) t.join();
  }
}

TEST_F(RepositoryTest, ASecondCommitOfAStepIsRefusedAndTheFirstStays) {
  const Manifest second = SecondAttempt(CommitStep(repository_, state_, 10));
  EXPECT_EQ(Commit(repository_, second).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(repository_.ReadManifest(10)->attempt, 1u);
  // A damaged first one gives way.
  std::filesystem::resize_file(File("step-10/1-1/rank-0-of-1.safetensors"), 1);
  EXPECT_TRUE(Commit(repository_, second).ok());
  EXPECT_EQ(repository_.ReadManifest(10)->attempt, 2u);
}

TEST_F(RepositoryTest, AReplacedGenerationCanNotCommit) {
  CommitStep(repository_, state_, 20, 1, 7);
  state_.SetStep(30);
  Manifest stale{"job-1", 6, 1, 30, {}, {}, {}, {}, state_.infos(), {}};
  ShardImage image = *ShardImage::Create(state_.infos(), 0, 1);
  image.Fill(state_.tensors());
  ASSERT_TRUE(repository_.PrepareAttempt(30, 6, 1).ok());
  stale.files.push_back(
      *WriteShard(image, File("step-30/6-1/rank-0-of-1.safetensors"), [] { return false; }));
  const absl::Status refused = Commit(repository_, stale);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(refused.message()).find("generation 7"), std::string::npos) << refused;
  stale.job = "another-job";  // Its generations are numbered on their own.
  EXPECT_TRUE(Commit(repository_, stale).ok());
}

TEST_F(RepositoryTest, ACommitWithoutItsFilesIsRefused) {
  Manifest m = CommitStep(repository_, state_, 10, 2);
  m.step = 11;
  EXPECT_EQ(Commit(repository_, m).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(repository_.PrepareAttempt(11, 1, 1).ok());
  for (const FileInfo& file : m.files) {
    std::filesystem::copy_file(repository_.AttemptPath(10, 1, 1) + "/" + file.name,
                               repository_.AttemptPath(11, 1, 1) + "/" + file.name);
  }
  const std::string last = repository_.AttemptPath(11, 1, 1) + "/" + m.files.back().name;
  std::filesystem::resize_file(last, m.files.back().bytes - 1);
  const absl::Status shorter = Commit(repository_, m);
  EXPECT_EQ(shorter.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(shorter.message()).find(last), std::string::npos) << shorter;
  EXPECT_EQ(Steps(), (std::vector<std::int64_t>{10}));
}

TEST_F(RepositoryTest, ACommitThatIsNotWholeIsRefused) {
  Manifest m = CommitStep(repository_, state_, 10, 2);
  ASSERT_TRUE(repository_.Delete(10).ok());
  ASSERT_TRUE(repository_.PrepareAttempt(10, 1, 1).ok());
  for (const FileInfo& file : m.files)
    WriteAll(repository_.AttemptPath(10, 1, 1) + "/" + file.name, std::string(file.bytes, 0));
  m.files.pop_back();
  EXPECT_EQ(Commit(repository_, m).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(AllFiles(repository_.path() + "/commits").empty());
}

TEST_F(RepositoryTest, OfTwoStagedCommitsOfAStepThatOfTheLaterGenerationIsPublished) {
  for (const auto& [first, second] : {std::pair(2, 3), std::pair(3, 2)}) {
    const TemporaryDirectory directory;
    const Repository repository = *Repository::OpenForTraining(directory.path());
    for (const int generation : {first, second}) {
      CommitStep(repository, state_, 10, 1, static_cast<std::uint64_t>(generation));
      std::filesystem::rename(
          directory / "commits/step-10",
          directory / (generation == first ? "commits/.tmp-10-a" : "commits/.tmp-10-b"));
    }
    ASSERT_TRUE(repository.PublishStaged("job-1", 10).ok());
    EXPECT_EQ(repository.ReadManifest(10)->generation, 3u) << "listed first: " << first;
  }
}

TEST_F(RepositoryTest, RetentionKeepsTheNewestThatVerify) {
  for (std::int64_t step : {10, 20, 30, 40, 50}) CommitStep(repository_, state_, step);
  std::filesystem::resize_file(File("step-40/1-1/rank-0-of-1.safetensors"), 1);
  Retention retention(repository_, 2);
  ASSERT_TRUE(retention.Apply().ok());
  EXPECT_EQ(Steps(), (std::vector<std::int64_t>{50, 40, 30}));  // 40 does not count.
  EXPECT_FALSE(std::filesystem::exists(File("step-20")));
  EXPECT_EQ(AllFiles(repository_.path()).size(), 6u);
}

TEST_F(RepositoryTest, RetentionThatIsGivenUpDeletesNothingAndKnowsNothing) {
  for (std::int64_t step : {10, 20, 30}) CommitStep(repository_, state_, step);
  Retention retention(repository_, 2);
  // Before anything is read; before the second is read; before the third is deleted.
  for (const int looks : {0, 1, 1}) {
    int looked = 0;
    EXPECT_TRUE(absl::IsCancelled(retention.Apply([&] { return looked++ == looks; }))) << looks;
    EXPECT_EQ(Steps().size(), 3u) << looks;
  }
  EXPECT_TRUE(retention.Apply().ok());
  EXPECT_EQ(Steps(), (std::vector<std::int64_t>{30, 20}));
}

// What was found sound is the files of a record, not whatever has the step's number.
TEST_F(RepositoryTest, RetentionReadsWhatAnotherRecordNames) {
  for (std::int64_t step : {10, 20, 30}) CommitStep(repository_, state_, step);
  Retention retention(repository_, 2);
  retention.NoteSound(30, "the record of another attempt");
  std::filesystem::resize_file(File("step-30/1-1/rank-0-of-1.safetensors"), 100);
  EXPECT_TRUE(retention.Apply().ok());
  EXPECT_EQ(Steps(), (std::vector<std::int64_t>{30, 20, 10}));
}

// A sound commit must not be taken for damaged, only because there was no time to look.
TEST_F(RepositoryTest, AStepThatIsThereStaysWhenItsVerificationIsGivenUp) {
  const Manifest second = SecondAttempt(CommitStep(repository_, state_, 10));
  const auto staged = repository_.Stage(second);
  ASSERT_TRUE(staged.ok());
  EXPECT_TRUE(absl::IsCancelled(repository_.Publish(*staged, [] { return true; })));
  EXPECT_EQ(repository_.ReadManifest(10)->attempt, 1u);
}

TEST_F(RepositoryTest, RetentionDeletesNothingWhileTooFewVerify) {
  for (std::int64_t step : {10, 20, 30}) CommitStep(repository_, state_, step);
  for (const char* step : {"20", "30"}) WriteAll(File(std::string("commits/step-") + step), "x");
  Retention retention(repository_, 2);
  ASSERT_TRUE(retention.Apply().ok());
  EXPECT_EQ(Steps().size(), 3u);
}

TEST_F(RepositoryTest, AMarkIsSeenInTheSameDirectoryAndInNoOther) {
  std::filesystem::create_directory_symlink(repository_.path(), directory_ / "link");
  const std::string mark = *repository_.LeaveMark();
  // A copy has all files of its original, but not the marks that come after.
  std::filesystem::copy(repository_.path(), directory_ / "copy",
                        std::filesystem::copy_options::recursive);
  const Repository same = *Repository::Open(directory_ / "link"),
                   copy = *Repository::Open(directory_ / "copy");
  EXPECT_TRUE(same.SeesMark(mark, Duration::zero()));
  repository_.RemoveMark(mark);
  EXPECT_FALSE(same.SeesMark(mark, Duration::zero()));
  const std::string other = *same.LeaveMark();
  EXPECT_NE(other, mark);
  EXPECT_TRUE(repository_.SeesMark(other, Duration::zero()));
  EXPECT_FALSE(copy.SeesMark(other, std::chrono::milliseconds(30)));
  EXPECT_EQ(same.MarkDelay(), Duration::zero()) << "a disk of this host has no cache of names";
  // Whoever left it has died.
  ASSERT_TRUE(repository_.Sweep(1).ok());
  EXPECT_TRUE(AllFiles(repository_.path()).empty());
}

// It would never end if it looked only once, or waited to the end.
TEST_F(RepositoryTest, AMarkMayBeSeenLate) {
  bool seen = false;
  std::thread looking(
      [&] { seen = repository_.SeesMark(".tmp-mark-late", std::chrono::hours(1)); });
  WriteAll(File(".tmp-mark-late"), "");
  looking.join();
  EXPECT_TRUE(seen);
}

TEST_F(RepositoryTest, SweepRemovesRubbishAndNothingElse) {
  CommitStep(repository_, state_, 10, 1, 3);
  const auto before = AllFiles(repository_.path());
  ASSERT_TRUE(repository_.PrepareAttempt(10, 3, 2).ok());  // A void attempt of a committed step.
  ASSERT_TRUE(repository_.PrepareAttempt(20, 2, 1).ok());
  ASSERT_TRUE(repository_.PrepareAttempt(30, 3, 4).ok());
  WriteAll(File("step-20/2-1/rank-0-of-1.safetensors"), "half");
  WriteAll(File("commits/.tmp-20-abc"), "half");
  WriteAll(File(".tmp-probe-abc"), "");
  WriteAll(File("step-10/3-1/rank-1.report"), "of a rank that did its work");
  WriteAll(File("step-10/3-1/rank-1.verified"), "");
  EXPECT_EQ(*repository_.HighestAttempt(3), 4u);
  ASSERT_TRUE(repository_.PrepareAttempt(40, 4, 1).ok());  // Of a generation that may live.
  ASSERT_TRUE(repository_.Sweep(3).ok());
  EXPECT_EQ(AllFiles(repository_.path()), before);
  EXPECT_FALSE(std::filesystem::exists(File("step-20")));
  EXPECT_FALSE(std::filesystem::exists(File("step-30")));
  EXPECT_TRUE(std::filesystem::exists(File("step-40/4-1")));
}

// Which attempt a record names that cannot be read is unknown: it may be readable tomorrow.
TEST_F(RepositoryTest, SweepRemovesNoAttemptOfAStepWhoseRecordCannotBeRead) {
  CommitStep(repository_, state_, 10);
  const std::string record = ReadAll(File("commits/step-10"));
  WriteAll(File("commits/step-10"), "unreadable");
  ASSERT_TRUE(repository_.Sweep(3).ok());
  WriteAll(File("commits/step-10"), record);
  EXPECT_TRUE(repository_.Verify(*repository_.ReadManifest(10)).ok());
}

// Whoever sweeps may have been stopped for long, and replaced.
TEST_F(RepositoryTest, SweepLeavesWhatALaterGenerationHasStaged) {
  Manifest m = CommitStep(repository_, state_, 10, 1, 3);
  ASSERT_TRUE(repository_.Delete(10).ok());
  ASSERT_TRUE(repository_.PrepareAttempt(10, 3, 1).ok());
  WriteAll(repository_.AttemptPath(10, 3, 1) + "/" + m.files[0].name,
           std::string(m.files[0].bytes, 0));
  auto staged = repository_.Stage(m);
  ASSERT_TRUE(staged.ok()) << staged.status();
  ASSERT_TRUE(repository_.Sweep(2).ok());
  EXPECT_TRUE(repository_.Publish(*staged).ok());
  EXPECT_EQ(Steps(), (std::vector<std::int64_t>{10}));
  staged = repository_.Stage(m);
  ASSERT_TRUE(staged.ok()) << staged.status();
  ASSERT_TRUE(repository_.Sweep(3).ok());
  EXPECT_FALSE(std::filesystem::exists(staged->temporary));
}

TEST_F(RepositoryTest, AnInterruptedDeletionIsFinished) {
  CommitStep(repository_, state_, 10);
  CommitStep(repository_, state_, 20);
  std::filesystem::rename(File("commits/step-10"), File("commits/.deleted-step-10"));
  EXPECT_EQ(Steps(), (std::vector<std::int64_t>{20}));
  ASSERT_TRUE(repository_.Sweep(9).ok());
  EXPECT_EQ(AllFiles(repository_.path()),
            (std::vector<std::string>{"commits/step-20", "step-20/1-1/rank-0-of-1.safetensors"}));
}

TEST(RepositoryOpenTest, ADirectoryThatCanNotBeWrittenIsRefusedInThreeParts) {
  const TemporaryDirectory directory;
  WriteAll(directory / "file", "");
  for (const std::string& path :
       {directory / "file", directory / "file/below", std::string("/proc/regroup")}) {
    const auto repository = Repository::OpenForTraining(path);
    ASSERT_FALSE(repository.ok()) << path;
    const UserErrorParts parts = PartsOf(repository.status());
    EXPECT_NE(parts.what.find(path), std::string::npos);
    EXPECT_FALSE(parts.because.empty());
    EXPECT_NE(parts.try_this.find("--checkpoint-dir"), std::string::npos);
  }
  EXPECT_EQ(Repository::Open(directory / "none").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace regroup::worker
