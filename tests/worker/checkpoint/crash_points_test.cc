// Every point between two system calls of a save: power cut there, killed there, failing there.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_join.h"

#include "tests/worker/checkpoint/disk_model.h"
#include "tests/worker/checkpoint/io_watch.h"
#include "tests/worker/checkpoint/testing.h"
#include "worker/checkpoint/restore.h"
#include "worker/checkpoint/saver.h"
#include "worker/comm/in_process_communicator.h"

namespace regroup::worker {
namespace {

// Both ranks of one generation, the second rank's file always first: the same calls in every run.
class Pair {
 public:
  Pair(const Repository& repository, std::uint64_t generation) {
    for (int r = 0; r < 2; ++r) {
      SaverOptions options;
      options.rank = r;
      options.world_size = 2;
      options.job = "job-1";
      options.generation = generation;
      options.patience = std::chrono::milliseconds(50);
      savers_[static_cast<std::size_t>(r)] =
          *Saver::Create(repository, nullptr, options, state_.infos());
    }
  }
  // What rank 0 says.
  SaveOutcome Save(std::int64_t step) {
    state_.SetStep(step);
    for (const int r : {1, 0}) {
      Saver& saver = *savers_[static_cast<std::size_t>(r)];
      saver.Save(step, {{"samples", step}}, false, state_.tensors());
      saver.WaitIdle();
    }
    (void)savers_[1]->TakeOutcomes();
    return savers_[0]->TakeOutcomes().at(0);
  }

