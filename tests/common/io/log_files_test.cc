#include "common/io/log_files.h"

#include <gmock/gmock.h>
#include <sys/mount.h>
#include <sys/stat.h>
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

TEST(LogFiles, AFifoInPlaceOfASegmentOrItsIndexKeepsNoReaderWaiting) {
  TempDirectory directory;
  {
    LogWriter writer(directory / "r", LogStream::kStdout, {});
    writer.Append("a line\n", At(1));
  }
  ASSERT_EQ(::unlink((directory / "r/stdout.0.idx").c_str()), 0);
  ASSERT_EQ(::mkfifo((directory / "r/stdout.0.idx").c_str(), 0600), 0);
  LogReader untimed(directory / "r", LogStream::kStdout);
  EXPECT_EQ(ReadRest(untimed), "a line\n");
  EXPECT_TRUE(PositionSince(directory / "r", LogStream::kStdout, At(0)).ok());

  ASSERT_EQ(::unlink((directory / "r/stdout.0.log").c_str()), 0);
  ASSERT_EQ(::mkfifo((directory / "r/stdout.0.log").c_str(), 0600), 0);
  LogReader reader(directory / "r", LogStream::kStdout);
  const absl::Status refused = reader.Next().status();
  EXPECT_THAT(refused.message(), testing::HasSubstr("is a FIFO, not a regular file"));
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

TEST(LogFiles, AllIsKeptInOneWholeFile) {
  TempDirectory directory;
  const LogLimits limits = LimitsFor(std::nullopt);
  LogWriter writer(directory / "r", LogStream::kStdout, limits);
  LogWriter silent(directory / "r", LogStream::kStderr, limits);
  writer.Begin();
  silent.Begin();
  EXPECT_EQ(std::filesystem::file_size(directory / "r/stderr.log"), 0u);
  std::string written;
  for (int i = 0; i < 3000; ++i) {
    const std::string line = absl::StrCat("line ", i, std::string(8000, '.'), "\n");
    writer.Append(line, At(i));
    written += line;
  }
  EXPECT_EQ(*ReadFile(directory / "r/stdout.log", 64u << 20), written);
  EXPECT_FALSE(std::filesystem::is_symlink(directory / "r/stdout.log"));
  LogReader reader(directory / "r", LogStream::kStdout);
  EXPECT_EQ(ReadRest(reader), written);
  EXPECT_EQ(TailText(directory / "r", LogStream::kStdout, 1, 10000).substr(0, 9), "line 2999");
  LogReader since(directory / "r", LogStream::kStdout,
                  *PositionSince(directory / "r", LogStream::kStdout, At(2900)));
  EXPECT_EQ(since.Next()->bytes.substr(0, 9), "line 2900");
}

TEST(LogFiles, ARotatedStreamHasItsFileFromTheBeginning) {
  TempDirectory directory;
  LogWriter writer(directory / "r", LogStream::kStdout, {});
  writer.Begin();
  EXPECT_EQ(std::filesystem::file_size(directory / "r/stdout.log"), 0u) << "no dangling link";
}

TEST(LogFiles, WhatIsNotShownYetStays) {
  TempDirectory directory;
  LogWriter writer(directory / "r", LogStream::kStdout, {.segment_bytes = 4096, .segments = 3});
  writer.Hold(LogPosition{});
  LogReader reader(directory / "r", LogStream::kStdout);
  std::string written;
  for (int i = 0; i < 20; ++i) {
    const std::string block(4096, static_cast<char>('a' + i));
    writer.Append(block, At(i));
    written += block;
  }
  EXPECT_EQ(writer.unshown_bytes(), written.size());
  EXPECT_EQ(ReadRest(reader), written);
  EXPECT_EQ(reader.lost_segments(), 0);
  writer.Hold(LogPosition{10, 96});
  EXPECT_EQ(writer.unshown_bytes(), 10 * 4096u - 96u);
  LogReader rest(directory / "r", LogStream::kStdout, {10, 96});
  EXPECT_EQ(ReadRest(rest), written.substr(10 * 4096 + 96));
  writer.Hold(reader.position());
  EXPECT_EQ(writer.unshown_bytes(), 0u);
  LogReader kept(directory / "r", LogStream::kStdout);
  EXPECT_EQ(ReadRest(kept), written.substr(17 * 4096)) << "the limit counts again";
  writer.Append("x", At(30));
  writer.Hold(std::nullopt);
  EXPECT_EQ(writer.unshown_bytes(), 0u);
}

TEST(LogFiles, MemoryPassesWhatTheDiskDoesNotKeep) {
  using Place = LogWriter::Place;
  TempDirectory directory;
  const std::string passing = directory / "passing";
  LogWriter writer(directory / "r", LogStream::kStdout, {.segment_bytes = 4096}, passing);
  writer.Hold(LogPosition{});
  writer.Append("kept\n", At(1));
  std::string passed;
  for (int i = 0; i < 12; ++i) {
    const std::string block(100 << 10, static_cast<char>('a' + i));
    writer.Append(block, At(2), Place::kMemory);
    passed += block;
  }
  EXPECT_EQ(writer.memory_bytes(), passed.size());
  EXPECT_EQ(writer.unshown_bytes(), passed.size() + 5);
  writer.Append("kept again\n", At(3));
  LogReader reader(directory / "r", LogStream::kStdout, {}, passing);
  std::string shown;
  for (LogReader::Chunk chunk; !(chunk = *reader.Next()).bytes.empty();) {
    if (!chunk.note) shown += chunk.bytes;
  }
  EXPECT_EQ(shown, "kept\n" + passed + "kept again\n");
  LogReader later(directory / "r", LogStream::kStdout);
  EXPECT_EQ(ReadRest(later), absl::StrCat("kept\n[regroup: ", passed.size(),
                                          " bytes of stdout not kept here: the disk was full]\n"
                                          "kept again\n"));
  writer.Hold(reader.position());
  EXPECT_EQ(writer.memory_bytes(), 0u);
  EXPECT_TRUE(ListDirectory(passing)->empty()) << "shown is gone";
  writer.Append("more", At(4), Place::kMemory);
  writer.Hold(std::nullopt);
  EXPECT_TRUE(ListDirectory(passing)->empty()) << "so is what nobody will show";
  writer.Append("lost", At(5), Place::kNowhere, ErrnoStatus(ENOSPC, "why"));
  EXPECT_EQ(writer.lost_bytes(), 4u);
}

TEST(LogFiles, MemoryPassesWhatTheDiskRefuses) {
  TempDirectory directory;
  const std::string place = directory / "r";
  ASSERT_TRUE(ReplaceFile(place, "no directory", Durability::kVolatile).ok());
  LogWriter alone(place, LogStream::kStdout, {}, directory / "passing");
  alone.Append("nobody shows it", At(1));
  EXPECT_EQ(alone.lost_bytes(), 15u);
  LogWriter writer(place, LogStream::kStdout, {}, directory / "passing");
  writer.Hold(LogPosition{});
  const std::string block(100 << 10, 'x');
  writer.Append(block, At(1));
  EXPECT_TRUE(writer.in_memory());
  EXPECT_EQ(ErrnoOf(writer.last_error()), ENOTDIR);
  LogReader meanwhile(place, LogStream::kStdout, {}, directory / "passing");
  EXPECT_EQ(ReadRest(meanwhile), block);
  LogWriter left(place, LogStream::kStderr, {}, directory / "passing");
  left.Hold(LogPosition{});
  left.Append("refused", At(1));
  left.Hold(std::nullopt);
  ASSERT_EQ(::unlink(place.c_str()), 0);
  left.Append("kept", At(2));
  EXPECT_FALSE(left.in_memory()) << "nobody would show it";
  writer.Append(block, At(2));  // The disk is not asked each time.
  EXPECT_TRUE(writer.in_memory());
  writer.Append(block, At(3));
  writer.Append("kept", At(4));
  EXPECT_FALSE(writer.in_memory());
  EXPECT_EQ(writer.lost_bytes(), 0u);
  LogReader shows(place, LogStream::kStdout, {}, directory / "passing");
  std::string shown;
  for (LogReader::Chunk chunk; !(chunk = *shows.Next()).bytes.empty();) {
    if (!chunk.note) shown += chunk.bytes;
  }
  EXPECT_EQ(shown, block + block + block + "kept");
  LogReader later(place, LogStream::kStdout);
  const std::string kept = ReadRest(later);
  EXPECT_THAT(kept, testing::StartsWith("[regroup: 307200 bytes of stdout not kept here: "));
  EXPECT_THAT(kept, testing::EndsWith(": Not a directory]\nkept"));
}

TEST(LogFiles, HowMuchIsNoLongerKeptIsKnown) {
  TempDirectory directory;
  LogWriter writer(directory / "r", LogStream::kStdout, {.segment_bytes = 4096, .segments = 3});
  EXPECT_EQ(NotKeptBytes(directory / "r", LogStream::kStdout), 0u);
  for (int i = 0; i < 8; ++i) writer.Append(std::string(4096, 'x'), At(i));
  EXPECT_EQ(NotKeptBytes(directory / "r", LogStream::kStdout), 5 * 4096u);
  LogReader reader(directory / "r", LogStream::kStdout);
  EXPECT_EQ(reader.Next()->lost_before, 5 * 4096u);
  EXPECT_EQ(reader.Next()->lost_before, 0u);
  for (int i = 0; i < 8; ++i) writer.Append(std::string(4096, 'y'), At(10 + i));
  ReadRest(reader);
  TrimLog(directory / "r", LogStream::kStdout, {.segment_bytes = 4096, .segments = 1});
  EXPECT_EQ(NotKeptBytes(directory / "r", LogStream::kStdout), 15 * 4096u);
}

TEST(LogFiles, WhoReadsInSmallPiecesMissesNothing) {
  TempDirectory directory;
  LogWriter writer(directory / "r", LogStream::kStdout, {.segment_bytes = 4096, .segments = 3});
  for (int i = 0; i < 3; ++i) writer.Append(std::string(4096, 'x'), At(i));
  LogReader reader(directory / "r", LogStream::kStdout);
  std::size_t read = 0;
  for (LogReader::Chunk chunk; !(chunk = *reader.Next(1000)).bytes.empty();) {
    EXPECT_EQ(chunk.lost_before, 0u) << read;
    read += chunk.bytes.size();
  }
  EXPECT_EQ(read, 3 * 4096u);
}

TEST(LogFiles, AClockThatIsSetBackIsBelieved) {
  TempDirectory directory;
  LogWriter writer(directory / "r", LogStream::kStdout, {});
  writer.Append("a", At(10));
  writer.Append("b", At(5));
  LogReader reader(directory / "r", LogStream::kStdout);
  EXPECT_EQ(reader.Next()->at, At(10));
  EXPECT_EQ(reader.Next()->at, At(5));
}

TEST(LogFiles, LimitsForASize) {
  EXPECT_TRUE(LimitsFor(std::nullopt).keeps_all());
  EXPECT_EQ(LimitsFor(100u << 20).segments, 10);
  EXPECT_EQ(LimitsFor(1ull << 30).segments, 103);
  EXPECT_EQ(LimitsFor(1 << 20).segment_bytes, (1u << 20) / 10);
  EXPECT_EQ(LimitsFor(1 << 20).segments, 10);
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

TEST(LogFiles, WhatIsMissingAtTheEndIsSaidThere) {
  using Place = LogWriter::Place;
  const absl::Status why = ErrnoStatus(ENOSPC, "why");
  TempDirectory directory;
  const auto log = [&](const char* name) {
    LogReader reader(directory / name, LogStream::kStdout);
    return ReadRest(reader);
  };
  LogWriter whole(directory / "whole", LogStream::kStdout, {});
  whole.Append("all", At(1));
  whole.End(At(2));
  EXPECT_EQ(log("whole"), "all");
  LogWriter lost(directory / "lost", LogStream::kStdout, {});
  lost.Append("lost", At(1), Place::kNowhere, why);
  const std::string note = "[regroup: 4 bytes of stdout lost here: why: No space left on device]\n";
  for (int i = 0; i < 2; ++i) {
    lost.End(At(2));
    EXPECT_EQ(log("lost"), note);
  }
  lost.Append("late", At(3));
  lost.Append("more", At(4), Place::kNowhere, why);
  lost.End(At(5));
  EXPECT_EQ(log("lost"), note + "late\n" + note);
  LogWriter shown(directory / "shown", LogStream::kStdout, {}, directory / "passing");
  shown.Hold(LogPosition{});
  shown.Append("only shown", At(1), Place::kMemory);
  shown.End(At(2));
  EXPECT_EQ(log("shown"), "[regroup: 10 bytes of stdout not kept here: the disk was full]\n");
  EXPECT_EQ(shown.memory_bytes(), 10u) << "it is yet to be shown";
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
