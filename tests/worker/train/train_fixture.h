#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "tests/worker/checkpoint/testing.h"
#include "tests/worker/comm/tiny_store.h"
#include "tests/worker/golden/golden.h"
#include "worker/checkpoint/load.h"
#include "worker/comm/in_process_communicator.h"
#include "worker/data/sampler.h"
#include "worker/train/sample_log.h"
#include "worker/train/worker_exit.h"

namespace regroup::worker {

struct Consumed {
  std::uint64_t generation = 0;
  std::int64_t step = 0, rank = 0, world = 0, first = 0, count = 0;
  std::uint64_t hash = 0;
  double loss = 0;
};

inline std::vector<Consumed> ReadSampleLogs(const std::string& directory) {
  std::vector<Consumed> lines;
  for (const std::string& name : AllFiles(directory)) {
    std::istringstream text(ReadAll(absl::StrCat(directory, "/", name)));
    Consumed c;
    while (text >> c.generation >> c.step >> c.rank >> c.world >> c.first >> c.count >> std::hex >>
           c.hash >> std::dec >> c.loss)
      lines.push_back(c);
  }
  return lines;
}

inline constexpr int kTextBytes = 4000;

struct RunOptions {
  std::uint64_t generation = 1;
  std::vector<std::string> flags{};
  std::map<int, std::vector<std::string>> flags_of_rank{};
  std::string socket{};
  std::string mutation{};
  std::string job = "test-1";
  rlim_t file_bytes = RLIM_INFINITY;
  int full_rank = 0;  // Whose files have that limit.
  std::map<int, std::string> program_of_rank{};
  std::string program = REGROUP_WORKER;  // Of the others.
  std::map<std::string, std::string> environment{};
  std::map<int, std::map<std::string, std::string>> environment_of_rank{};
};

struct BadRow {
  const char* name;
  RunOptions options;
  int world;
  WorkerExit exit;
  const char* says;
  WorkerExit exit_of_rank_1 = WorkerExit::kDone;  // As the others'.
};

class TrainTest : public testing::Test {
 protected:
  TrainTest() {
    Rng rng(5);
    std::string text;
    for (int i = 0; i < kTextBytes; ++i)
      text += static_cast<char>('a' + rng.Below(1 + rng.Below(26)));
    WriteAll(directory_ / "data.txt", text);
  }