 private:
  TestState state_;
  std::array<std::unique_ptr<Saver>, 2> savers_;
};

// The step that a new world would go on from; 0: it would start anew; -1: it would refuse.
std::int64_t RestoredStep(const std::string& directory) {
  const auto repository = Repository::Open(directory);
  if (!repository.ok()) return 0;
  TestState loaded;
  auto alone = MakeInProcessCommunicators(1);
  const auto restored = RestoreNewest(*alone[0], *repository, loaded.tensors());
  if (!restored.ok()) return -1;
  if (!restored->manifest) return 0;
  return loaded.IsStep(restored->manifest->step) ? restored->manifest->step : -1;
}

// Empty, or which promise is broken: what was acknowledged is there or something newer is, and a
// record stands for files that are whole. The second is what the order of calls is for; checksums
// would only notice.
std::string Broken(const std::string& directory, std::int64_t acknowledged, std::int64_t begun) {
  const std::int64_t found = RestoredStep(directory);
  if (found < acknowledged || found > begun) {
    return "step " + std::to_string(found) + " restored, " + std::to_string(acknowledged) +
           " was acknowledged";
  }
  const auto repository = Repository::Open(directory);
  if (!repository.ok()) return "";
  const auto steps = repository->CommittedSteps();
  if (!steps.ok()) return std::string(steps.status().message());
  for (const std::int64_t step : *steps) {
    const auto manifest = repository->ReadManifest(step);
    const absl::Status sound = manifest.ok() ? repository->Verify(*manifest) : manifest.status();
    if (!sound.ok()) return "a record of half a checkpoint: " + std::string(sound.message());
  }
  return "";
}

struct Story {
  std::vector<IoCall> calls;
  // How many calls were made when this step was begun, and when it was acknowledged.
  std::vector<std::pair<std::size_t, std::int64_t>> begun, acknowledged;
};

std::int64_t Latest(const std::vector<std::pair<std::size_t, std::int64_t>>& marks,
                    std::size_t calls) {
  std::int64_t latest = 0;
  for (const auto& [at, step] : marks) {
    if (at <= calls) latest = step;
  }
  return latest;
}

// A training that makes its directory and three checkpoints, the last of which displaces the first.
Story Tell(const std::string& root) {
  Story story;
  const IoWatch watch(root, nullptr, [&](const IoCall& call) { story.calls.push_back(call); });
  const Repository repository = *Repository::OpenForTraining(root + "/new/ckpt");
  Pair ranks(repository, 2);
  for (const std::int64_t step : {10, 20, 30}) {
    story.begun.push_back({story.calls.size(), step});
    const SaveOutcome outcome = ranks.Save(step);
    EXPECT_TRUE(outcome.status.ok() && outcome.retention.ok()) << outcome.status;
    story.acknowledged.push_back({story.calls.size(), step});
  }
  return story;
}

// The first promise that a power cut anywhere in the story can break, if `made` calls are really
// made and the others only seem to be.
std::string FirstBroken(const Story& story, const std::string& root,
                        const std::function<bool(const IoCall&)>& made) {
  const TemporaryDirectory crashed = TemporaryDirectory::InMemory();
  Rng rng(1);
  DiskModel disk(root);
  for (std::size_t calls = 0; calls <= story.calls.size(); ++calls) {
    for (const double survives : {0.0, 1.0, 0.5, 0.8}) {
      std::filesystem::remove_all(crashed / "root");
      std::filesystem::create_directory(crashed / "root");
      disk.WriteCrashState(survives, rng, crashed / "root");
      const std::string broken = Broken(
          crashed / "root/new/ckpt", Latest(story.acknowledged, calls), Latest(story.begun, calls));
      if (!broken.empty()) return "after " + std::to_string(calls) + " calls: " + broken;
    }
    if (calls < story.calls.size() && made(story.calls[calls])) disk.Apply(story.calls[calls]);
  }
  return "";
}

TEST(CrashPointsTest, APowerCutAnywhereKeepsWhatWasAcknowledged) {
  const TemporaryDirectory root = TemporaryDirectory::InMemory();
  const Story story = Tell(root.path());
  EXPECT_GT(story.calls.size(), 90u);
  EXPECT_EQ(FirstBroken(story, root.path(), [](const IoCall&) { return true; }), "");
}

// The same test sees each kind of sync that is left out.
TEST(CrashPointsTest, EveryKindOfSyncIsNeeded) {
  const TemporaryDirectory root = TemporaryDirectory::InMemory();
  const Story story = Tell(root.path());
  const struct {
    const char* what;
    std::function<bool(const std::string& below_root)> is;
  } kKinds[] = {
      {"file of a rank", [](const auto& p) { return p.ends_with(".safetensors"); }},
      {"record", [](const auto& p) { return p.find("/commits/.tmp-") != p.npos; }},
      {"directory of records", [](const auto& p) { return p.ends_with("/commits"); }},
      {"directory of an attempt",
       [](const auto& p) {
         return p.find("/step-") != p.npos && p.find("/2-") != p.npos && !p.ends_with("tensors");
       }},
      {"directory of a step",
       [](const auto& p) { return p.find("/step-") != p.npos && p.find("/2-") == p.npos; }},
      {"checkpoint directory", [](const auto& p) { return p == "/new/ckpt"; }},
      {"its parent", [](const auto& p) { return p == "/new"; }},
      {"the parent's parent", [](const auto& p) { return p.empty(); }},
  };
  for (const auto& kind : kKinds) {
    std::size_t left_out = 0;
    const std::string broken = FirstBroken(story, root.path(), [&](const IoCall& call) {
      const bool is = call.kind == IoCall::kSync && kind.is(call.path.substr(root.path().size()));
      left_out += is ? 1 : 0;
      return !is;
    });
    EXPECT_GT(left_out, 0u) << kind.what;
    EXPECT_NE(broken, "") << kind.what;
  }
}

class FaultTest : public testing::Test {
 protected:
  // Two commits are there; a third displaces the first.
  FaultTest() {
    const Repository repository = *Repository::OpenForTraining(directory_ / "good");
    Pair ranks(repository, 1);
    EXPECT_TRUE(ranks.Save(5).status.ok());
    EXPECT_TRUE(ranks.Save(10).status.ok());
  }
  std::string Fresh() const {
    std::filesystem::remove_all(directory_ / "ckpt");
    std::filesystem::copy(directory_ / "good", directory_ / "ckpt",
                          std::filesystem::copy_options::recursive);
    return directory_ / "ckpt";
  }
  // The next generation tidies up and saves: nothing of what happened is in its way, or stays.
  void ExpectLifeGoesOn(const std::string& directory, const std::string& what) const {
    const Repository repository = *Repository::OpenForTraining(directory);
    EXPECT_TRUE(repository.Sweep(3).ok()) << what;
    Pair ranks(repository, 3);
    const SaveOutcome outcome = ranks.Save(30);
    EXPECT_TRUE(outcome.status.ok()) << what << ": " << outcome.status;
    EXPECT_EQ(RestoredStep(directory), 30) << what;
    EXPECT_EQ(repository.CommittedSteps()->size(), 2u) << what;
    EXPECT_EQ(AllFiles(directory).size(), 6u)
        << what << " left " << absl::StrJoin(AllFiles(directory), " ");
  }

