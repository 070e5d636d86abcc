#include "common/io/log_files.h"

#include <gmock/gmock.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "tests/common/io/temp_directory.h"

namespace regroup::io {
namespace {

WallTime At(int ms) { return WallTime(std::chrono::milliseconds(ms)); }

std::string ReadRest(LogReader& reader) {
  std::string all;
  for (;;) {
    absl::StatusOr<LogReader::Chunk> chunk = reader.Next();
    EXPECT_TRUE(chunk.ok()) << chunk.status();
    if (!chunk.ok() || chunk->bytes.empty()) return all;
    all += chunk->bytes;
  }
}

TEST(LogFiles, NothingWrittenNothingThere) {
  TempDirectory directory;
  LogWriter writer(directory / "r", LogStream::kStdout, {});
  EXPECT_FALSE(std::filesystem::exists(directory / "r"));
  LogReader reader(directory / "r", LogStream::kStdout);
  EXPECT_EQ(ReadRest(reader), "");
  EXPECT_EQ(*TailPosition(directory / "r", LogStream::kStdout, 5), LogPosition{});
  EXPECT_EQ(TailText(directory / "r", LogStream::kStdout, 5, 100), "");
}

TEST(LogFiles, ReaderFollowsOverSegmentsByteForByte) {
  TempDirectory directory;
  LogWriter writer(directory / "r", LogStream::kStdout, {.segment_bytes = 4096, .segments = 1000});
  LogReader reader(directory / "r", LogStream::kStdout);
  Rng rng(7);
  std::string written, read;
  for (int i = 0; i < 400; ++i) {
    std::string piece;
    for (std::uint64_t n = rng.Below(900); n-- > 0;) piece += static_cast<char>(rng.Below(256));
    writer.Append(piece, At(i * 3));
    written += piece;
    if (rng.Below(3) == 0) read += ReadRest(reader);
  }
  read += ReadRest(reader);
  EXPECT_EQ(read, written);
  EXPECT_GT(reader.position().segment, 10);
  LogReader again(directory / "r", LogStream::kStdout);
  EXPECT_EQ(ReadRest(again), written);
  EXPECT_EQ(writer.written_bytes(), written.size());
  // People's link names the newest.
  EXPECT_EQ(std::filesystem::read_symlink(directory / "r/stdout.log"),
            absl::StrCat("stdout.", reader.position().segment, ".log"));
}

TEST(LogFiles, ChunksKnowTheirTime) {
  TempDirectory directory;
  LogWriter writer(directory / "r", LogStream::kStderr, {.segment_bytes = 4096});
  writer.Append("one\ntw", At(100));
  writer.Append("o\nthree\n", At(200));
  writer.Append(std::string(5000, 'x') + "\n", At(300));
  LogReader reader(directory / "r", LogStream::kStderr);
  LineSplitter splitter;
  std::vector<LogLine> lines;
  for (;;) {
    LogReader::Chunk chunk = *reader.Next();
    if (chunk.bytes.empty()) break;
    splitter.Add(chunk.bytes, chunk.at, lines);
  }
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0].at, At(100));
  EXPECT_EQ(lines[1].text, "two");
  EXPECT_EQ(lines[1].at, At(100));  // Of its first byte.
  EXPECT_EQ(lines[2].at, At(200));
  EXPECT_EQ(lines[3].at, At(300));
  EXPECT_EQ(lines[3].text.size(), 5000u);
  LogReader since(directory / "r", LogStream::kStderr,
                  *PositionSince(directory / "r", LogStream::kStderr, At(150)));
  EXPECT_EQ(since.Next()->bytes, "o\nthree\n");
  EXPECT_EQ(PositionSince(directory / "r", LogStream::kStderr, At(301))->segment, 1);
}

TEST(LogFiles, OldestSegmentsGoFirstAndTheReaderSaysSo) {
  TempDirectory directory;
  LogWriter writer(directory / "r", LogStream::kStdout, {.segment_bytes = 4096, .segments = 3});
  LogReader reader(directory / "r", LogStream::kStdout);
  writer.Append("start", At(1));
  EXPECT_EQ(ReadRest(reader), "start");
  for (int i = 0; i < 10; ++i)
    writer.Append(std::string(4096, static_cast<char>('a' + i)), At(2 + i));
  std::string rest = ReadRest(reader);
  EXPECT_GT(reader.lost_segments(), 0);
  EXPECT_EQ(rest.substr(rest.size() - 5), "jjjjj");
  int logs = 0;
  const std::vector<std::string> names = *ListDirectory(directory / "r");
  for (const std::string& name : names) logs += name.ends_with(".log") ? 1 : 0;
  EXPECT_EQ(logs, 3 + 1);  // And the link.
}

