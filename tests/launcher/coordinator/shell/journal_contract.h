#pragma once

// What every implementation of Journal keeps. A fixture gives `Open`, which makes a journal over
// the same durable state each time.

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>

#include "launcher/coordinator/shell/journal.h"

namespace regroup::coordinator {

inline absl::StatusOr<Journal::Batch> LoadNow(Journal& journal) {
  std::promise<absl::StatusOr<Journal::Batch>> promise;
  journal.Load([&](absl::StatusOr<Journal::Batch> rows) { promise.set_value(std::move(rows)); });
  return promise.get_future().get();
}

inline absl::Status CommitNow(Journal& journal, Journal::Batch batch) {
  std::promise<absl::Status> promise;
  journal.Commit(std::move(batch),
                 [&](absl::Status status) { promise.set_value(std::move(status)); });
  return promise.get_future().get();
}

class JournalContract : public ::testing::Test {
 protected:
  virtual std::unique_ptr<Journal> Open() = 0;

  void BeginsEmpty() {
    std::unique_ptr<Journal> journal = Open();
    const auto rows = LoadNow(*journal);
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_TRUE(rows->empty());
  }

  void KeepsRowsInOrderOfKeys() {
    {
      std::unique_ptr<Journal> journal = Open();
      ASSERT_TRUE(LoadNow(*journal).ok());
      ASSERT_TRUE(CommitNow(*journal, {{"job/b", "2"}, {"job/a", "1"}, {"meta", "m"}}).ok());
    }
    std::unique_ptr<Journal> journal = Open();
    const auto rows = LoadNow(*journal);
    ASSERT_TRUE(rows.ok());
    EXPECT_EQ(*rows, (Journal::Batch{{"job/a", "1"}, {"job/b", "2"}, {"meta", "m"}}));
  }

  void ReplacesWholeValuesAndDeletes() {
    {
      std::unique_ptr<Journal> journal = Open();
      ASSERT_TRUE(LoadNow(*journal).ok());
      ASSERT_TRUE(CommitNow(*journal, {{"a", "a long first value"}, {"b", "x"}, {"c", "y"}}).ok());
      ASSERT_TRUE(
          CommitNow(*journal, {{"a", "2"}, {"b", std::nullopt}, {"never", std::nullopt}}).ok());
    }
    std::unique_ptr<Journal> journal = Open();
    EXPECT_EQ(*LoadNow(*journal), (Journal::Batch{{"a", "2"}, {"c", "y"}}));
  }

  void TheLastRowOfAKeyWins() {
    std::unique_ptr<Journal> journal = Open();
    ASSERT_TRUE(LoadNow(*journal).ok());
    ASSERT_TRUE(
        CommitNow(*journal, {{"a", "1"}, {"a", std::nullopt}, {"b", "1"}, {"b", "2"}}).ok());
    journal = nullptr;
    journal = Open();
    EXPECT_EQ(*LoadNow(*journal), (Journal::Batch{{"b", "2"}}));
  }

  void TakesAnyBytes() {
    std::string bytes;
    for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
    const std::string large(400'000, '\x80');
    {
      std::unique_ptr<Journal> journal = Open();
      ASSERT_TRUE(LoadNow(*journal).ok());
      ASSERT_TRUE(CommitNow(*journal, {{"bytes", bytes}, {"empty", ""}, {"large", large}}).ok());
    }
    std::unique_ptr<Journal> journal = Open();
    EXPECT_EQ(*LoadNow(*journal),
              (Journal::Batch{{"bytes", bytes}, {"empty", ""}, {"large", large}}));
  }

  void CommittingTwiceIsHarmless() {
    const Journal::Batch batch = {{"a", "1"}, {"b", std::nullopt}};
    std::unique_ptr<Journal> journal = Open();
    ASSERT_TRUE(LoadNow(*journal).ok());
    ASSERT_TRUE(CommitNow(*journal, batch).ok());
    ASSERT_TRUE(CommitNow(*journal, batch).ok());
    journal = nullptr;
    journal = Open();
    EXPECT_EQ(*LoadNow(*journal), (Journal::Batch{{"a", "1"}}));
  }

  void EndingWaitsForTheCommitInFlight() {
    bool done = false;
    {
      std::unique_ptr<Journal> journal = Open();
      ASSERT_TRUE(LoadNow(*journal).ok());
      journal->Commit({{"a", std::string(100'000, 'x')}},
                      [&](const absl::Status& status) { done = status.ok(); });
    }
    EXPECT_TRUE(done);
    std::unique_ptr<Journal> journal = Open();
    EXPECT_EQ(LoadNow(*journal)->size(), 1u);
  }
};

#define REGROUP_JOURNAL_CONTRACT(Fixture)                                                      \
  TEST_F(Fixture, BeginsEmpty) { JournalContract::BeginsEmpty(); }                             \
  TEST_F(Fixture, KeepsRowsInOrderOfKeys) { JournalContract::KeepsRowsInOrderOfKeys(); }       \
  TEST_F(Fixture, ReplacesWholeValuesAndDeletes) {                                             \
    JournalContract::ReplacesWholeValuesAndDeletes();                                          \
  }                                                                                            \
  TEST_F(Fixture, TheLastRowOfAKeyWins) { JournalContract::TheLastRowOfAKeyWins(); }           \
  TEST_F(Fixture, TakesAnyBytes) { JournalContract::TakesAnyBytes(); }                         \
  TEST_F(Fixture, CommittingTwiceIsHarmless) { JournalContract::CommittingTwiceIsHarmless(); } \
  TEST_F(Fixture, EndingWaitsForTheCommitInFlight) {                                           \
    JournalContract::EndingWaitsForTheCommitInFlight();                                        \
  }

}  // namespace regroup::coordinator
