// Whose output is whose, where one state directory holds that of several coordinators, and which
// of it a reader asked for.

#include "launcher/cli/commands/log_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/io/log_files.h"
#include "tests/common/io/temp_directory.h"

namespace regroup::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(OwnLogRoots, JobsOfOneNameOfSeveralCoordinatorsDoNotMix) {
  const std::vector<std::string> roots = {"/s/logs/local", "/s/logs/node0-29400",
                                          "/s/logs/node0-29401", "/s/node-0/logs"};
  auto own = [&](const std::string& folder, JobOrigin origin) {
    Place place;
    place.folder = "/s/" + folder;
    return OwnLogRoots(roots, place, origin);
  };
  EXPECT_THAT(own("coordinator-local", JobOrigin::kLaunched), ElementsAre("/s/logs/local"));
  EXPECT_THAT(own("coordinator-29400", JobOrigin::kLaunched), ElementsAre("/s/logs/node0-29400"));
  EXPECT_THAT(own("coordinator-29400", JobOrigin::kSubmitted), ElementsAre("/s/node-0/logs"));
  EXPECT_THAT(own("coordinator-2940", JobOrigin::kLaunched), IsEmpty());
}

TEST(ReadLogFiles, OneStreamOrBoth) {
  const io::TempDirectory root;
  JobView job;
  job.id = JobId("train-1");
  const std::string folder = io::LogDirectory(root.path(), job.id, Generation(1), 0);
  io::LogWriter(folder, io::LogStream::kStdout, {}).Append("out\n", WallTime());
  io::LogWriter(folder, io::LogStream::kStderr, {}).Append("err\n", WallTime());
  const auto read = [&](const LogFilter& filter) {
    std::vector<std::string> lines;
    const absl::Status status = ReadLogFiles(
        {root.path()}, job, filter, [&](const LogEntry& entry) { lines.push_back(entry.text); });
    EXPECT_TRUE(status.ok()) << status;
    return lines;
  };
  LogFilter both, only_out, only_err;
  only_out.stdout_only = only_err.stderr_only = true;
  EXPECT_THAT(read(both), ElementsAre("out", "err"));
  EXPECT_THAT(read(only_out), ElementsAre("out"));
  EXPECT_THAT(read(only_err), ElementsAre("err"));
}

TEST(ReadLogFiles, LinesOfAllStreamsComeInOrderOfTimeWithoutReadingAnyWhole) {
  const io::TempDirectory root;
  JobView job;
  job.id = JobId("train-1");
  // The second generation's clock is behind; rank 1's is set back in the middle.
  const std::map<std::pair<int, int>, std::vector<int>> times = {
      {{1, 0}, {10, 30, 50}}, {{1, 1}, {20, 15, 40}}, {{2, 0}, {5}}};
  for (const auto& [where, seconds] : times) {
    io::LogWriter writer(
        io::LogDirectory(root.path(), job.id, Generation(static_cast<std::uint64_t>(where.first)),
                         where.second),
        io::LogStream::kStdout, {});
    for (const int second : seconds) {
      const std::string text =
          std::to_string(where.first) + "/" + std::to_string(where.second) + " at ";
      // More than a reader takes at once, and a line that is cut.
      const std::string filler(where.second == 0 ? 100'000 : 10, '.');
      writer.Append(absl::StrCat(text, second, "\n", filler, "\n"),
                    WallTime(std::chrono::seconds(second)));
    }
  }
  std::vector<std::string> heads;
  std::map<std::pair<std::uint64_t, int>, std::size_t> bytes;
  const absl::Status status =
      ReadLogFiles({root.path()}, job, LogFilter(), [&](const LogEntry& entry) {
        if (entry.text[0] != '.') heads.push_back(entry.text);
        bytes[{entry.generation.value(), entry.rank}] += entry.text.size();
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(heads, ElementsAre("1/0 at 10", "1/1 at 20", "1/1 at 15", "1/0 at 30", "1/1 at 40",
                                 "1/0 at 50", "2/0 at 5"));
  EXPECT_EQ((bytes[{1, 0}]), 3u * (100'000 + 9));
}

}  // namespace
}  // namespace regroup::cli
