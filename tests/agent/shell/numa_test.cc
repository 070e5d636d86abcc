// --numa-binding over a made-up machine: two sockets, three NUMA nodes, two threads a core.

#include "agent/shell/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "tests/agent/shell/scratch.h"

namespace regroup::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Numa : public ::testing::Test {
 protected:
  // Node 0: cores 0–3 and their second threads 8–11; node 1: 4, 5, 12, 13; node 2: 6, 7, 14, 15.
  // Nodes 0 and 1 are on socket 0. Two cores share a third-level cache.
  Numa() {
    Write("devices/system/node/node0/cpulist", "0-3,8-11");
    Write("devices/system/node/node1/cpulist", "4-5,12-13");
    Write("devices/system/node/node2/cpulist", "6-7,14-15");
    for (int cpu = 0; cpu < 16; ++cpu) {
      const int core = cpu % 8, first = core / 2 * 2;
      const std::string folder = "devices/system/cpu/cpu" + std::to_string(cpu) + "/";
      const auto pair = [](int a) { return std::to_string(a) + "," + std::to_string(a + 8); };
      Write(folder + "topology/physical_package_id", core < 6 ? "0" : "1");
      Write(folder + "topology/thread_siblings_list", pair(core));
      Write(folder + "cache/index3/shared_cpu_list", pair(first) + "," + pair(first + 1));
    }
    question_.sysfs = scratch_.path();
    question_.allowed.resize(16);
    std::iota(question_.allowed.begin(), question_.allowed.end(), 0);
  }
  void Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = scratch_.path() + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  std::vector<int> Near(const std::string& how, int local_rank) {
    question_.how = how;
    question_.local_rank = local_rank;
    return CpusNear(question_);
  }

  agent::testing::Scratch scratch_;
  NumaQuestion question_;
};

TEST_F(Numa, NearTheDeviceOfTheLocalRank) {
  question_.workers = 4;
  question_.gpu_nodes = {0, 0, 1, 2};
  EXPECT_THAT(Near("node", 0), ElementsAre(0, 1, 2, 3, 8, 9, 10, 11));
  EXPECT_THAT(Near("node", 2), ElementsAre(4, 5, 12, 13));
  EXPECT_THAT(Near("socket", 2), ElementsAre(0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13));
  EXPECT_THAT(Near("socket", 3), ElementsAre(6, 7, 14, 15));
  EXPECT_THAT(Near("exclusive", 0), ElementsAre(0, 1, 8, 9));
  EXPECT_THAT(Near("exclusive", 1), ElementsAre(2, 3, 10, 11));
  EXPECT_THAT(Near("exclusive", 3), ElementsAre(6, 7, 14, 15));
  EXPECT_THAT(Near("core-complex", 0), ElementsAre(0, 1, 8, 9));
  EXPECT_THAT(Near("core-complex", 1), ElementsAre(2, 3, 10, 11));
}

TEST_F(Numa, WithoutDevicesRanksAreSpread) {
  question_.workers = 3;
  EXPECT_THAT(Near("node", 1), ElementsAre(4, 5, 12, 13));
  EXPECT_THAT(Near("node", 2), ElementsAre(6, 7, 14, 15));
}

TEST_F(Numa, OnlyWhatIsAllowedAndKnown) {
  question_.allowed = {4, 12, 13};
  question_.gpu_nodes = {1};
  EXPECT_THAT(Near("node", 0), ElementsAre(4, 12, 13));
  question_.allowed = {0};
  EXPECT_THAT(Near("node", 0), IsEmpty());
  question_.gpu_nodes = {-1};
  EXPECT_THAT(Near("node", 0), ElementsAre(0)) << "no node in particular: the first one";
  question_.sysfs = "/no/such/folder";
  EXPECT_THAT(Near("node", 0), IsEmpty());
  question_.sysfs = scratch_.path();
  question_.allowed = {0, 1, 8, 9};
  question_.workers = 3;
  question_.gpu_nodes = {0, 0, 0};
  EXPECT_THAT(Near("exclusive", 2), IsEmpty()) << "fewer cores than workers";
}

TEST_F(Numa, DevicesInTheWorkersOrder) {
  for (const char* address : {"0000:3b:00.0", "0000:86:00.0"}) {
    std::filesystem::create_directories(scratch_.path() + "/driver/nvidia/gpus/" + address);
  }
  Write("bus/pci/devices/0000:3b:00.0/numa_node", "0");
  Write("bus/pci/devices/0000:86:00.0/numa_node", "2");
  const std::string& root = scratch_.path();
  EXPECT_THAT(NumaNodesOfGpus(std::nullopt, root, root), ElementsAre(0, 2));
  EXPECT_THAT(NumaNodesOfGpus("1,0", root, root), ElementsAre(2, 0));
  EXPECT_THAT(NumaNodesOfGpus("1,7", root, root), IsEmpty());
  EXPECT_THAT(NumaNodesOfGpus("GPU-1234", root, root), IsEmpty());
  EXPECT_THAT(NumaNodesOfGpus(std::nullopt, "/no/such", root), IsEmpty());
}

TEST(CpuList, Table) {
  EXPECT_THAT(ParseCpuList("0-2,5"), ElementsAre(0, 1, 2, 5));
  EXPECT_THAT(ParseCpuList("7"), ElementsAre(7));
  EXPECT_THAT(ParseCpuList(""), IsEmpty());
  EXPECT_THAT(ParseCpuList("3-1"), IsEmpty());
  EXPECT_THAT(ParseCpuList("a"), IsEmpty());
}

}  // namespace
}  // namespace regroup::agent
