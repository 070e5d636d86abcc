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
  // The same checkpoint as it is written now, by two ranks.
  void Rewrite(const std::string& from, const std::string& to) const {
    auto state = NewestState(from);
    Manifest manifest = *Repository::Open(directory_ / from)->ReadManifest(4);
    std::vector<StateTensor> tensors;
    for (const TensorInfo& info : manifest.tensors)
      tensors.emplace_back(info, std::span(state.at(info.name)));
    const Repository repository = *Repository::OpenForTraining(directory_ / to);
    ASSERT_TRUE(repository.PrepareAttempt(4, manifest.generation, manifest.attempt).ok());
    manifest.mesh = {2, 1, "ddp"};
    manifest.files.clear();
    for (int r = 0; r < 2; ++r) {
      ShardImage image = *ShardImage::Create(manifest.tensors, r, 2);
      image.Fill(tensors);
      const std::string path = repository.AttemptPath(4, manifest.generation, manifest.attempt) +
                               "/" + image.info().name;
      manifest.files.push_back(*WriteShard(image, path, [] { return false; }));
    }
    ASSERT_TRUE(Commit(repository, manifest).ok());
    EXPECT_NE(repository.ReadRecord(4)->find("\"version\":2"), std::string::npos);
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
  const std::string out = directory_ / "out", command = "python3 " REGROUP_READ_CHECKPOINT " '" +
                                                        directory_ / "old" + "' '" + out + "'";
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(ReadAll(out), bytes);
}

TEST_F(FormatTest, Format1NamesWhatAnotherModelHasOtherwise) {
  CopyGolden("old");
  std::vector<std::string> flags = Checkpoints("old");
  flags.insert(flags.end(), {"--layers", "3"});
  Group group(*this, 1, {.generation = 2, .flags = flags});
  EXPECT_EQ(group.Wait(0), static_cast<int>(WorkerExit::kCheckpointUnusable));
  EXPECT_NE(group.Output(0).find("layers: the checkpoint has 1, this training 3"),
            std::string::npos)
      << group.Output(0);
}

TEST_F(FormatTest, Format1IsGoneOnFromAsFormat2IsUnderEveryStrategy) {
  CopyGolden("old");
  Rewrite("old", "new");
  GoOn("new", 3, "zero-2");
  for (const char* strategy : {"zero-3", "ddp", "zero-1"}) {
    CopyGolden(strategy);
    GoOn(strategy, 3, strategy);
    EXPECT_EQ(NewestState(strategy), NewestState("new")) << strategy;
  }
}

}  // namespace
}  // namespace regroup::worker
