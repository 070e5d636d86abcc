#include "agent/shell/gpu_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "tests/common/fake_nvml/driver.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;
using regroup::testing::FakeDriver;

constexpr char kTwo[] =
    "gpu name=NVIDIA_H100 uuid=GPU-aa memory=81920 celsius=41\n"
    "gpu name=NVIDIA_H100 uuid=GPU-bb memory=81920 celsius=38\n";

GpuWatch::Options Fast(const FakeDriver& driver) {
  return {.devices = {}, .every = 20ms, .patience = 60s, .library = driver.library()};
}

GpuWatch::Seen Await(GpuWatch& watch, const std::function<bool(const GpuWatch::Seen&)>& is) {
  for (int i = 0; i < 6'000; ++i) {
    GpuWatch::Seen seen = watch.Latest();
    if (is(seen)) return seen;
    std::this_thread::sleep_for(10ms);
  }
  ADD_FAILURE() << "not within 60 s";
  return watch.Latest();
}

TEST(GpuWatch, TellsWhatHasChangedAndOnlyThat) {
  const FakeDriver driver(kTwo);
  GpuWatch watch(Fast(driver));
  GpuWatch::Seen seen = Await(watch, [](const auto& now) { return now.number > 0; });
  ASSERT_EQ(seen.gpus.size(), 2u);
  EXPECT_EQ(seen.gpus[1].celsius, 38);
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(watch.Latest().number, seen.number);
  driver.Set(std::string(kTwo) + "lost\n");
  seen = Await(watch, [&](const auto& now) { return now.number > seen.number; });
  EXPECT_EQ(seen.gpus[1].trouble, "GPU is lost");
  EXPECT_EQ(seen.gpus[0].trouble, "");
}

TEST(GpuWatch, AnErrorIsToldAtOnce) {
  const FakeDriver driver(kTwo);
  GpuWatch::Options options = Fast(driver);
  options.every = 1h;
  GpuWatch watch(options);
  Await(watch, [](const auto& now) { return now.number > 0; });
  driver.Set(std::string(kTwo) + "xid 79\n");
  const GpuWatch::Seen seen =
      Await(watch, [](const auto& now) { return now.gpus.size() == 2 && now.gpus[1].xids == 1; });
  EXPECT_EQ(seen.gpus[1].last_xid, 79u);
}

TEST(GpuWatch, OnlyTheDevicesOfThisNodeAreTold) {
  const FakeDriver driver(kTwo);
  struct Row {
    std::vector<std::string> names;
    std::vector<std::string> told;
  };
  for (const Row& row : {Row{{"1"}, {"1"}}, Row{{"GPU-a"}, {"0"}}, Row{{"7"}, {}}, Row{{}, {}}}) {
    GpuWatch::Options options = Fast(driver);
    options.devices.variable = "CUDA_VISIBLE_DEVICES";
    options.devices.names = row.names;
    GpuWatch watch(options);
    const GpuWatch::Seen seen = Await(watch, [](const auto& now) { return now.number > 0; });
    std::vector<std::string> told;
    for (const Gpu& gpu : seen.gpus) told.push_back(gpu.id);
    EXPECT_EQ(told, row.told);
  }
}

TEST(GpuWatch, ADriverThatStopsToAnswerIsToldAndAwaited) {
  const FakeDriver driver(kTwo);
  GpuWatch::Options options = Fast(driver);
  options.patience = 300ms;
  GpuWatch watch(options);
  Await(watch, [](const auto& now) { return now.number > 0; });
  driver.Set(std::string(kTwo) + "hangs memory\n");
  GpuWatch::Seen seen = Await(
      watch, [](const auto& now) { return !now.gpus.empty() && !now.gpus[0].trouble.empty(); });
  EXPECT_EQ(seen.gpus[0].trouble, "its driver does not answer");
  EXPECT_EQ(seen.gpus[1].trouble, "its driver does not answer");
  driver.Set(kTwo);
  seen = Await(watch, [](const auto& now) { return now.gpus[0].trouble.empty(); });
  EXPECT_EQ(seen.gpus[1].celsius, 38);
}

TEST(GpuWatch, ADriverThatFailsIsTold) {
  const FakeDriver driver(kTwo);
  GpuWatch watch(Fast(driver));
  Await(watch, [](const auto& now) { return now.number > 0; });
  driver.Set(std::string(kTwo) + "fails count 999\n");
  const GpuWatch::Seen seen =
      Await(watch, [](const auto& now) { return !now.gpus[0].trouble.empty(); });
  EXPECT_THAT(seen.gpus[1].trouble, ::testing::HasSubstr("does not count its GPUs"));
}

TEST(GpuWatch, ADriverThatWorksLaterIsFound) {
  const FakeDriver driver(std::string(kTwo) + "fails init 9\n");
  GpuWatch watch(Fast(driver));
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(watch.Latest().number, 0u);
  driver.Set(kTwo);
  EXPECT_EQ(Await(watch, [](const auto& now) { return now.number > 0; }).gpus.size(), 2u);
}

TEST(GpuWatch, AStormOfErrorsIsNoStormOfNews) {
  const FakeDriver driver(kTwo);
  GpuWatch::Options options = Fast(driver);
  options.every = 1h;
  GpuWatch watch(options);
  Await(watch, [](const auto& now) { return now.number > 0; });
  std::string storm = kTwo;
  for (int i = 0; i < 2'000; ++i) storm += "xid 79\n";
  driver.Set(storm);
  const GpuWatch::Seen seen = Await(watch, [](const auto& now) { return now.gpus[1].xids > 1; });
  EXPECT_LE(seen.number, 2u) << "one for all that came within a second";
}

TEST(GpuWatch, OfMoreThanAMessageHoldsTheFirstAreTold) {
  std::string many;
  for (int i = 0; i < 300; ++i) many += "gpu name=X memory=1\n";
  const FakeDriver driver(many);
  GpuWatch watch(Fast(driver));
  EXPECT_EQ(Await(watch, [](const auto& now) { return now.number > 0; }).gpus.size(), 256u);
}

TEST(GpuWatch, WithoutADriverNothingIsTold) {
  GpuWatch::Options options;
  options.library = "/nowhere/libnvidia-ml.so.1";
  options.patience = 1ms;
  GpuWatch watch(options);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(watch.Latest().number, 0u);
}

}  // namespace
}  // namespace regroup::agent
