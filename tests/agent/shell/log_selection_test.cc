// What a reader of logs gets of this node's files, and where it goes on after a break.

#include "agent/shell/log_selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "common/io/proc.h"
#include "tests/common/io/temp_directory.h"

namespace regroup::agent {
namespace {

struct Writer {
  Writer(const std::string& root, std::uint64_t generation, int rank, std::uint64_t segment = 4096)
      : log(io::LogDirectory(root, JobId("job-1"), Generation(generation), rank),
            io::LogStream::kStdout, {.segment_bytes = segment}) {}
  void Write(const std::string& text) {
    now += std::chrono::milliseconds(2);
    log.Append(text, now);
  }
  io::LogWriter log;
  WallTime now = io::WallNow();
};

v1::LogSelection Followed() {
  v1::LogSelection selection;
  selection.set_job("job-1");
  selection.set_follow(true);
  return selection;
}

// Everything that is there now, as one text; `marks` is told how far that is.
std::string ReadAll(LogSelectionReader& reader, LogMarks& marks, std::size_t most_chunks = 10'000) {
  std::string text;
  for (std::size_t taken = 0; taken < most_chunks;) {
    const std::vector<v1::LogChunk> chunks = reader.Next(false);
    if (chunks.empty()) break;
    for (const v1::LogChunk& chunk : chunks) {
      if (++taken > most_chunks) return text;  // What broke here was on its way.
      marks.Take(chunk);
      text += chunk.data();
    }
  }
  return text;
}

TEST(LogSelection, GoesOnAtTheByteWhereItsReaderIsWhereverThatBroke) {
  const io::TempDirectory root;
  Writer zero(root.path(), 1, 0), one(root.path(), 1, 1);
  std::string all;
  for (int i = 0; i < 600; ++i) {  // Over several segments, and lines over their ends.
    const std::string line = std::to_string(i) + std::string(static_cast<std::size_t>(i % 97), '.');
    (i % 3 == 0 ? one : zero).Write(line + "\n");
    all += line + "\n";
  }
  zero.Write("no end");
  for (std::size_t breaks : {7u, 50u, 333u}) {
    LogMarks marks;
    std::string text;
    for (int lives = 0; lives < 1'000; ++lives) {
      v1::LogSelection selection = Followed();
      marks.AddTo(selection, "node0");
      LogSelectionReader reader(root.path(), "node0", selection);
      const std::string part = ReadAll(reader, marks, breaks);
      text += part;
      if (part.empty() && lives > 0) break;
    }
    auto sorted = [](const std::string& lines) {
      std::vector<std::string> list;
      for (std::size_t at = 0; at < lines.size();) {
        const std::size_t end = lines.find('\n', at);
        list.push_back(lines.substr(at, end - at));
        at = end == std::string::npos ? lines.size() : end + 1;
      }
      std::sort(list.begin(), list.end());
      return list;
    };
    EXPECT_EQ(sorted(text), sorted(all)) << breaks;
  }
}

TEST(LogSelection, TailIsOfTheFirstLookOnly) {
  const io::TempDirectory root;
  Writer old(root.path(), 1, 0), silent(root.path(), 2, 1), log(root.path(), 2, 0);
  old.Write("generation one\n");
  silent.Write("a\nb\n");
  log.now = silent.now + std::chrono::seconds(1);
  log.Write("1\n2\n3\n");
  v1::LogSelection selection = Followed();
  selection.set_tail(1);
  LogMarks marks;
  {
    LogSelectionReader reader(root.path(), "node0", selection);
    EXPECT_EQ(ReadAll(reader, marks, 100), "b\n3\n");
  }
  log.Write("4\n5\n");
  Writer next(root.path(), 3, 0);
  next.Write("6\n");
  marks.AddTo(selection, "node0");
  LogSelectionReader again(root.path(), "node0", selection);
  EXPECT_EQ(ReadAll(again, marks), "4\n5\n6\n");
}

// Nothing is there yet when it breaks: all that comes is new, whatever the tail.
TEST(LogSelection, WhoWasReadBeforeItWroteAnythingIsReadFromTheBeginning) {
  const io::TempDirectory root;
  v1::LogSelection selection = Followed();
  selection.set_tail(0);
  LogMarks marks;
  {
    LogSelectionReader reader(root.path(), "node0", selection);
    EXPECT_EQ(ReadAll(reader, marks), "");
  }
  EXPECT_TRUE(marks.Knows("node0"));
  Writer log(root.path(), 1, 0);
  log.Write("1\n2\n");
  marks.AddTo(selection, "node0");
  LogSelectionReader again(root.path(), "node0", selection);
  EXPECT_EQ(ReadAll(again, marks), "1\n2\n");
  // A node that was not read is read as it was asked for.
  LogSelectionReader other(root.path(), "node1", selection);
  LogMarks others;
  EXPECT_EQ(ReadAll(other, others), "");
}

// Directories that come later are found, though they are not looked for when nothing changed.
TEST(LogSelection, FindsGenerationsAndRanksThatComeLater) {
  const io::TempDirectory root;
  LogSelectionReader reader(root.path(), "node0", Followed());
  LogMarks marks;
  for (std::uint64_t generation = 1; generation <= 4; ++generation) {
    for (int rank : {0, 1}) {
      Writer log(root.path(), generation, rank);
      log.Write(std::to_string(generation) + "\n");
      EXPECT_EQ(ReadAll(reader, marks), std::to_string(generation) + "\n");
    }
  }
  EXPECT_EQ(marks.ReadBefore("node0"), Generation(3));
}

// Its disk hung while its job went on.
TEST(LogSelection, WhatAnOldGenerationWroteLateIsReadInTheEnd) {
  const io::TempDirectory root;
  LogSelectionReader reader(root.path(), "node0", Followed());
  LogMarks marks;
  Writer hung(root.path(), 1, 0);
  hung.Write("1\n");
  for (std::uint64_t generation = 2; generation <= 4; ++generation)
    Writer(root.path(), generation, 0).Write(std::to_string(generation) + "\n");
  EXPECT_EQ(ReadAll(reader, marks), "1\n2\n3\n4\n");
  hung.Write("last words");
  EXPECT_EQ(ReadAll(reader, marks), "");
  std::string late;
  for (std::vector<v1::LogChunk> chunks; !(chunks = reader.Next(true)).empty();)
    for (const v1::LogChunk& chunk : chunks) late += chunk.data();
  EXPECT_EQ(late, "last words");
}

TEST(LogMarks, AreBoundedAndDropWhatIsDone) {
  LogMarks marks;
  v1::LogChunk chunk;
  chunk.set_node("n");
  chunk.set_data("x\n");
  chunk.mutable_mark()->set_offset(2);
  for (std::uint64_t generation = 1; generation <= 100; ++generation) {
    for (int rank = 0; rank < 8; ++rank) {
      chunk.set_generation(generation);
      chunk.mutable_mark()->set_generation(generation);
      chunk.mutable_mark()->set_rank(rank);
      marks.Take(chunk);
    }
  }
  v1::LogSelection selection;
  marks.AddTo(selection);
  EXPECT_EQ(selection.marks_size(), 1 + 2 * 8);
  EXPECT_FALSE(marks.Find("n", Generation(98), 0, io::LogStream::kStdout));
  EXPECT_TRUE(marks.Find("n", Generation(99), 7, io::LogStream::kStdout));
  for (int node = 0; node < 5'000; ++node) {
    chunk.set_node("n" + std::to_string(node));
    for (int rank = 0; rank < 16; ++rank) {
      chunk.mutable_mark()->set_rank(rank);
      marks.Take(chunk);
    }
  }
  EXPECT_TRUE(marks.Find("n0", Generation(100), 0, io::LogStream::kStdout));
  EXPECT_FALSE(marks.Find("n4999", Generation(100), 0, io::LogStream::kStdout));
  selection.Clear();
  marks.AddTo(selection);
  EXPECT_LE(selection.marks_size(), static_cast<int>(kMaxLogMarks));
  EXPECT_GT(selection.marks_size(), static_cast<int>(kMaxLogMarks) - 64);
}

}  // namespace
}  // namespace regroup::agent