TEST(LogFiles, ANewWriterContinuesBehindAnOldOne) {
  TempDirectory directory;
  { LogWriter(directory / "r", LogStream::kStdout, {}).Append("first\n", At(1)); }
  { LogWriter(directory / "r", LogStream::kStdout, {}).Append("second\n", At(2)); }
  LogReader reader(directory / "r", LogStream::kStdout);
  EXPECT_EQ(ReadRest(reader), "first\nsecond\n");
}

TEST(LogFiles, Tail) {
  TempDirectory directory;
  LogWriter writer(directory / "r", LogStream::kStdout, {.segment_bytes = 4096, .segments = 100});
  for (int i = 0; i < 2000; ++i) writer.Append(absl::StrCat("line ", i, "\n"), At(i));
  EXPECT_EQ(TailText(directory / "r", LogStream::kStdout, 2, 1000), "line 1998\nline 1999\n");
  EXPECT_EQ(TailText(directory / "r", LogStream::kStdout, 0, 1000), "");
  writer.Append("rest", At(2001));
  EXPECT_EQ(TailText(directory / "r", LogStream::kStdout, 2, 1000), "line 1999\nrest");
  EXPECT_EQ(TailText(directory / "r", LogStream::kStdout, 1000, 6), "9\nrest");
  EXPECT_EQ(TailText(directory / "r", LogStream::kStdout, 1500, 1 << 20).substr(0, 9),
            "line 501\n");
}

TEST(LogFiles, LinesAreBounded) {
  LineSplitter splitter(10);
  std::vector<LogLine> lines;
  splitter.Add("0123456789\n0123456789ABC\n\nz", At(1), lines);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0].text, "0123456789");
  EXPECT_TRUE(lines[0].complete);
  EXPECT_FALSE(lines[1].complete);
  EXPECT_EQ(lines[2].text, "ABC");
  EXPECT_EQ(lines[3].text, "");
  EXPECT_EQ(splitter.TakePartial()->text, "z");
  EXPECT_FALSE(splitter.TakePartial());
}

TEST(LogFiles, WhatALineWasCutFromHasItsTime) {
  LineSplitter splitter(4);
  std::vector<LogLine> lines;
  splitter.Add("abc", At(1), lines);
  splitter.Add("def", At(2), lines);
  splitter.Add("ghi\nnext\n", At(3), lines);
  ASSERT_EQ(lines.size(), 4u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(lines[i].at, At(1)) << i;
  EXPECT_EQ(lines[2].text, "i");
  EXPECT_TRUE(lines[2].complete);
  EXPECT_EQ(lines[3].at, At(3));
}

TEST(LogFiles, PruneKeepsWhatItMust) {
  TempDirectory directory;
  const JobId job("train-1");
  for (std::uint64_t generation = 1; generation <= 4; ++generation) {
    LogWriter writer(LogDirectory(directory.path(), job, Generation(generation), 0),
                     LogStream::kStdout, {.segment_bytes = 4096, .segments = 10});
    writer.Append(std::string(8192, 'x'), At(1));
  }
  EXPECT_THAT(ListLogs(directory.path(), job)->at(Generation(3)), testing::ElementsAre(0));
  EXPECT_LE(*PruneLogs(directory.path(), job, 20000, {Generation(1), Generation(4)}), 20000u);
  LogReader first(LogDirectory(directory.path(), job, Generation(1), 0), LogStream::kStdout);
  EXPECT_EQ(ReadRest(first).size(), 8192u);
  LogReader second(LogDirectory(directory.path(), job, Generation(2), 0), LogStream::kStdout);
  EXPECT_EQ(ReadRest(second).size(), 0u);
  EXPECT_GT(*PruneLogs(directory.path(), job, 0, {Generation(1), Generation(4)}), 16000u);
}

TEST(LogFiles, FullDiskLosesBytesAndSaysHowMany) {
  TempDirectory directory;
  if (::mount("regroup-test", directory.path().c_str(), "tmpfs", 0, "size=64k") < 0) {
    GTEST_SKIP() << "needs the right to mount a small tmpfs";
  }
  LogWriter writer(directory / "r", LogStream::kStdout, {.segment_bytes = 1 << 20, .segments = 2});
  for (int i = 0; i < 20; ++i) writer.Append(std::string(8000, 'x'), At(i));
  EXPECT_GT(writer.lost_bytes(), 90000u);
  EXPECT_EQ(writer.written_bytes() + writer.lost_bytes(), 160000u);
  EXPECT_EQ(ErrnoOf(writer.last_error()), ENOSPC);
  const std::uint64_t lost = writer.lost_bytes();
  ASSERT_EQ(::mount("", directory.path().c_str(), "", MS_REMOUNT, "size=1m"), 0);
  writer.Append("more", At(100));
  LogReader reader(directory / "r", LogStream::kStdout);
  const std::string all = ReadRest(reader);
  EXPECT_THAT(all,
              testing::HasSubstr(absl::StrCat("[regroup: ", lost, " bytes of stdout lost here: ")));
  EXPECT_EQ(all.substr(all.size() - 6), "]\nmore");
  ::umount2(directory.path().c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace regroup::io
