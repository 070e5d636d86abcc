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

inline absl::StatusOr<Journal::Batch> LoadNow(Journal& journal,
                                              const Journal::HasEnded& has_ended = nullptr) {
  std::promise<absl::StatusOr<Journal::Batch>> promise;
  journal.Load(has_ended,
               [&](absl::StatusOr<Journal::Batch> rows) { promise.set_value(std::move(rows)); });
  return promise.get_future().get();
}

inline absl::StatusOr<Journal::Batch> FolderNow(Journal& journal, const std::string& folder) {
  std::promise<absl::StatusOr<Journal::Batch>> promise;
  journal.ReadFolder(
      folder, [&](absl::StatusOr<Journal::Batch> rows) { promise.set_value(std::move(rows)); });
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

  // Nothing of a neighbour whose name begins or ends alike.
  void DeletesAndReadsFolders() {
    const Journal::Batch others = {
        {"job/a-1/spec", "1"}, {"job/a/spec", "2"}, {"job/a0/spec", "3"}};
    std::unique_ptr<Journal> journal = Open();
    ASSERT_TRUE(LoadNow(*journal).ok());
    ASSERT_TRUE(CommitNow(*journal, others).ok());
    const Journal::Batch job = {{"job/a-/event/000001", "e"}, {"job/a-/spec", "4"}};
    ASSERT_TRUE(CommitNow(*journal, job).ok());
    EXPECT_EQ(*FolderNow(*journal, "job/a-/"), job);
    EXPECT_EQ(*FolderNow(*journal, "job/b/"), Journal::Batch());
    ASSERT_TRUE(CommitNow(*journal, {{"job/a-/spec", "5"}, {"job/a-/", std::nullopt}}).ok());
    EXPECT_EQ(*FolderNow(*journal, "job/a-/"), Journal::Batch());
    journal = nullptr;
    journal = Open();
    EXPECT_EQ(*LoadNow(*journal), others);
  }

  // A start reads no history of what has ended, and all else.
  void LeavesHistoryWhereItIs() {
    Journal::Batch all = {
        {"job/a/commit", "c"}, {"job/a/done/n1", "d"}, {"job/a/event/000001", "e"}};
    Journal::Batch needed = {all[0]};
    for (int i = 100; i < 112; ++i) {
      all.push_back({"job/a/gen/" + std::to_string(i), "g"});
      if (i >= 104) needed.push_back(all.back());  // The newest.
    }
    const Journal::Batch rest = {{"job/a/spec", "s"},
                                 {"job/a/state", "over"},
                                 {"job/b/done/n1", "d"},
                                 {"job/b/event/000001", "e"},
                                 {"job/b/gen/1", "g"},
                                 {"job/b/state", "runs"},
                                 {"job/c/event/000001", "e"},
                                 {"job/d", "?"},
                                 {"meta", "m"},
                                 {"node/a", "n"}};
    all.insert(all.end(), rest.begin(), rest.end());
    needed.insert(needed.end(), rest.begin(), rest.end());
    {
      std::unique_ptr<Journal> journal = Open();
      ASSERT_TRUE(LoadNow(*journal).ok());
      ASSERT_TRUE(CommitNow(*journal, all).ok());
    }
    std::unique_ptr<Journal> journal = Open();
    EXPECT_EQ(*LoadNow(*journal, [](const std::string& state) { return state == "over"; }), needed);
    EXPECT_EQ(FolderNow(*journal, "job/a/")->size(), 17u);
    journal = nullptr;
    journal = Open();
    EXPECT_EQ(*LoadNow(*journal), all);
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
  TEST_F(Fixture, DeletesAndReadsFolders) { JournalContract::DeletesAndReadsFolders(); }       \
  TEST_F(Fixture, LeavesHistoryWhereItIs) { JournalContract::LeavesHistoryWhereItIs(); }       \
  TEST_F(Fixture, EndingWaitsForTheCommitInFlight) {                                           \
    JournalContract::EndingWaitsForTheCommitInFlight();                                        \
  }

}  // namespace regroup::coordinator
