// Ranks that are processes, of which one is killed or stopped between its collectives.

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/worker/comm/processes.h"
#include "tests/worker/fake_gpu/open_fake_gpu.h"
#include "worker/nccl/nccl_communicator.h"

namespace regroup::worker {
namespace {

using std::chrono::seconds;

constexpr int kWorld = 3, kLost = 1, kTold = 7;

// Sums until it fails; kTold if that is said in these words, in time.
int SumUntil(Communicator& group, std::uint16_t store_port, Duration deadline,
             const std::vector<std::string>& words, int lost_by) {
  const FakeGpu gpu;
  const std::unique_ptr<CudaDevice> device = *CudaDevice::Create(gpu.cuda(), 0);
  const NcclApi api = *OpenNccl(FakeGpu::path());
  const auto nccl = NcclCommunicator::Create(
      group, *device, api,
      {.store_host = "127.0.0.1", .store_port = store_port, .deadline = deadline});
  if (!nccl.ok()) return 1;
  const auto stream = device->NewStream(StreamKind::kMove);
  const Tensor arena = *(*nccl)->AllocateTensor(DType::kF32, 100'000);
  for (int i = 0; i < 1000; ++i) {
    if (group.rank() == kLost && i == 20) raise(lost_by);
    const double begin = NowSeconds();
    (*nccl)->AllReduceSum(*stream, arena);
    const absl::Status told = stream->Await();
    if (told.ok()) continue;
    bool all = IsCommunicatorFailure(told) && NowSeconds() - begin < Seconds(deadline) + 5;
    for (const std::string& word : words) all &= told.message().find(word) != std::string::npos;
    if (!all) fprintf(stderr, "%s\n", told.ToString().c_str());
    return all ? kTold : 2;
  }
  return 3;
}

TEST(NcclProcesses, AKilledRankIsNamedAtOnce) {
  Shared<std::uint16_t> port;
  RankProcesses ranks(kWorld, [&](int, Communicator& group) {
    while (*port == 0) usleep(1000);
    return SumUntil(group, *port, seconds(1), {"all_reduce 21", "rank 1"}, SIGKILL);
  });
  *port = ranks.store_port();
  EXPECT_EQ(ranks.WaitAll(), (std::vector<int>{kTold, 128 + SIGKILL, kTold}));
}

TEST(NcclProcesses, AStoppedRankIsNamedAfterTheDeadline) {
  Shared<std::uint16_t> port;
  RankProcesses ranks(kWorld, [&](int, Communicator& group) {
    while (*port == 0) usleep(1000);
    return SumUntil(group, *port, seconds(1),
                    {"all_reduce 21", "not over after 1 s; rank 1 does not answer"}, SIGSTOP);
  });
  *port = ranks.store_port();
  EXPECT_EQ(ranks.Wait(0), kTold);
  EXPECT_EQ(ranks.Wait(2), kTold);
  kill(ranks.pid(kLost), SIGCONT);  // It reads what was found out about it.
  EXPECT_EQ(ranks.Wait(kLost), kTold);
}

}  // namespace
}  // namespace regroup::worker