  // The processes of one generation.
  class Group {
   public:
    Group(const TrainTest& test, int world_size, const RunOptions& options) {
      for (int r = 0; r < world_size; ++r) {
        std::string out = test.directory_ /
                          ("out-" + std::to_string(options.generation) + "-" + std::to_string(r));
        outputs_.push_back(out);
        const pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) Exec(test, world_size, r, options, out);
        pids_.push_back(pid);
      }
      store_.Start();
    }
    ~Group() {
      for (std::size_t r = 0; r < pids_.size(); ++r) Kill(static_cast<int>(r), SIGKILL);
      WaitAll();
    }
    void Kill(int rank, int signal) {
      if (pids_[static_cast<std::size_t>(rank)] > 0)
        kill(pids_[static_cast<std::size_t>(rank)], signal);
    }
    // Exit code, or 128 + signal.
    int Wait(int rank) {
      pid_t& pid = pids_[static_cast<std::size_t>(rank)];
      if (pid <= 0) return -1;
      int status = 0;
      CHECK(waitpid(pid, &status, 0) == pid);
      pid = -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    std::vector<int> WaitAll() {
      std::vector<int> codes;
      for (std::size_t r = 0; r < pids_.size(); ++r) codes.push_back(Wait(static_cast<int>(r)));
      return codes;
    }
    std::string Output(int rank) const { return ReadAll(outputs_[static_cast<std::size_t>(rank)]); }

   private:
    [[noreturn]] void Exec(const TrainTest& test, int world_size, int rank,
                           const RunOptions& options, const std::string& out) const {
      setenv("RANK", std::to_string(rank).c_str(), 1);
      setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
      setenv("WORLD_SIZE", std::to_string(world_size).c_str(), 1);
      setenv("MASTER_ADDR", "127.0.0.1", 1);
      setenv("MASTER_PORT", std::to_string(store_.port()).c_str(), 1);
      setenv("REGROUP_JOB", options.job.c_str(), 1);
      setenv("REGROUP_GENERATION", std::to_string(options.generation).c_str(), 1);
      setenv("OMP_NUM_THREADS", "1", 1);
      setenv("GOMP_SPINCOUNT", "1000", 1);
      for (const auto& [name, value] : options.environment) setenv(name.c_str(), value.c_str(), 1);
      if (const auto own = options.environment_of_rank.find(rank);
          own != options.environment_of_rank.end()) {
        for (const auto& [name, value] : own->second) setenv(name.c_str(), value.c_str(), 1);
      }
      if (!options.socket.empty()) setenv("REGROUP_SOCKET", options.socket.c_str(), 1);
      if (!options.mutation.empty()) setenv("REGROUP_TEST_MUTATION", options.mutation.c_str(), 1);
      const int fd = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      dup2(fd, 1);
      dup2(fd, 2);
      if (options.file_bytes != RLIM_INFINITY && options.full_rank == rank) {
        const rlimit limit{options.file_bytes, options.file_bytes};
        setrlimit(RLIMIT_FSIZE, &limit);
        signal(SIGXFSZ, SIG_IGN);
      }
      const auto other = options.program_of_rank.find(rank);
      std::vector<std::string> args = {
          other != options.program_of_rank.end() ? other->second : options.program,
          "train",
          "--data",
          test.directory_ / "data.txt",
          "--layers",
          "1",
          "--width",
          "16",
          "--heads",
          "2",
          "--context",
          "16",
          "--batch",
          "7",
          "--steps",
          "12",
          "--learning-rate",
          "1e-2",
          "--micro-batch",
          "2",
          "--warmup",
          "3",
          "--clip",
          "0.5"};
      args.insert(args.end(), options.flags.begin(), options.flags.end());
      if (const auto own = options.flags_of_rank.find(rank); own != options.flags_of_rank.end()) {
        args.insert(args.end(), own->second.begin(), own->second.end());
      }
      std::vector<char*> argv;
      for (std::string& a : args) argv.push_back(a.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }

    TinyStore store_;
    std::vector<pid_t> pids_;
    std::vector<std::string> outputs_;
  };

  std::vector<std::string> Checkpoints(const std::string& name, int every = 4) const {
    return {"--checkpoint-dir",    directory_ / name, "--checkpoint-every",
            std::to_string(every), "--sample-log",    directory_ / (name + "-samples")};
  }
  std::vector<Consumed> Samples(const std::string& name) const {
    return ReadSampleLogs(directory_ / (name + "-samples"));
  }
  // The files of the newest commit, as one text.
  std::string Newest(const std::string& name) const {
    const Repository repository = *Repository::Open(directory_ / name);
    const Manifest manifest = *repository.ReadManifest(repository.CommittedSteps()->at(0));
    std::string bytes;
    for (const FileInfo& file : manifest.files)
      bytes +=
          ReadAll(repository.AttemptPath(manifest.step, manifest.generation, manifest.attempt) +
                  "/" + file.name);
    return bytes;
  }
  // The state that the newest commit holds, by tensor.
  std::map<std::string, std::vector<float>> NewestState(const std::string& name) const {
    const Repository repository = *Repository::Open(directory_ / name);
    const Manifest manifest = *repository.ReadManifest(repository.CommittedSteps()->at(0));
    std::map<std::string, std::vector<float>> state;
    std::vector<StateTensor> tensors;
    for (const TensorInfo& info : manifest.tensors) {
      state[info.name].resize(static_cast<std::size_t>(info.elements()));
      tensors.push_back({info, state[info.name]});
    }
    auto alone = MakeInProcessCommunicators(1);
    EXPECT_TRUE(Load(*alone[0], repository, manifest, tensors).ok());
    return state;
  }
  // The 2-norm of the difference of weights and moments, relative; of the worst tensor.
  static double Difference(const std::map<std::string, std::vector<float>>& a,
                           const std::map<std::string, std::vector<float>>& b) {
    EXPECT_EQ(a.size(), b.size());
    double worst = 0;
    for (const auto& [name, values] : a)
      worst = std::max(worst, DeviationOf(values, b.at(name)).norm);
    return worst;
  }
  // Who consumed what, by step, of a history whose later generations took over from earlier ones;
  // and that it is what the order of samples says.
  std::map<std::int64_t, double> LossesOfLineage(const std::string& name) const {
    std::map<std::int64_t, std::uint64_t> newest, hashes;
    std::map<std::int64_t, std::int64_t> counts;
    std::map<std::int64_t, double> losses;
    const std::vector<Consumed> all = Samples(name);
    for (const Consumed& c : all) newest[c.step] = std::max(newest[c.step], c.generation);
    for (const Consumed& c : all) {
      if (c.generation != newest[c.step]) continue;
      hashes[c.step] += c.hash;
      counts[c.step] += c.count;
      losses[c.step] = c.loss;
    }
    const Sampler order(1, (kTextBytes - 1) / 16);
    for (const auto& [step, hash] : hashes) {
      EXPECT_EQ(counts[step], 7) << step;
      EXPECT_EQ(hash, HashOfIds(order.Ids((step - 1) * 7, 7))) << step;
    }
    return losses;
  }
  std::int64_t NewestStep(const std::string& name) const {
    const auto repository = Repository::Open(directory_ / name);
    if (!repository.ok()) return -1;
    const auto steps = repository->CommittedSteps();
    return !steps.ok() || steps->empty() ? -1 : steps->front();
  }

  void ExpectExits(const std::vector<BadRow>& rows) const {
    std::uint64_t generation = 10;
    for (BadRow row : rows) {
      row.options.generation = ++generation;
      Group group(*this, row.world, row.options);
      const std::vector<int> codes = group.WaitAll();
      for (int r = 0; r < row.world; ++r) {
        const bool other = r == 1 && row.exit_of_rank_1 != WorkerExit::kDone;
        EXPECT_EQ(codes[static_cast<std::size_t>(r)],
                  static_cast<int>(other ? row.exit_of_rank_1 : row.exit))
            << row.name << ": " << group.Output(r);
      }
      EXPECT_NE(group.Output(0).find("error: "), std::string::npos)
          << row.name << ": " << group.Output(0);
      EXPECT_NE(group.Output(0).find(row.says), std::string::npos)
          << row.name << ": " << group.Output(0);
    }
  }

  TemporaryDirectory directory_;
};

}  // namespace regroup::worker
