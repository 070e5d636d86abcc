// Which NCCL is found, and what is said where it is of no use.

#include "worker/nccl/nccl_api.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "tests/worker/nccl/nccl_ranks.h"

// Where the toolkit is, our declarations are compared with its own.
#if __has_include(<nccl.h>) && __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>
#include <nccl.h>
#define REGROUP_HAS_NCCL_HEADER
#endif

namespace regroup::worker {
namespace {

#ifdef REGROUP_HAS_NCCL_HEADER
static_assert(ncclSuccess == static_cast<int>(NcclResult::kSuccess));
static_assert(ncclUnhandledCudaError == static_cast<int>(NcclResult::kUnhandledCudaError));
static_assert(ncclSystemError == static_cast<int>(NcclResult::kSystemError));
static_assert(ncclInternalError == static_cast<int>(NcclResult::kInternalError));
static_assert(ncclInvalidArgument == static_cast<int>(NcclResult::kInvalidArgument));
static_assert(ncclInvalidUsage == static_cast<int>(NcclResult::kInvalidUsage));
static_assert(ncclRemoteError == static_cast<int>(NcclResult::kRemoteError));
static_assert(ncclInProgress == static_cast<int>(NcclResult::kInProgress));
static_assert(ncclFloat16 == static_cast<int>(NcclType::kFloat16));
static_assert(ncclFloat32 == static_cast<int>(NcclType::kFloat32));
static_assert(ncclBfloat16 == static_cast<int>(NcclType::kBFloat16));
static_assert(ncclSum == kNcclSum);
static_assert(sizeof(ncclUniqueId) == sizeof(NcclUniqueId));
static_assert(offsetof(ncclConfig_t, blocking) == offsetof(NcclConfig, blocking));
static_assert(offsetof(ncclConfig_t, splitShare) == offsetof(NcclConfig, split_share));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
static_assert(offsetof(ncclConfig_t, trafficClass) == kNcclConfigBytes218);
static_assert(offsetof(ncclConfig_t, commName) == offsetof(NcclConfig, comm_name));
static_assert(offsetof(ncclConfig_t, shrinkShare) == offsetof(NcclConfig, shrink_share));
static_assert(offsetof(ncclConfig_t, nChannelsPerNetPeer) == kNcclConfigBytes227);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0) && NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0)
static_assert(sizeof(ncclConfig_t) == sizeof(NcclConfig));
#endif
static_assert(cudaSuccess == kCudaSuccess);
static_assert(cudaErrorMemoryAllocation == kCudaErrorMemoryAllocation);
static_assert(cudaErrorInsufficientDriver == kCudaErrorInsufficientDriver);
static_assert(cudaErrorNoDevice == kCudaErrorNoDevice);
static_assert(cudaErrorNotReady == kCudaErrorNotReady);
static_assert(cudaStreamNonBlocking == kCudaStreamNonBlocking);
static_assert(cudaEventDisableTiming == kCudaEventDisableTiming);
static_assert(cudaHostAllocPortable == kCudaHostAllocPortable);
static_assert(cudaHostAllocMapped == kCudaHostAllocMapped);
static_assert(cudaMemcpyDefault == kCudaMemcpyDefault);
#endif

namespace fs = std::filesystem;

class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~Environment() { before_.empty() ? unsetenv(name_) : setenv(name_, before_.c_str(), 1); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* const name_;
  std::string before_;
};

fs::path Folder() {
  std::string name = testing::TempDir() + "nccl-XXXXXX";
  return mkdtemp(name.data());
}

TEST(NcclLibrary, SaysItsVersionAndWhatItCanDo) {
  FakeGpu gpu;
  for (const auto& [version, name, revokes, bytes] :
       {std::tuple(NcclVersion(2, 18, 1), "2.18.1", false, kNcclConfigBytes218),
        {NcclVersion(2, 26, 5), "2.26.5", false, kNcclConfigBytes218},
        {NcclVersion(2, 27, 0), "2.27.0", false, kNcclConfigBytes227},
        {NcclVersion(2, 28, 6), "2.28.6", false, sizeof(NcclConfig)},
        {NcclVersion(2, 28, 7), "2.28.7", true, sizeof(NcclConfig)},
        {NcclVersion(2, 30, 7), "2.30.7", true, sizeof(NcclConfig)}}) {
    gpu.set_version(version);
    const absl::StatusOr<NcclApi> api = OpenNccl(FakeGpu::path());
    ASSERT_TRUE(api.ok()) << api.status();
    EXPECT_EQ(NcclVersionName(api->version), name);
    EXPECT_EQ(api->comm_revoke != nullptr, revokes) << name;
    const NcclConfig config = api->Config();
    EXPECT_EQ(config.size, bytes) << name;
    EXPECT_EQ(config.blocking, 0);
    EXPECT_EQ(config.split_share, 0);
    EXPECT_EQ(config.shrink_share, bytes >= kNcclConfigBytes227 ? 0 : INT_MIN) << name;
  }
}

