// Checkpoints of earlier builds, as real processes go on from them.

#include <filesystem>

#include "tests/worker/train/train_fixture.h"
#include "worker/checkpoint/checksum.h"

namespace regroup::worker {
namespace {

using std::filesystem::copy;
using std::filesystem::copy_options;

// Step 4 of this fixture's training, by 3 ranks under zero-3. What wrote it is no more.
class FormatTest : public TrainTest {
 protected:
  void CopyGolden(const std::string& name) const {
    copy(REGROUP_FORMAT_1, directory_ / name, copy_options::recursive);
  }
  void GoOn(const std::string& name, int world, const std::string& strategy) const {
    std::vector<std::string> flags = Checkpoints(name);
    flags.insert(flags.end(), {"--strategy", strategy});
    Group group(*this, world, {.generation = 2, .flags = flags});
    for (int code : group.WaitAll()) ASSERT_EQ(code, 0) << group.Output(0);
    EXPECT_NE(group.Output(0).find("resumed from step 4"), std::string::npos) << group.Output(0);
  }
};

TEST_F(FormatTest, Format1IsReadToTheBit) {
  CopyGolden("old");
  const Manifest manifest = *Repository::Open(directory_ / "old")->ReadManifest(4);
  const auto state = NewestState("old");
  std::string bytes;
  for (const TensorInfo& info : manifest.tensors) {
    const std::vector<float>& values = state.at(info.name);
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }
  EXPECT_EQ(Xxh3Hex(std::as_bytes(std::span(bytes))), "6634eef9defaad0f841e2e0ba57e22dc");
}

TEST_F(FormatTest, Format1IsGoneOnFromAlikeUnderEveryStrategy) {
  for (const char* strategy : {"zero-3", "ddp", "zero-1"}) {
    CopyGolden(strategy);
    GoOn(strategy, 3, strategy);
    EXPECT_EQ(NewestState(strategy), NewestState("zero-3")) << strategy;
  }
}

}  // namespace
}  // namespace regroup::worker
