#include "common/gpu/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/config/hardware.h"
#include "tests/common/fake_nvml/driver.h"

namespace regroup {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using testing::FakeDriver;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kTwo[] =
    "gpu name=NVIDIA_H100 uuid=GPU-a memory=81920 used=512 celsius=41 ecc=0 pid=77\n"
    "gpu name=NVIDIA_H100 uuid=GPU-b memory=81920 used=0 celsius=38 ecc=2\n";

std::vector<Gpu> GpusOf(const FakeDriver& driver) {
  return Nvml::Open(driver.library())->Gpus().value();
}
std::vector<std::string> NamesOf(const FakeDriver& driver) {
  return DevicesOfNode(std::nullopt, 5s, driver.library())->names;
}

TEST(Nvml, WithoutADriverThereIsNone) {
  const absl::Status none = Nvml::Open("/nowhere/libnvidia-ml.so.1").status();
  EXPECT_TRUE(absl::IsNotFound(none));
  EXPECT_THAT(std::string(none.message()), HasSubstr("no NVIDIA driver"));
  const NodeDevices devices = *DevicesOfNode(std::nullopt, 5s, "/nowhere/libnvidia-ml.so.1");
  EXPECT_THAT(devices.names, IsEmpty());
  EXPECT_EQ(devices.why_none, "") << "nothing is wrong with that";
}

TEST(Nvml, TellsWhatGpusThereAre) {
  const FakeDriver driver(kTwo);
  absl::StatusOr<Nvml> nvml = Nvml::Open(driver.library());
  ASSERT_TRUE(nvml.ok()) << nvml.status();
  EXPECT_EQ(nvml->driver(), "580.65.06");
  const std::vector<Gpu> gpus = nvml->Gpus().value();
  ASSERT_EQ(gpus.size(), 2u);
  Gpu first;
  first.id = "0";
  first.uuid = "GPU-a";
  first.name = "NVIDIA H100";
  first.memory_bytes = 81920ull << 20;
  first.used_bytes = 512ull << 20;
  first.celsius = 41;
  first.ecc_errors = 0;
  EXPECT_EQ(gpus[0], first);
  EXPECT_EQ(gpus[1].id, "1");
  EXPECT_EQ(gpus[1].ecc_errors, 2u);
  EXPECT_THAT(nvml->ProcessesOn("0").value(), ElementsAre(77));
  EXPECT_THAT(nvml->ProcessesOn("1").value(), IsEmpty());
  EXPECT_FALSE(nvml->ProcessesOn("2"));
}

TEST(Nvml, ANumberOfGpus) {
  EXPECT_THAT(GpusOf(FakeDriver("")), IsEmpty());
  std::string eight;
  for (int i = 0; i < 8; ++i) eight += "gpu name=NVIDIA_A100 memory=40960\n";
  EXPECT_THAT(NamesOf(FakeDriver(eight)), ElementsAre("0", "1", "2", "3", "4", "5", "6", "7"));
}

TEST(Nvml, WhatAnOlderDriverDoesNotSayIsUnset) {
  const std::vector<Gpu> gpus = GpusOf(FakeDriver("gpu name=Tesla_V100 memory=16384 old=1\n"));
  EXPECT_EQ(gpus[0].name, "Tesla V100");
  EXPECT_FALSE(gpus[0].celsius || gpus[0].ecc_errors);
  EXPECT_THAT(gpus[0].trouble, IsEmpty());
  // One whose memory is the host's.
  EXPECT_THAT(GpusOf(FakeDriver("gpu name=NVIDIA_GB10\n"))[0].trouble, IsEmpty());
}

// CUDA takes instances by their names alone, and none of what is divided and has none.
TEST(Nvml, AGpuThatIsDividedCountsAsItsInstances) {
  const FakeDriver driver(
      "gpu name=NVIDIA_H100 memory=81920 celsius=50\n"
      "gpu name=NVIDIA_H100 memory=81920 celsius=60\ndivided\n"
      "mig name=NVIDIA_H100_MIG_3g.40gb uuid=MIG-a memory=40448 used=10 pid=9\n"
      "mig name=NVIDIA_H100_MIG_3g.40gb uuid=MIG-b memory=40448\n"
      "gpu name=NVIDIA_H100 memory=81920\ndivided\n");
  absl::StatusOr<Nvml> nvml = Nvml::Open(driver.library());
  const std::vector<Gpu> gpus = nvml->Gpus().value();
  ASSERT_EQ(gpus.size(), 3u);
  EXPECT_EQ(gpus[1].name, "NVIDIA H100 MIG 3g.40gb");
  EXPECT_EQ(gpus[1].memory_bytes, 40448ull << 20);
  EXPECT_EQ(gpus[1].celsius, 60) << "its GPU's";
  EXPECT_THAT(nvml->ProcessesOn("MIG-a").value(), ElementsAre(9));
  EXPECT_THAT(NamesOf(driver), ElementsAre("0", "MIG-a", "MIG-b"));
}

TEST(Nvml, OneThatFailsIsInTheListWithItsTrouble) {
  const std::vector<Gpu> gpus = GpusOf(
      FakeDriver("gpu name=NVIDIA_H100 memory=81920\nlost\ngpu dead=1\ngpu name=X memory=1\n"));
  ASSERT_EQ(gpus.size(), 3u);
  EXPECT_EQ(gpus[0].trouble, "GPU is lost");
  EXPECT_EQ(gpus[1].trouble, "Unknown Error");
  EXPECT_THAT(gpus[2].trouble, IsEmpty());
}

// CUDA may count without those, so that numbers would be of others.
TEST(Nvml, WhereSomeAreMissingTheyAreNamedByUuid) {
  const std::string two = kTwo;
  EXPECT_THAT(NamesOf(FakeDriver(two)), ElementsAre("0", "1"));
  EXPECT_THAT(NamesOf(FakeDriver("gpu foreign=1\n" + two)), ElementsAre("GPU-a", "GPU-b"));
  EXPECT_THAT(NamesOf(FakeDriver(two + "gpu dead=1\n")), ElementsAre("GPU-a", "GPU-b", "2"));
}

TEST(Nvml, ErrorsAreCountedSinceSomebodyListens) {
  const FakeDriver driver(kTwo);
  absl::StatusOr<Nvml> nvml = Nvml::Open(driver.library());
  nvml->ListenForErrors();
  EXPECT_FALSE(nvml->AwaitError(1ms));
  EXPECT_EQ(nvml->Gpus().value()[1].xids, 0u);
  driver.Set(std::string(kTwo) + "xid 31\nxid 79\nxid 48\n");
  EXPECT_FALSE(nvml->AwaitError(1s)) << "a program's";
  EXPECT_TRUE(nvml->AwaitError(1s));
  EXPECT_EQ(nvml->Gpus().value()[1].last_xid, 79u);
  EXPECT_TRUE(nvml->AwaitError(1s));
  const std::vector<Gpu> gpus = nvml->Gpus().value();
  EXPECT_EQ(gpus[1].xids, 2u);
  EXPECT_EQ(gpus[1].last_xid, 48u);
  EXPECT_EQ(gpus[0].xids, 0u);
}

TEST(Nvml, ADriverThatFailsSaysWhy) {
  const FakeDriver broken(std::string(kTwo) + "fails init 9\n");
  EXPECT_EQ(Nvml::Open(broken.library()).status().message(),
            "the NVIDIA driver does not work: Driver Not Loaded");
  EXPECT_THAT(DevicesOfNode(std::nullopt, 5s, broken.library())->why_none,
              HasSubstr("Driver Not Loaded"));
  const FakeDriver uncounted(std::string(kTwo) + "fails count 999\n");
  EXPECT_THAT(std::string(AskForGpus(5s, uncounted.library()).status().message()),
              HasSubstr("does not count its GPUs: Unknown Error"));
}

TEST(Nvml, ADriverThatHangsIsAwaitedAsLongAsIsSaid) {
  for (const char* call : {"init", "count", "memory"}) {
    const FakeDriver stuck(std::string(kTwo) + "hangs " + call + "\n");
    const absl::Status status = AskForGpus(50ms, stuck.library()).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << call;
    EXPECT_EQ(status.message(), "the NVIDIA driver does not answer within 0.05 s");
    EXPECT_TRUE(
        absl::IsDeadlineExceeded(DevicesOfNode(std::nullopt, 50ms, stuck.library()).status()));
  }
}

TEST(DevicesOfNode, AVariableCountsBeforeTheDriver) {
  const FakeDriver driver(kTwo);
  struct Row {
    const char* value;
    std::vector<std::string> names;
  };
  for (const Row& row :
       {Row{"", {}}, Row{"3", {"3"}}, Row{"0, 1,2", {"0", "1", "2"}},
        Row{"GPU-aa,GPU-bb", {"GPU-aa", "GPU-bb"}}, Row{"0,-1,2", {"0"}}, Row{"NoDevFiles", {}}}) {
    const NodeDevices devices = *DevicesOfNode(
        VisibleDevicesOf({{"CUDA_VISIBLE_DEVICES", row.value}}), 5s, driver.library());
    EXPECT_EQ(devices.names, row.names) << row.value;
    EXPECT_EQ(devices.variable, "CUDA_VISIBLE_DEVICES");
    EXPECT_EQ(devices.order, "");
  }
  EXPECT_EQ(DevicesOfNode(std::nullopt, 5s, driver.library())->order, "PCI_BUS_ID");
}

TEST(DevicesOfSlots, Table) {
  struct Row {
    int devices, slots;
    std::vector<int> mine;
    std::vector<std::string> names;
  };
  for (const Row& row : {
           Row{4, 4, {0, 1, 2, 3}, {"a", "b", "c", "d"}}, Row{4, 4, {2}, {"c"}},
           Row{4, 4, {1, 3}, {"b", "d"}}, Row{4, 2, {1}, {"c", "d"}},  // Fewer slots: blocks.
           Row{4, 1, {0}, {"a", "b", "c", "d"}}, Row{4, 3, {0}, {"a"}}, Row{4, 3, {2}, {"c", "d"}},
           Row{2, 3, {0, 1}, {}},  // More: nobody has one of its own.
           Row{4, 4, {}, {}}, Row{0, 4, {1}, {}},
           Row{4, 4, {9}, {"d"}},  // Of a life with more slots.
       }) {
    NodeDevices devices;
    for (int i = 0; i < row.devices; ++i) devices.names.emplace_back(1, static_cast<char>('a' + i));
    EXPECT_EQ(DevicesOfSlots(devices, row.slots, row.mine), row.names)
        << row.devices << " of " << row.slots;
  }
}

TEST(SlotsOfDevices, AreThoseThatAnyOfThemIsBehind) {
  NodeDevices devices;
  devices.names = {"a", "b", "c", "d"};
  EXPECT_THAT(SlotsOfDevices(devices, 4, {"b", "d"}), ElementsAre(1, 3));
  EXPECT_THAT(SlotsOfDevices(devices, 2, {"b", "d"}), ElementsAre(0, 1));
  EXPECT_THAT(SlotsOfDevices(devices, 2, {"d"}), ElementsAre(1));
  EXPECT_THAT(SlotsOfDevices(devices, 4, {"e"}), IsEmpty());
  EXPECT_THAT(SlotsOfDevices(devices, 8, {"a"}), IsEmpty());
}

}  // namespace
}  // namespace regroup