TEST(NcclLibrary, OneThatIsTooOldOrNoneIsASentence) {
  FakeGpu gpu;
  gpu.set_version(NcclVersion(2, 17, 1));
  EXPECT_EQ(OpenNccl(FakeGpu::path()).status(),
            absl::FailedPreconditionError(
                absl::StrCat(FakeGpu::path(), " is NCCL 2.17.1; 2.18.1 is needed")));
  const auto none = OpenNccl("/nowhere/libnccl.so.2").status();
  EXPECT_TRUE(absl::IsNotFound(none)) << none;
  EXPECT_NE(none.message().find("/nowhere/libnccl.so.2"), std::string::npos);
  const auto other = OpenNccl("libm.so.6").status();
  EXPECT_EQ(other, absl::FailedPreconditionError("libm.so.6 does not say its version of NCCL"));
}

TEST(NcclLibrary, IsLookedForInToolkitsAndInstalledPyTorchs) {
  const Environment cuda("CUDA_HOME", "/toolkit"), venv("VIRTUAL_ENV", "/venv");
  const std::vector<std::string> places = NcclPlaces();
  const auto place = [&](const std::string& name) {
    return std::find(places.begin(), places.end(), name) - places.begin();
  };
  EXPECT_EQ(places[0], "libnccl.so.2");
  const auto toolkit = place("/toolkit/lib64/libnccl.so.2");
  const auto standard = place("/usr/local/cuda/lib64/libnccl.so.2");
  const auto python = place("/venv/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2");
  EXPECT_LT(toolkit, standard);
  EXPECT_LT(standard, python);
  EXPECT_LT(python, static_cast<std::ptrdiff_t>(places.size()));
}

TEST(NcclLibrary, TheFirstThatIsOfUseIsTaken) {
  FakeGpu gpu;
  const fs::path folder = Folder(), first = folder / "python3.9", second = folder / "python3.12";
  const std::string pattern = (folder / "python3*" / "libnccl.so.2").string();
  const std::string later = (folder / "later" / "libnccl.so.2").string();
  for (const fs::path& each : {first, second, folder / "later"}) fs::create_directories(each);
  EXPECT_EQ(FindNccl({pattern, later}).status(),
            absl::NotFoundError(
                absl::StrCat("no NCCL was found, neither as ", pattern, " nor as ", later)));
  std::ofstream(second / "libnccl.so.2") << "no library";
  fs::create_symlink("/lib/x86_64-linux-gnu/libm.so.6", first / "libnccl.so.2");
  EXPECT_EQ(FindNccl({pattern, later}).status(),
            absl::FailedPreconditionError(absl::StrCat((first / "libnccl.so.2").string(),
                                                       " does not say its version of "
                                                       "NCCL")));
  fs::create_symlink(FakeGpu::path(), later);
  EXPECT_EQ(FindNccl({pattern, later})->path, later);
  fs::remove_all(folder);
}

// The library that PyTorch brings works as far as it can without a driver: it makes an id, which
// reaches all ranks through the store, and each of them is told why it goes no further.
TEST(NcclLibrary, TheRealOneMakesAnIdAndSaysThatThereIsNoGpu) {
  std::string path;
  if (const char* python = std::getenv("REGROUP_TEST_PYTHON")) {
    for (const auto& entry : fs::directory_iterator(fs::path(python).parent_path() / "../lib")) {
      const fs::path here = entry.path() / "site-packages/nvidia/nccl/lib/libnccl.so.2";
      if (fs::exists(here)) path = here;
    }
  }
  if (path.empty()) GTEST_SKIP() << "no PyTorch with NCCL: REGROUP_TEST_PYTHON names none";
  NcclRanks ranks(2);
  absl::StatusOr<NcclApi> real = OpenNccl(path);
  ASSERT_TRUE(real.ok()) << real.status();
  EXPECT_GE(real->version, kOldestNccl);
  if (fs::exists("/dev/nvidiactl")) GTEST_SKIP() << "there is a GPU";
  ranks.api = *real;
  const auto begin = std::chrono::steady_clock::now();
  ranks.Run([&](NcclRanks::Rank& rank) {
    EXPECT_TRUE(IsCommunicatorFailure(rank.nccl.status()) || absl::IsInternal(rank.nccl.status()))
        << rank.nccl.status();
    EXPECT_NE(rank.nccl.status().message().find("init of 2 ranks: ncclCommInitRankConfig: "),
              std::string::npos)
        << rank.nccl.status();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

}  // namespace
}  // namespace regroup::worker