  const TemporaryDirectory directory_ = TemporaryDirectory::InMemory();
};

TEST_F(FaultTest, KilledBeforeAnyCallNothingIsLostOrInTheWay) {
  bool finished = false;
  int kills = 0;
  for (; !finished && kills < 500; ++kills) {
    const std::string directory = Fresh();
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      int calls = 0;
      const IoWatch watch(
          directory,
          [&](const IoCall&) {
            if (calls++ == kills) raise(SIGKILL);
            return 0;
          },
          nullptr);
      const Repository repository = *Repository::OpenForTraining(directory);
      if (!repository.Sweep(2).ok()) _exit(1);
      _exit(Pair(repository, 2).Save(20).status.ok() ? 0 : 2);
    }
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    finished = WIFEXITED(status);
    ASSERT_TRUE(finished ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL) << status;
    ASSERT_EQ(Broken(directory, finished ? 20 : 10, 20), "") << "before call " << kills;
    ExpectLifeGoesOn(directory, "killed before call " + std::to_string(kills));
  }
  EXPECT_TRUE(finished);
  EXPECT_GT(kills, 40);
}

struct Fault {
  int error;
  bool from_then_on;  // The disk is full, or read-only; else one call fails.
};

// Saves with the fault at this call; how many calls there were.
int SaveWithFault(const std::string& directory, const Fault& fault, int failing,
                  const std::string& what) {
  const Repository repository = *Repository::OpenForTraining(directory);
  Pair ranks(repository, 2);
  int calls = 0;
  SaveOutcome outcome;
  {
    const IoWatch watch(
        directory,
        [&](const IoCall&) {
          const int call = calls++;
          return call == failing || (fault.from_then_on && call > failing) ? fault.error : 0;
        },
        nullptr);
    outcome = ranks.Save(20);
  }
  EXPECT_EQ(Broken(directory, outcome.status.ok() ? 20 : 10, 20), "") << what;
  // The same ranks go on, with the disk well again.
  const SaveOutcome next = ranks.Save(25);
  EXPECT_TRUE(next.status.ok()) << what << ": " << next.status;
  EXPECT_EQ(Broken(directory, 25, 25), "") << what;
  return calls;
}

TEST_F(FaultTest, AnyCallThatFailsVoidsTheSaveAtMost) {
  for (const Fault& fault :
       {Fault{ENOSPC, false}, Fault{ENOSPC, true}, Fault{EIO, false}, Fault{EROFS, true}}) {
    for (int failing = 0, calls = 1; failing < calls; ++failing) {
      const std::string what = std::string(std::strerror(fault.error)) + " at call " +
                               std::to_string(failing) +
                               (fault.from_then_on ? " and from then on" : "");
      const std::string directory = Fresh();
      calls = SaveWithFault(directory, fault, failing, what);
      ExpectLifeGoesOn(directory, what);
    }
  }
}

}  // namespace
}  // namespace regroup::worker
