#include "worker/data/batch_reader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace regroup::worker {
namespace {

using Ids = std::vector<std::int64_t>;

// Sample i is 10 i, 10 i + 1. May fail, and may be held until the test lets go.
class Numbered final : public Dataset {
 public:
  std::int64_t samples() const override { return 100; }
  int vocabulary() const override { return 1001; }
  int context() const override { return 2; }
  absl::Status Read(std::int64_t sample, std::span<std::int32_t> tokens,
                    std::span<std::int32_t> targets) const override {
    std::unique_lock lock(mutex_);
    ++reads_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !held_; });
    if (sample == bad_) return absl::DataLossError(absl::StrCat("sample ", sample, " is gone"));
    for (int t = 0; t < 2; ++t) {
      tokens[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(10 * sample) + t;
      targets[static_cast<std::size_t>(t)] = tokens[static_cast<std::size_t>(t)] + 1;
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::uint64_t> Fingerprint() override { return 0; }

  void Hold(bool held) {
    const std::scoped_lock lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  void AwaitReads(int reads) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reads_ >= reads; });
  }
  int reads() const {
    const std::scoped_lock lock(mutex_);
    return reads_;
  }
  void Spoil(std::int64_t sample) {
    const std::scoped_lock lock(mutex_);
    bad_ = sample;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int reads_ = 0;
  bool held_ = false;
  std::int64_t bad_ = -1;
};

std::vector<std::int32_t> Tokens(BatchReader& reader, const Ids& ids) {
  const auto batch = reader.Take(ids);
  EXPECT_TRUE(batch.ok()) << batch.status();
  if (!batch.ok()) return {};
  for (std::size_t i = 0; i < batch->tokens.size(); ++i)
    EXPECT_EQ(batch->targets[i], batch->tokens[i] + 1);
  return {batch->tokens.begin(), batch->tokens.end()};
}

TEST(BatchReader, ReadsTheNextBatchWhileTheCallerHasThisOne) {
  Numbered data;
  const auto reader = *BatchReader::Create(data, 3);
  const auto first = reader->Take(Ids{7, 8});
  ASSERT_TRUE(first.ok());
  reader->ReadAhead(Ids{9, 10, 11});
  data.AwaitReads(5);
  // Read meanwhile, and not over this one.
  EXPECT_EQ((std::vector<std::int32_t>(first->tokens.begin(), first->tokens.end())),
            (std::vector<std::int32_t>{70, 71, 80, 81}));
  EXPECT_EQ(Tokens(*reader, {9, 10, 11}), (std::vector<std::int32_t>{90, 91, 100, 101, 110, 111}));
  EXPECT_EQ(data.reads(), 5);  // Not twice.
}

TEST(BatchReader, TakeWaitsForWhatIsBeingRead) {
  Numbered data;
  const auto reader = *BatchReader::Create(data, 1);
  EXPECT_EQ(Tokens(*reader, {1}), (std::vector<std::int32_t>{10, 11}));
  data.Hold(true);
  reader->ReadAhead(Ids{2});
  data.AwaitReads(2);
  std::thread later([&] { data.Hold(false); });
  EXPECT_EQ(Tokens(*reader, {2}), (std::vector<std::int32_t>{20, 21}));
  later.join();
  EXPECT_EQ(data.reads(), 2);
}

// Another order of samples than was announced: only the time is lost.
TEST(BatchReader, OtherIdsThanWereReadAheadAreReadThen) {
  Numbered data;
  const auto reader = *BatchReader::Create(data, 2);
  EXPECT_EQ(Tokens(*reader, {1, 2}), (std::vector<std::int32_t>{10, 11, 20, 21}));
  reader->ReadAhead(Ids{3, 4});
  EXPECT_EQ(Tokens(*reader, {1, 2}), (std::vector<std::int32_t>{10, 11, 20, 21}));
  reader->ReadAhead(Ids{3});
  EXPECT_EQ(Tokens(*reader, {3}), (std::vector<std::int32_t>{30, 31}));
  EXPECT_EQ(Tokens(*reader, {}), std::vector<std::int32_t>());
  reader->ReadAhead(Ids{});
  EXPECT_EQ(Tokens(*reader, {}), std::vector<std::int32_t>());
}

TEST(BatchReader, AFailureIsThatOfTheReadItBelongsTo) {
  Numbered data;
  const auto reader = *BatchReader::Create(data, 2);
  data.Spoil(4);
  EXPECT_EQ(Tokens(*reader, {1, 2}), (std::vector<std::int32_t>{10, 11, 20, 21}));
  reader->ReadAhead(Ids{3, 4});
  // Whoever asks for others does not hear of it.
  EXPECT_EQ(Tokens(*reader, {5, 6}), (std::vector<std::int32_t>{50, 51, 60, 61}));
  reader->ReadAhead(Ids{3, 4});
  const absl::Status status = reader->Take(Ids{3, 4}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "sample 4 is gone");
  EXPECT_EQ(reader->Take(Ids{3, 4}).status().message(), "sample 4 is gone");
  EXPECT_EQ(Tokens(*reader, {7}), (std::vector<std::int32_t>{70, 71}));
}

TEST(BatchReader, RoomThatThereIsNotIsRefused) {
  Numbered data;
  EXPECT_EQ(BatchReader::Create(data, std::int64_t{1} << 50).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(BatchReader, EndsInTheMiddleOfARead) {
  Numbered data;
  auto reader = *BatchReader::Create(data, 1);
  data.Hold(true);
  reader->ReadAhead(Ids{2});
  data.AwaitReads(1);
  std::thread later([&] { data.Hold(false); });
  reader.reset();
  later.join();
}

TEST(BatchReader, ManyBatchesInARow) {
  Numbered data;
  const auto reader = *BatchReader::Create(data, 3);
  for (std::int64_t step = 0; step < 500; ++step) {
    const auto of = [](std::int64_t s) { return Ids{s % 97, (s + 1) % 97, (s + 2) % 97}; };
    const auto tokens = Tokens(*reader, of(step));
    ASSERT_EQ(tokens.size(), 6u);
    EXPECT_EQ(tokens[2], 10 * ((step + 1) % 97));
    reader->ReadAhead(of(step + 1));
  }
  EXPECT_LE(data.reads(), 3 * 501);
}

}  // namespace
}  // namespace regroup::worker
