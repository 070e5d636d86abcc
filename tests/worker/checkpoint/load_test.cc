// What a restore reads, and who; that it reads nothing twice, and uses nothing unread.

#include "worker/checkpoint/load.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <thread>

#include "common/base/rng.h"
#include "tests/worker/checkpoint/io_watch.h"
#include "tests/worker/checkpoint/testing.h"
#include "worker/checkpoint/restore.h"
#include "worker/comm/in_process_communicator.h"

namespace regroup::worker {
namespace {

// Elements [begin, end) of each tensor's, from 0 to 1.
struct Held {
  double begin = 0, end = 1;
};
const Held kAll{0, 1}, kNothing{0, 0};

std::vector<Held> EachItsPart(int world) {
  std::vector<Held> parts;
  for (int r = 0; r < world; ++r) parts.push_back({double(r) / world, double(r + 1) / world});
  return parts;
}

class LoadTest : public testing::Test {
 protected:
  LoadTest() : repository_(*Repository::OpenForTraining(directory_ / "ckpt")) {
    newest_.SetStep(kNewest);
    older_.SetStep(kOlder);
  }

  std::vector<StateTensor> HoldingOf(TestState& state, const Held& held) const {
    std::vector<StateTensor> tensors;
    for (const StateTensor& whole : state.tensors()) {
      const std::span<float> data = whole.slices[0].data;
      const auto at = [&](double part) {
        return static_cast<std::size_t>(part * static_cast<double>(data.size()));
      };
      std::vector<StateSlice> slices;
      if (at(held.begin) < at(held.end)) {
        slices.push_back({static_cast<std::int64_t>(at(held.begin)),
                          data.subspan(at(held.begin), at(held.end) - at(held.begin))});
      }
      tensors.emplace_back(whole.info, std::move(slices));
    }
    return tensors;
  }

  // Every rank restores what it holds, and finds in it the values of step `expected`. What it has
  // read, by rank.
  std::vector<std::uint64_t> Restore(const std::vector<Held>& held, std::int64_t expected) {
    const auto world = held.size();
    auto ranks = MakeInProcessCommunicators(static_cast<int>(world));
    std::vector<std::uint64_t> read(world);
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < world; ++r) {
      threads.emplace_back([&, r] {
        TestState mine(kInfos);
        const std::vector<StateTensor> tensors = HoldingOf(mine, held[r]);
        const std::uint64_t before = BytesRead();
        const auto restored = RestoreNewest(*ranks[r], repository_, tensors);
        read[r] = BytesRead() - before;
        ASSERT_TRUE(restored.ok()) << restored.status();
        EXPECT_EQ(restored->manifest->step, expected);
        EXPECT_EQ(restored->skipped.size(), expected == kNewest ? 0u : 1u);
        TestState& values = expected == kNewest ? newest_ : older_;
        for (std::size_t t = 0; t < tensors.size(); ++t) {
          const std::span<float> whole = values.tensors()[t].slices[0].data;
          for (const StateSlice& slice : tensors[t].slices) {
            EXPECT_EQ(
                std::memcmp(slice.data.data(), whole.data() + slice.begin, slice.data.size_bytes()),
                0)
                << "rank " << r << " tensor " << t;
          }
        }
      });
    }
    for (std::thread& t : threads) t.join();
    return read;
  }
  std::uint64_t BytesOf(const Manifest& manifest) const {
    std::uint64_t bytes = 0;
    for (const FileInfo& file : manifest.files) bytes += file.bytes;
    return bytes;
  }
  std::string PathOf(const Manifest& manifest, std::size_t file) const {
    return repository_.AttemptPath(manifest.step, manifest.generation, manifest.attempt) + "/" +
           manifest.files[file].name;
  }

