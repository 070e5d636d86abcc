// --device: regroup-worker as it is where there are GPUs, with their kernels emulated, and a CUDA
// and an NCCL that refuse what the real ones forbid; and what it says where they are not.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/worker/fake_gpu/fake_gpu.h"
#include "tests/worker/nccl/ras_server.h"
#include "tests/worker/train/train_fixture.h"

namespace regroup::worker {
namespace {

class DeviceTest : public TrainTest {
 protected:
  // Of the CPU's, in f32; the optimizer makes what rounding does to small gradients larger.
  static constexpr double kNear = 1e-3;

  // Few steps: each block of an emulated kernel takes as long as a kernel does.
  std::vector<std::string> Flags(const std::string& name) const {
    std::vector<std::string> flags = Checkpoints(name, /*every=*/2);
    flags.insert(flags.end(), {"--steps", "4", "--batch", "5", "--micro-batch", "3",
                               "--lr-schedule", "constant"});
    return flags;
  }
  void TrainOn(const std::string& program, int world, const std::string& name,
               std::vector<std::string> more, std::uint64_t generation = 1) const {
    RunOptions options{.generation = generation, .flags = Flags(name), .program = program};
    options.flags.insert(options.flags.end(), more.begin(), more.end());
    Group group(*this, world, options);
    for (const int code : group.WaitAll()) EXPECT_EQ(code, 0) << group.Output(0);
    if (program != REGROUP_WORKER) {
      EXPECT_NE(group.Output(0).find("training on GPU 0 of 8, by CUDA 13.0"), std::string::npos)
          << group.Output(0);
    }
  }
};

#if defined(REGROUP_EMULATED_WORKER)
constexpr char kWorker[] = REGROUP_EMULATED_WORKER;

TEST_F(DeviceTest, AGpuTrainsAsTheCpuDoesUnderEveryStrategy) {
  TrainOn(REGROUP_WORKER, 1, "cpu", {});
  const auto expected = NewestState("cpu");
  struct Case {
    int world;
    const char* strategy;
    std::vector<std::string> more{};
  };
  for (const Case& c : {Case{1, "ddp"},
                        {2, "ddp"},
                        {2, "zero-1"},
                        {2, "zero-2"},
                        {3, "zero-3"},
                        {4, "zero-3", {"--shard-group", "2"}}}) {
    const std::string name = absl::StrCat(c.strategy, c.world);
    std::vector<std::string> more = c.more;
    more.insert(more.end(), {"--strategy", c.strategy});
    TrainOn(kWorker, c.world, name, more);
    EXPECT_EQ(NewestStep(name), 4);
    EXPECT_LT(Difference(expected, NewestState(name)), kNear) << name;
  }
}

// What comes again in each step comes as graphs from the third on, unless it shall not or CUDA
// cannot: the same bits.
TEST_F(DeviceTest, GraphsChangeNoBit) {
  const auto train = [&](const std::string& name, std::vector<std::string> more,
                         std::map<std::string, std::string> environment) {
    RunOptions options{.flags = Flags(name), .program = kWorker};
    options.environment = std::move(environment);
    options.environment["FAKE_GPU_CUBLASLT"] = "130100";
    options.flags.insert(options.flags.end(), more.begin(), more.end());
    Group group(*this, 2, options);
    for (const int code : group.WaitAll()) EXPECT_EQ(code, 0) << group.Output(0);
    int graphs = 0;
    const std::string said = group.Output(0), graph = "fake GPU: a graph of ";
    for (std::size_t at = said.find(graph); at != std::string::npos; at = said.find(graph, at + 1))
      ++graphs;
    return graphs;
  };
  for (const char* precision : {"f32", "bf16"}) {
    const std::string on = absl::StrCat("on-", precision), off = absl::StrCat("off-", precision),
                      fails = absl::StrCat("fails-", precision);
    // One for each instruction that has several kernels and comes in every step: none goes on into
    // the next, whose kernels, as an optimizer's, may be others each time.
    EXPECT_EQ(train(on, {"--precision", precision}, {}), 6);
    EXPECT_EQ(train(off, {"--precision", precision, "--cuda-graphs", "off"}, {}), 0);
    EXPECT_EQ(Difference(NewestState(on), NewestState(off)), 0);
    for (const char* how : {"2", "5"}) {  // As one is made, or launched.
      EXPECT_EQ(train(fails + how, {"--precision", precision}, {{"FAKE_GPU_CAPTURE", how}}),
                how == std::string("5") ? 1 : 0);  // The one that could not be launched.
      EXPECT_EQ(Difference(NewestState(on), NewestState(fails + how)), 0);
    }
  }
}

// Gradients of 16 bits are as good as they can be: AdamW's steps are what their signs say.
TEST_F(DeviceTest, AGpuTakesShortNumbersWhereItMayChoose) {
  TrainOn(REGROUP_WORKER, 1, "cpu", {"--precision", "bf16"});
  // Which says nothing of what the CPU would take.
  TrainOn(kWorker, 1, "gpu", {"--precision", "auto", "--kernels", "baseline"});
  TrainOn(kWorker, 1, "floats", {});
  const auto gpu = NewestState("gpu"), floats = NewestState("floats");
  // Tensor cores round other numbers of attention than the CPU does, not more of them.
  EXPECT_LT(Difference(floats, gpu), 1.1 * Difference(floats, NewestState("cpu")));
  EXPECT_GT(Difference(floats, gpu), kNear);
}

// Whether a rank's steps had products, and products by slopes of GELU, of the fake library.
std::pair<bool, bool> Used(const std::string& said) {
  const auto has = [&](const char* line) { return said.find(line) != std::string::npos; };
  return {has("fake cuBLASLt: a product\n"), has("fake cuBLASLt: a product by slopes\n")};
}

TEST_F(DeviceTest, ProductsOfALibraryTrainAsOwnKernelsDo) {
  TrainOn(REGROUP_WORKER, 1, "cpu", {});
  const auto expected = NewestState("cpu");
  for (const char* strategy : {"ddp", "zero-3"}) {
    RunOptions options{.flags = Flags(strategy),
                       .program = kWorker,
                       .environment = {{"FAKE_GPU_CUBLASLT", "130100"}}};
    options.flags.insert(options.flags.end(), {"--strategy", strategy});
    Group group(*this, 2, options);
    for (const int code : group.WaitAll()) EXPECT_EQ(code, 0) << group.Output(0);
    EXPECT_NE(group.Output(0).find("; products by cuBLASLt 13.1.0 (/"), std::string::npos)
        << group.Output(0);
    EXPECT_NE(group.Output(0).find("libfake_gpu.so)\n"), std::string::npos) << group.Output(0);
    EXPECT_EQ(Used(group.Output(0)), (std::pair{true, true})) << group.Output(0);
    EXPECT_LT(Difference(expected, NewestState(strategy)), kNear) << strategy;
  }
  EXPECT_EQ(Difference(NewestState("ddp"), NewestState("zero-3")), 0);
  TrainOn(REGROUP_WORKER, 1, "cpu-bf16", {"--precision", "bf16"});
  RunOptions options{
      .flags = Flags("bf16"), .program = kWorker, .environment = {{"FAKE_GPU_CUBLASLT", "120400"}}};
  options.flags.insert(options.flags.end(), {"--precision", "auto"});
  Group group(*this, 1, options);
  EXPECT_EQ(group.Wait(0), 0) << group.Output(0);
  // Which rounds once less.
  EXPECT_LT(Difference(expected, NewestState("bf16")),
            1.1 * Difference(expected, NewestState("cpu-bf16")));
}

TEST_F(DeviceTest, WhatALibraryCannotDoOwnKernelsDo) {
  TrainOn(REGROUP_WORKER, 1, "cpu", {"--precision", "bf16"});
  RunOptions options{.flags = Flags("part"),
                     .program = kWorker,
                     .environment = {{"FAKE_GPU_CUBLASLT", "130100"}, {"FAKE_GPU_PRODUCTS", "5"}}};
  options.flags.insert(options.flags.end(), {"--precision", "auto"});
  Group group(*this, 1, options);
  EXPECT_EQ(group.Wait(0), 0) << group.Output(0);
  EXPECT_NE(group.Output(0).find("), but for those by GELU's slope\n"), std::string::npos)
      << group.Output(0);
  EXPECT_EQ(Used(group.Output(0)), (std::pair{true, false})) << group.Output(0);
  TrainOn(REGROUP_WORKER, 1, "floats", {});
  const auto floats = NewestState("floats");
  EXPECT_LT(Difference(floats, NewestState("part")), 1.1 * Difference(floats, NewestState("cpu")));
}

// In the midst of a step: whoever has it names it, and the others leave with it.
TEST_F(DeviceTest, AProductThatFailsEndsTheGroup) {
  for (const char* transport : {"nccl", "host"}) {
    const RunOptions options{
        .flags = {"--steps", "1000", "--transport", transport},
        .program = kWorker,
        .environment = {{"FAKE_GPU_CUBLASLT", "130100"}},
        .environment_of_rank = {
            {1, {{"FAKE_GPU_PRODUCTS", "3"}, {"FAKE_GPU_PRODUCTS_AFTER", "200"}}}}};
    Group group(*this, 2, options);
    EXPECT_EQ(group.Wait(1), static_cast<int>(WorkerExit::kFailed)) << group.Output(1);
    EXPECT_EQ(group.Wait(0), static_cast<int>(WorkerExit::kCommunicatorFailed)) << group.Output(0);
    EXPECT_NE(group.Output(1).find("cublasLtMatmul of ("), std::string::npos) << group.Output(1);
    EXPECT_NE(group.Output(0).find("rank 1"), std::string::npos) << group.Output(0);
  }
}

// Where the library's own memory does not fit, a small training does.
TEST_F(DeviceTest, AGpuTooSmallForTheLibraryTrainsByOwnKernels) {
  const RunOptions options{
      .flags = {"--steps", "4"},
      .program = kWorker,
      .environment = {{"FAKE_GPU_CUBLASLT", "130100"}, {"FAKE_GPU_MEMORY", "20000000"}}};
  Group group(*this, 1, options);
  EXPECT_EQ(group.Wait(0), 0) << group.Output(0);
  EXPECT_NE(group.Output(0).find("which are slower: no memory for an arena of 33554432 bytes"),
            std::string::npos)
      << group.Output(0);
}

TEST_F(DeviceTest, ALibraryThatSomeRankCannotUseIsUsedByNone) {
  const std::map<std::string, std::string> has = {{"FAKE_GPU_CUBLASLT", "130100"}};
  for (const auto& [variable, value, says] : {
           std::tuple("FAKE_GPU_CUBLASLT", "0",
                      "which are slower: no cuBLASLt was found, which comes"),
           {"FAKE_GPU_PRODUCTS", "1", ") says that -25 is -24 on this GPU: f32"},
       }) {
    const RunOptions options{.flags = {"--steps", "4"},
                             .program = kWorker,
                             .environment = has,
                             .environment_of_rank = {{1, {{variable, value}}}}};
    Group group(*this, 2, options);
    for (const int code : group.WaitAll()) EXPECT_EQ(code, 0) << group.Output(0);
    EXPECT_NE(group.Output(0).find("; but products by own kernels, as those of rank 1"),
              std::string::npos)
        << group.Output(0);
    EXPECT_NE(group.Output(1).find(says), std::string::npos) << group.Output(1);
    EXPECT_EQ(Used(group.Output(0)), (std::pair{false, false})) << group.Output(0);
  }
  // Of those that lack it one says why, and nobody where all do; the first speaks anyway.
  const std::map<std::string, std::string> none = {{"FAKE_GPU_CUBLASLT", "0"}};
  using Environments = std::map<int, std::map<std::string, std::string>>;
  for (const auto& [lacking, speaks] : {std::pair(Environments{{0, none}}, -1),
                                        {Environments{{1, none}, {2, none}}, 2},
                                        {Environments{{0, none}, {1, none}, {2, none}}, -1}}) {
    const RunOptions options{.flags = {"--steps", "4"},
                             .program = kWorker,
                             .environment = has,
                             .environment_of_rank = lacking};
    Group group(*this, 3, options);
    for (const int code : group.WaitAll()) EXPECT_EQ(code, 0) << group.Output(0);
    const std::string first = group.Output(0);
    EXPECT_NE(first.find("products by own kernels"), std::string::npos) << first;
    EXPECT_EQ(first.find("training on GPU"), first.rfind("training on GPU")) << first;
    for (const int rank : {1, 2}) {
      EXPECT_EQ(group.Output(rank).find("training on GPU") != std::string::npos, rank == speaks)
          << group.Output(rank);
    }
  }
  ExpectExits(
      {{"another library",
        {.program = kWorker,
         .environment = has,
         .environment_of_rank = {{1, {{"FAKE_GPU_CUBLASLT", "120400"}}}}},
        2,
        WorkerExit::kRanksDisagree,
        "products is f32 by cuBLASLt 12.4.0 on rank 1 and f32 by cuBLASLt 13.1.0 on rank 0"}});
}

TEST_F(DeviceTest, CheckpointsGoFromOneDeviceToTheOther) {
  TrainOn(REGROUP_WORKER, 2, "cpu", {"--steps", "8"});
  const auto expected = NewestState("cpu");
  TrainOn(REGROUP_WORKER, 1, "begun-on-the-cpu", {});
  TrainOn(kWorker, 2, "begun-on-the-cpu", {"--steps", "8", "--strategy", "zero-3"}, 2);
  TrainOn(kWorker, 2, "begun-on-a-gpu", {"--strategy", "zero-1"});
  TrainOn(REGROUP_WORKER, 1, "begun-on-a-gpu", {"--steps", "8"}, 2);
  for (const char* name : {"begun-on-the-cpu", "begun-on-a-gpu"}) {
    EXPECT_EQ(NewestStep(name), 8);
    EXPECT_LT(Difference(expected, NewestState(name)), kNear) << name;
  }
}

TEST_F(DeviceTest, WhatAGpuGoesOnFromIsAllThatThereIs) {
  const std::vector<std::string> flags = {"--strategy", "zero-2",      "--precision",
                                          "auto",       "--optimizer", "lamb"};
  std::vector<std::string> more = flags;
  more.insert(more.end(), {"--steps", "6"});
  TrainOn(kWorker, 2, "straight", more);
  TrainOn(kWorker, 2, "in-two", flags);  // 4 steps.
  TrainOn(kWorker, 2, "in-two", more, 2);
  EXPECT_TRUE(Newest("straight") == Newest("in-two"));
}

TEST_F(DeviceTest, WhatIsMissingIsOneSentenceWithItsExit) {
  const auto with = [](const char* name, const char* value) {
    return RunOptions{
        .flags = {"--device", "cuda"}, .program = kWorker, .environment = {{name, value}}};
  };
  const auto row = [](const char* name, RunOptions options, const char* says, int world = 1) {
    return BadRow{name, std::move(options), world, WorkerExit::kNoDevice, says};
  };
  RunOptions hidden = with("FAKE_GPU_COUNT", "0");
  hidden.environment["CUDA_VISIBLE_DEVICES"] = "";
  BadRow too_many{"more ranks than GPUs", with("FAKE_GPU_COUNT", "1"), 1, WorkerExit::kNoDevice,
                  "LOCAL_RANK is 3, and this process may use 1 GPU"};
  too_many.options.environment["LOCAL_RANK"] = "3";
  ExpectExits({
      row("no driver", with("FAKE_GPU_DRIVER", "0"), "this machine has no NVIDIA driver"),
      row("an old driver", with("FAKE_GPU_DRIVER", "12040"),
          "the NVIDIA driver of this machine is for CUDA 12.4, and this program was built with "
          "CUDA "
          "13.0"),
      row("nccl means cuda",
          {.flags = {"--transport", "nccl"},
           .program = kWorker,
           .environment = {{"FAKE_GPU_NCCL", "0"}}},
          "/no/such/libnccl.so.2"),
      row("a broken driver", with("FAKE_GPU_ERROR", "999"), "cudaGetDeviceCount: a fake error"),
      row("no GPU", with("FAKE_GPU_ERROR", "100"), "there is no GPU that this process may use"),
      row("hidden GPUs", hidden, "may use, CUDA_VISIBLE_DEVICES being \"\""),
      too_many,
      row("an old GPU", with("FAKE_GPU_CAPABILITY", "75"),
          "GPU 0 has compute capability 7.5, and the kernels are for 8.0 and newer"),
      row("no NCCL", with("FAKE_GPU_NCCL", "0"), "/no/such/libnccl.so.2", 2),
      row("an old NCCL", with("FAKE_GPU_NCCL", "21705"), "2.17.5", 2),
  });
}

TEST_F(DeviceTest, AutoSaysWhyItIsTheCpu) {
  const RunOptions options{.program = kWorker, .environment = {{"FAKE_GPU_DRIVER", "0"}}};
  Group group(*this, 1, options);
  EXPECT_EQ(group.Wait(0), 0) << group.Output(0);
  EXPECT_NE(group.Output(0).find("training on the CPU: this machine has no NVIDIA driver"),
            std::string::npos)
      << group.Output(0);
}

// What comes to it is a copy in the GPU's memory at most.
TEST_F(DeviceTest, ARankThatIsAloneNeedsNoNccl) {
  TrainOn(REGROUP_WORKER, 1, "cpu", {});
  RunOptions options{
      .flags = Flags("alone"), .program = kWorker, .environment = {{"FAKE_GPU_NCCL", "0"}}};
  options.flags.insert(options.flags.end(), {"--device", "cuda", "--strategy", "zero-3"});
  Group group(*this, 1, options);
  EXPECT_EQ(group.Wait(0), 0) << group.Output(0);
  EXPECT_NE(group.Output(0).find("by CUDA 13.0 and a driver for CUDA 13.0; products by own"),
            std::string::npos)
      << group.Output(0);
  EXPECT_LT(Difference(NewestState("cpu"), NewestState("alone")), kNear);
}

TEST_F(DeviceTest, WithoutNcclTensorsGoThroughTheHostAndRanksMayShareAGpu) {
  TrainOn(REGROUP_WORKER, 1, "cpu", {});
  const auto expected = NewestState("cpu");
  std::string former;
  for (const auto& [name, transport, count, gpus] :
       {std::tuple("auto", "auto", "8", "of 8"), {"host", "host", "2", "of 2"}}) {
    RunOptions options{.flags = Flags(name),
                       .program = kWorker,
                       .environment = {{"FAKE_GPU_NCCL", "0"}, {"FAKE_GPU_COUNT", count}}};
    options.flags.insert(options.flags.end(), {"--strategy", "zero-3", "--transport", transport});
    Group group(*this, 3, options);
    for (const int code : group.WaitAll()) EXPECT_EQ(code, 0) << group.Output(0);
    EXPECT_NE(group.Output(0).find(gpus), std::string::npos) << group.Output(0);
    EXPECT_NE(group.Output(0).find("tensors go through the host"), std::string::npos)
        << group.Output(0);
    EXPECT_LT(Difference(expected, NewestState(name)), kNear) << name;
    if (!former.empty()) {
      EXPECT_TRUE(Newest(name) == former);
    }
    former = Newest(name);
  }
}

// Each rank is shown one GPU alone, or the driver is newer than it has to be.
TEST_F(DeviceTest, RanksThatSeeOneGpuEachTrain) {
  RunOptions options{.flags = Flags("one"),
                     .program = kWorker,
                     .environment = {{"LOCAL_RANK", "0"},
                                     {"FAKE_GPU_COUNT", "1"},
                                     {"FAKE_GPU_DRIVER", "13000"},
                                     {"FAKE_GPU_RUNTIME", "13020"}},
                     .environment_of_rank = {{1, {{"REGROUP_LOCAL_RANK", "1"}}}}};
  options.flags.insert(options.flags.end(), {"--device", "cuda"});
  Group group(*this, 2, options);
  for (const int code : group.WaitAll()) EXPECT_EQ(code, 0) << group.Output(0);
}

// Whatever one of them lacks, those that may choose train by what all have.
TEST_F(DeviceTest, AutoIsWhatAllRanksHave) {
  for (const auto& [variable, says, why] :
       {std::tuple("FAKE_GPU_DRIVER", "training on the CPU, as rank 1 does, which says why\n",
                   "training on the CPU: this machine has no NVIDIA driver\n"),
        {"FAKE_GPU_NCCL", "but tensors go through the host: rank 1 has no NCCL",
         "tensors go through the host: no NCCL was found"}}) {
    const RunOptions options{.flags = {"--steps", "4"},
                             .program = kWorker,
                             .environment_of_rank = {{1, {{variable, "0"}}}}};
    Group group(*this, 2, options);
    for (const int code : group.WaitAll()) EXPECT_EQ(code, 0) << group.Output(0);
    EXPECT_NE(group.Output(0).find(says), std::string::npos) << group.Output(0);
    EXPECT_NE(group.Output(1).find(why), std::string::npos) << group.Output(1);
  }
}

TEST_F(DeviceTest, RanksThatWereToldOtherDevicesAllSaySo) {
  ExpectExits({{"a rank on the CPU",
                {.flags_of_rank = {{1, {"--device", "cpu"}}}, .program = kWorker},
                2,
                WorkerExit::kRanksDisagree,
                "cpu on rank 1, cuda on rank 0"},
               {"a rank without NCCL",
                {.flags_of_rank = {{1, {"--transport", "host"}}}, .program = kWorker},
                2,
                WorkerExit::kRanksDisagree,
                "host on rank 1, nccl on rank 0"},
               {"another NCCL",
                {.program = kWorker, .environment_of_rank = {{1, {{"FAKE_GPU_NCCL", "22703"}}}}},
                2,
                WorkerExit::kRanksDisagree,
                "NCCL is not the same on all ranks"}});
}

TEST_F(DeviceTest, AnNcclThatFailsOrHangsBeforeTheFirstStepIsSaidByAllRanks) {
  const auto fault = [](FakeFault what, const char* rank) {
    return RunOptions{.flags = {"--join-timeout", "2s"},
                      .program = kWorker,
                      .environment = {{"FAKE_GPU_INIT_FAULT", std::to_string(int(what))},
                                      {"FAKE_GPU_INIT_FAULT_ON", rank}}};
  };
  ExpectExits({{"on rank 0", fault(FakeFault::kInitAsyncError, "0"), 2, WorkerExit::kNoDevice,
                "error: NCCL cannot be used\nbecause: rank 0, init of 2 ranks: NCCL: unhandled "
                "system error "
                "(NCCL error 2): the fake was told to\ntry: NCCL_DEBUG=WARN",
                WorkerExit::kGroupNotFormed},
               {"on rank 1", fault(FakeFault::kInitError, "1"), 2, WorkerExit::kGroupNotFormed,
                "error: rank 1, init of 2 ranks: ncclCommInitRankConfig: unhandled cuda error "
                "(NCCL error 1): "
                "the fake was told to",
                WorkerExit::kNoDevice},
               {"a rank that does not come", fault(FakeFault::kInitHangs, "1"), 2,
                WorkerExit::kGroupNotFormed, "init of 2 ranks: NCCL did not take it in time"}});
}

TEST_F(DeviceTest, AGpuThatIsTooSmallIsSaidAsSuch) {
  ExpectExits({{"memory",
                {.flags = {"--device", "cuda"},
                 .program = kWorker,
                 .environment = {{"FAKE_GPU_MEMORY", "100000"}}},
                1,
                WorkerExit::kFailed,
                "because: no memory for an arena of"}});
}

// A collective that hangs on one rank, and a rank that is gone: all others are told, and leave.
TEST_F(DeviceTest, WhoeverStopsIsNoticedOnGpusToo) {
  for (const char* transport : {"nccl", "host"}) {
    RunOptions options{.flags = {"--steps", "100000", "--transport", transport, "--strategy",
                                 "zero-2", "--log-every", "1"},
                       .program = kWorker};
    Group group(*this, 2, options);
    while (group.Output(0).find("step 1 ") == std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    group.Kill(1, SIGKILL);
    EXPECT_EQ(group.Wait(0), static_cast<int>(WorkerExit::kCommunicatorFailed)) << transport;
    EXPECT_NE(group.Output(0).find("rank 1"), std::string::npos) << group.Output(0);
  }
  const RasServer ras(RasServer::Is::kSound);
  RunOptions options{.flags = {"--steps", "100000", "--collective-timeout", "2s"},
                     .program = kWorker,
                     .environment = {{"FAKE_GPU_HANGS_AT", "3"},
                                     {"FAKE_GPU_HANGS_ON", "1"},
                                     {"NCCL_RAS_ADDR", ras.address()}}};
  Group group(*this, 2, options);
  for (const int code : group.WaitAll())
    EXPECT_EQ(code, static_cast<int>(WorkerExit::kCommunicatorFailed)) << group.Output(0);
  for (const int rank : {0, 1}) {
    const std::string said = group.Output(rank);
    const std::size_t ras_says = said.find("error: NCCL's RAS service at " + ras.address());
    EXPECT_LT(ras_says, said.find("not over after 2 s")) << said;
    EXPECT_LT(ras_says, said.find("Rank 2 -- GPU 2 managed by process 4711")) << said;
  }
}

// A copy of the weights that no longer is one shows at a save.
TEST_F(DeviceTest, ReplicasOnGpusAreCompared) {
  RunOptions options{.flags = Flags("flipped"), .mutation = "flip_bit", .program = kWorker};
  options.flags.insert(options.flags.end(), {"--steps", "8"});
  Group group(*this, 2, options);
  for (const int code : group.WaitAll())
    EXPECT_EQ(code, static_cast<int>(WorkerExit::kReplicasDiffer)) << group.Output(0);
}
#endif

TEST_F(DeviceTest, AProgramWithoutKernelsForGpusSaysSo) {
  ExpectExits({{"no kernels",
                {.flags = {"--device", "cuda"}},
                1,
                WorkerExit::kNoDevice,
                "this program was built without nvcc"}});
}

}  // namespace
}  // namespace regroup::worker
