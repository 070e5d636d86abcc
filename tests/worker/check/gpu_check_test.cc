#include "worker/check/gpu_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/common/fake_nvml/driver.h"

namespace regroup::worker {
namespace {

using namespace std::chrono_literals;
using regroup::testing::FakeDriver;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr char kFour[] =
    "gpu name=NVIDIA_H100 uuid=GPU-aa memory=81920 ecc=0\n"
    "gpu name=NVIDIA_H100 uuid=GPU-bb memory=81920 ecc=0\n"
    "gpu name=NVIDIA_H100 uuid=GPU-cc memory=81920 ecc=0\n"
    "gpu name=NVIDIA_H100 uuid=GPU-dd memory=81920 ecc=0\n";

// A host with both libraries of a driver.
struct Host {
  explicit Host(const std::string& gpus, const std::string& cuda_is = "devices 4\n") : nvml(gpus) {
    cuda = std::filesystem::path(nvml.library()).parent_path() / "libcuda.so.1";
    std::filesystem::copy_file(REGROUP_FAKE_CUDA_DRIVER, cuda);
    std::ofstream(cuda.parent_path() / "cuda") << cuda_is;
  }
  absl::StatusOr<std::string> Check(const char* visible = nullptr) const {
    GpuCheck check;
    if (visible != nullptr) check.visible = VisibleDevicesOf({{"CUDA_VISIBLE_DEVICES", visible}});
    check.idle = 100ms;
    check.product = 100s;
    if (slow_after) check.product = *slow_after;
    check.nvml = nvml.library();
    check.cuda = cuda;
    return CheckGpus(check);
  }
  std::string Fault(const char* visible = nullptr) const {
    return std::string(Check(visible).status().message());
  }

  FakeDriver nvml;
  std::filesystem::path cuda;
  std::optional<std::chrono::milliseconds> slow_after;
};

TEST(GpuCheck, FindsThemWell) {
  const absl::StatusOr<std::string> found = Host(kFour).Check();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(*found, MatchesRegex("4 × NVIDIA H100, idle, without memory errors; a product takes "
                                   "up to [0-9.]+ ms"));
  EXPECT_TRUE(Host(kFour, "devices 2").Check("1,GPU-dd").ok());
}

TEST(GpuCheck, SaysWhichAndWhy) {
  struct Row {
    std::string gpus, cuda;
    const char* visible;
    std::string fault;
  };
  const std::string four = kFour;
  for (const Row& row : {
           Row{"", "devices 0", nullptr, "the driver has no GPU"},
           Row{four, "devices 0", "", "CUDA_VISIBLE_DEVICES= names no GPU"},
           Row{four, "devices 2", "3,7", "GPU 7: the driver has none of this name"},
           Row{four + "lost\n", "devices 4", nullptr, "GPU 3: GPU is lost"},
           Row{four + "lost\n", "devices 3", "0,1,2", ""},  // Another job's.
           Row{four + "gpu name=X memory=1 ecc=3\n", "devices 5", nullptr,
               "GPU 4: 3 uncorrected memory errors; it needs a reset"},
           Row{four + "gpu name=X memory=1 pid=77\n", "devices 5", nullptr,
               "GPU 4: in use by process 77"},
           Row{four + "fails init 9\n", "devices 4", nullptr,
               "the NVIDIA driver does not work: Driver Not Loaded"},
           Row{four, "devices 3", nullptr, "CUDA sees 3 of 4 GPUs"},
           Row{four, "devices 4 fails init 100", nullptr,
               "CUDA cannot be used: no CUDA-capable device is detected (CUDA error 100)"},
           Row{four, "devices 4 full 2", nullptr,
               "GPU 2: it has no memory left: out of memory (CUDA error 2)"},
           Row{four, "devices 1 fails launch 700", "GPU-c",
               "GPU GPU-c: it computes nothing: an illegal memory access was encountered (CUDA "
               "error 700)"},
           Row{four, "devices 4 fails retain 999", "0,1,2,3",
               "GPU 0: it cannot be used: CUDA error 999; GPU 1: it cannot be used: CUDA error "
               "999; GPU 2: it cannot be used: CUDA error 999; GPU 3: it cannot be used: CUDA "
               "error 999"},
       }) {
    EXPECT_EQ(Host(row.gpus, row.cuda).Fault(row.visible), row.fault) << row.fault;
  }
}

TEST(GpuCheck, AWrongProductIsTold) {
  EXPECT_THAT(Host(kFour, "devices 4 wrong 1").Fault(),
              MatchesRegex("GPU 1: it computes [0-9]+ where [0-9]+ is right \\(row 3, column 5 of "
                           "a product\\)"));
}

TEST(GpuCheck, ASlowProductIsTold) {
  Host host(kFour, "devices 2 slow 1");
  host.slow_after = 150ms;
  EXPECT_THAT(host.Fault("2,3"), HasSubstr("GPU 3: a product took 0."));
}

// Those of a generation that has just ended.
TEST(GpuCheck, ProcessesThatGoAreAwaited) {
  Host host(std::string(kFour) + "gpu name=X memory=1 pid=77\n", "devices 5");
  GpuCheck check;
  check.idle = 20s;
  check.nvml = host.nvml.library();
  check.cuda = host.cuda;
  check.product = 100s;
  std::thread leaves([&] {
    std::this_thread::sleep_for(200ms);
    host.nvml.Set(std::string(kFour) + "gpu name=X memory=1\n");
  });
  EXPECT_TRUE(CheckGpus(check).ok());
  leaves.join();
}

TEST(GpuCheck, WithoutADriverThatIsSaid) {
  GpuCheck check;
  check.nvml = "/nowhere/libnvidia-ml.so.1";
  EXPECT_THAT(std::string(CheckGpus(check).status().message()), HasSubstr("no NVIDIA driver"));
  const Host host(kFour);
  check.nvml = host.nvml.library();
  check.cuda = "/nowhere/libcuda.so.1";
  EXPECT_THAT(std::string(CheckGpus(check).status().message()), HasSubstr("no CUDA driver"));
}

}  // namespace
}  // namespace regroup::worker