  static constexpr std::int64_t kOlder = 10, kNewest = 20;
  // 15 MB, so that there are four chunks or some more.
  const std::vector<TensorInfo> kInfos = {{"wte.weight", {1300, 1100}},
                                          {"bias", {5}},
                                          {"exp_avg/wte.weight", {1300, 1100}, "F32", "exp_avg"},
                                          {"large", {3, 300000}}};
  TestState newest_{kInfos}, older_{kInfos};  // Values of these steps.
  TemporaryDirectory directory_ = TemporaryDirectory::InMemory();
  Repository repository_;
};

TEST_F(LoadTest, EveryByteIsReadOnceByAllRanksTogether) {
  for (const int saved : {1, 3}) {
    const std::uint64_t bytes = BytesOf(CommitStep(repository_, newest_, kNewest, saved));
    for (const int world : {1, 2, 3, 4}) {
      const std::uint64_t even = bytes / static_cast<std::uint64_t>(world);
      for (const bool parts : {false, true}) {
        const std::vector<Held> held =
            parts ? EachItsPart(world) : std::vector<Held>(static_cast<std::size_t>(world), kAll);
        const std::vector<std::uint64_t> read = Restore(held, kNewest);
        EXPECT_EQ(std::accumulate(read.begin(), read.end(), std::uint64_t{0}), bytes);
        for (std::uint64_t one : read) EXPECT_LE(one, even + 3 * kChunkBytes) << saved << world;
      }
    }
    std::filesystem::remove_all(repository_.path());
    repository_ = *Repository::OpenForTraining(repository_.path());
  }
}

// Ranks that hold nothing still take part, and what is held by none is read all the same: a
// checkpoint that is gone on from is sound.
TEST_F(LoadTest, WhateverRanksHoldAllIsRead) {
  const std::uint64_t bytes = BytesOf(CommitStep(repository_, newest_, kNewest, 2));
  Rng rng(4);
  std::vector<std::vector<Held>> rows = {{kNothing, kAll}, {kNothing, kNothing, kNothing}};
  for (int i = 0; i < 12; ++i) {
    std::vector<Held>& held = rows.emplace_back();
    for (std::uint64_t r = 1 + rng.Below(5); r > 0; --r) {
      const double a = rng.Unit(), b = rng.Unit();
      held.push_back({std::min(a, b), std::max(a, b)});
    }
  }
  for (const std::vector<Held>& held : rows) {
    const std::vector<std::uint64_t> read = Restore(held, kNewest);
    EXPECT_EQ(std::accumulate(read.begin(), read.end(), std::uint64_t{0}), bytes);
  }
}

// Counts what is handed round.
class CountingGroup final : public Group {
 public:
  explicit CountingGroup(Group& group) : group_(group) {}
  std::uint64_t broadcast_bytes() const { return broadcast_bytes_; }

  int rank() const override { return group_.rank(); }
  int world_size() const override { return group_.world_size(); }
  void SetDeadline(Duration per_call) override { group_.SetDeadline(per_call); }
  absl::Status AllReduce(std::span<double> inout, Reduction reduction) override {
    return group_.AllReduce(inout, reduction);
  }
  absl::Status AllReduce(std::span<std::int64_t> inout, Reduction reduction) override {
    return group_.AllReduce(inout, reduction);
  }
  absl::Status Broadcast(std::span<std::byte> inout, int root) override {
    broadcast_bytes_ += inout.size();
    return group_.Broadcast(inout, root);
  }
  absl::Status Barrier() override { return group_.Barrier(); }
  absl::Status Health() override { return group_.Health(); }
  void Abort() override { group_.Abort(); }

