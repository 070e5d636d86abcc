#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "common/base/rng.h"
#include "tests/fuzz/targets/targets.h"

namespace regroup::fuzz {
namespace {

std::set<std::string> Entries(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

class Corpus : public ::testing::TestWithParam<Target> {};

// Also what once broke something: a crash becomes a file there. Each file runs as it is and with
// bytes changed; of some the target must take something, or the corpus is refused at its first
// byte.
TEST_P(Corpus, RunsClean) {
  const std::string folder = std::string(REGROUP_FUZZ_CORPUS) + "/" + GetParam().name + "/";
  Rng rng(1);
  int taken = 0, files = 0;
  for (const std::string& name : Entries(folder)) {
    SCOPED_TRACE(name);
    std::ifstream file(folder + name, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    ASSERT_TRUE(file.good() || file.eof());
    ASSERT_LE(bytes.size(), 4u << 10);
    ++files;
    taken += GetParam().run(bytes) ? 1 : 0;
    for (int i = 0; i < 10 && !bytes.empty(); ++i) {
      bytes[rng.Below(bytes.size())] = static_cast<char>(rng.Below(256));
      GetParam().run(bytes);
    }
  }
  EXPECT_GE(files, 3);
  EXPECT_GT(taken, 0);
}
INSTANTIATE_TEST_SUITE_P(Of, Corpus, ::testing::ValuesIn(Targets().begin(), Targets().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Corpora, AreThoseOfTheTargets) {
  std::set<std::string> names;
  for (const Target& target : Targets()) names.insert(target.name);
  EXPECT_EQ(Entries(REGROUP_FUZZ_CORPUS), names);
}

}  // namespace
}  // namespace regroup::fuzz
