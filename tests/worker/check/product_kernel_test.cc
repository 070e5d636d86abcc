#include "worker/check/product_kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace regroup::worker {
namespace {

#ifdef REGROUP_PTXAS

std::string OutputOf(const std::string& command) {
  std::string output;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> bytes{};
  while (const std::size_t count = fread(bytes.data(), 1, bytes.size(), pipe))
    output.append(bytes.data(), count);
  output += pclose(pipe) == 0 ? "done" : "failed";
  return output;
}

TEST(ProductKernel, IsAssembledForEachGpuAndKeepsAllInRegisters) {
  const std::string path = std::filesystem::path(::testing::TempDir()) /
                           ("product-" + std::to_string(getpid()) + ".ptx");
  std::ofstream(path) << kProductPtx;
  for (const char* gpu : {"sm_75", "sm_80", "sm_90"}) {
    const std::string said =
        OutputOf(std::string(REGROUP_PTXAS) + " -v -arch=" + gpu + " -o /dev/null " + path);
    EXPECT_THAT(said, ::testing::HasSubstr(
                          "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"));
    EXPECT_THAT(said, ::testing::EndsWith("done"));
  }
  std::filesystem::remove(path);
}

#endif

TEST(ProductKernel, ItsTextHasItsName) {
  EXPECT_THAT(std::string(kProductPtx),
              ::testing::HasSubstr(std::string(".visible .entry ") + kProductName + "("));
}

}  // namespace
}  // namespace regroup::worker