 private:
  Group& group_;
  std::uint64_t broadcast_bytes_ = 0;
};

TEST_F(LoadTest, OnlyWhatSeveralRanksHoldIsHandedRound) {
  const Manifest manifest = CommitStep(repository_, newest_, kNewest, 2);
  const std::vector<std::pair<std::vector<Held>, std::uint64_t>> rows = {
      {{kNothing, kAll}, 0}, {{kAll, kNothing, kAll}, BytesOf(manifest)}};
  for (const auto& row : rows) {
    const std::vector<Held>& held = row.first;
    const std::uint64_t bytes = row.second;
    auto ranks = MakeInProcessCommunicators(static_cast<int>(held.size()));
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < held.size(); ++r) {
      threads.emplace_back([&, r] {
        TestState mine(kInfos);
        CountingGroup group(*ranks[r]);
        EXPECT_TRUE(Load(group, repository_, manifest, HoldingOf(mine, held[r])).ok());
        EXPECT_EQ(group.broadcast_bytes(), bytes);
      });
    }
    for (std::thread& t : threads) t.join();
  }
}

TEST_F(LoadTest, ADamagedChunkOfAnyFileMakesAllRanksTakeTheOlderCheckpoint) {
  CommitStep(repository_, older_, kOlder, 2);
  const Manifest manifest = CommitStep(repository_, newest_, kNewest, 2);
  Rng rng(6);
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    const std::string path = PathOf(manifest, f), good = ReadAll(path);
    for (std::size_t begin = 0; begin < good.size(); begin += kChunkBytes) {
      std::string bad = good;
      bad[begin + rng.Below(std::min<std::uint64_t>(kChunkBytes, good.size() - begin))] ^= 1;
      WriteAll(path, bad);
      Restore({kAll, kAll}, kOlder);
      Restore({kAll, kNothing, kAll}, kOlder);
      Restore({kNothing, kAll}, kOlder);  // Found by the only rank that uses it.
      Restore(EachItsPart(3), kOlder);
    }
    WriteAll(path, good);
  }
  Restore(EachItsPart(3), kNewest);
}

TEST_F(LoadTest, WhatDoesNotMatchItsCrcIsNotUsedByAnyRank) {
  const Manifest manifest = CommitStep(repository_, newest_, kNewest, 1);
  std::string bad = ReadAll(PathOf(manifest, 0));
  for (std::size_t at = 2 * kChunkBytes; at < 3 * kChunkBytes; at += 4) bad[at] ^= 1;
  WriteAll(PathOf(manifest, 0), bad);
  for (const bool parts : {false, true}) {
    auto ranks = MakeInProcessCommunicators(2);
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        TestState mine(kInfos);
        const auto rank = static_cast<std::size_t>(r);
        const absl::Status loaded = Load(*ranks[rank], repository_, manifest,
                                         HoldingOf(mine, parts ? EachItsPart(2)[rank] : kAll));
        EXPECT_TRUE(absl::IsDataLoss(loaded)) << loaded;
        EXPECT_NE(std::string(loaded.message()).find("chunk 2 (bytes 8388608 to 12582912)"),
                  std::string::npos)
            << loaded;
        int wrong = 0;
        for (std::size_t t = 0; t < kInfos.size(); ++t) {
          const std::span<float> data = mine.tensors()[t].slices[0].data,
                                 right = newest_.tensors()[t].slices[0].data;
          for (std::size_t i = 0; i < data.size(); ++i)
            wrong += data[i] != 0 && data[i] != right[i] ? 1 : 0;
        }
        EXPECT_EQ(wrong, 0);
      });
    }
    for (std::thread& t : threads) t.join();
  }
}

// It says nothing about the checkpoint, so no older one is tried.
TEST_F(LoadTest, AFailureOfTheGroupIsNoDamage) {
  CommitStep(repository_, older_, kOlder, 2);
  CommitStep(repository_, newest_, kNewest, 2);
  auto ranks = MakeInProcessCommunicators(2);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      TestState mine(kInfos);
      const auto restored =
          RestoreNewest(*ranks[r], repository_, mine.tensors(), [&](const Manifest&) {
            if (r == 1) ranks[r]->Abort();
            return absl::OkStatus();
          });
      EXPECT_TRUE(IsCommunicatorFailure(restored.status())) << restored.status();
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace regroup::worker
