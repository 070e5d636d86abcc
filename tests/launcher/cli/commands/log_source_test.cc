// Whose output is whose, where one state directory holds that of several coordinators, and which
// of it a reader asked for.

#include "launcher/cli/commands/log_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace regroup::cli
