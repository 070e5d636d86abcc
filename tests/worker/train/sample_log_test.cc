#include "worker/train/sample_log.h"

#include <gtest/gtest.h>

#include "tests/worker/checkpoint/testing.h"

namespace regroup::worker {
namespace {

TEST(SampleLogTest, OneLinePerStepAppendedToItsOwnFile) {
  const TemporaryDirectory directory;
  const std::vector<std::int64_t> ids = {7, 9};
  for (std::int64_t step : {1, 2}) {
    auto log = SampleLog::Open(directory / "samples", 3, 1, 2);
    ASSERT_TRUE(log.ok()) << log.status();
    ASSERT_TRUE(log->Append(step, step * 10, ids, 2.5).ok());
  }
  char hash[20];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(HashOfIds(ids)));
  EXPECT_EQ(ReadAll(directory / "samples/3-1.log"),
            std::string("3 1 1 2 10 2 ") + hash + " 2.5\n3 2 1 2 20 2 " + hash + " 2.5\n");
}

TEST(SampleLogTest, TheHashOfASetIsTheSumOfThoseOfItsParts) {
  const std::vector<std::int64_t> all = {5, 1, 3, 0}, front = {1, 5}, back = {0, 3};
  EXPECT_EQ(HashOfIds(all), HashOfIds(front) + HashOfIds(back));
  EXPECT_NE(HashOfIds(front), HashOfIds(back));
  EXPECT_NE(HashOfIds(std::vector<std::int64_t>{0}), 0u);
}

TEST(SampleLogTest, ADirectoryThatCanNotBeMadeIsNamed) {
  EXPECT_NE(std::string(SampleLog::Open("/proc/regroup", 1, 0, 1).status().message())
                .find("/proc/regroup"),
            std::string::npos);
}

}  // namespace
}  // namespace regroup::worker
