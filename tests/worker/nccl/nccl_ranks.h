#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/worker/comm/tiny_store.h"
#if defined(REGROUP_REAL_GPU)
#include "tests/worker/gpu/real_gpu.h"
#else
#include "tests/worker/fake_gpu/open_fake_gpu.h"
#endif
#include "worker/comm/in_process_communicator.h"
#include "worker/nccl/nccl_communicator.h"

namespace regroup::worker {

// Ranks of one generation as threads, each with a GPU of its own and NCCL, which are fakes; in
// gpu-nccl-test (tests/worker/gpu) they are what the machine has.
class NcclRanks {
 public:
  explicit NcclRanks(int world, Duration deadline = std::chrono::seconds(20)) : world_(world) {
    options.store_host = "127.0.0.1";
    options.deadline = options.init_deadline = deadline;
    gpu.set_devices(world, 0);
  }

  struct Rank {
    Communicator& group;
    CudaDevice& device;
    absl::StatusOr<std::unique_ptr<NcclCommunicator>> nccl;
    int rank() const { return group.rank(); }
    NcclCommunicator& operator*() const { return **nccl; }
  };

  // As often as there are generations.
  void Run(const std::function<void(Rank&)>& body) {
    RunWith([this](int) -> const NcclApi& { return api; }, body);
  }
  void RunWith(const std::function<const NcclApi&(int rank)>& api_of,
               const std::function<void(Rank&)>& body) {
    TinyStore store;
    store.Start();
    options.store_port = store.port();
    auto groups = MakeInProcessCommunicators(world_, std::chrono::seconds(20));
    std::vector<std::thread> threads;
    for (auto& group : groups) {
      threads.emplace_back([&, c = std::move(group)]() mutable {
        const std::unique_ptr<CudaDevice> device = *CudaDevice::Create(gpu.cuda(), c->rank());
        Rank rank{*c, *device, NcclCommunicator::Create(*c, *device, api_of(c->rank()), options)};
        body(rank);
        rank.nccl = absl::CancelledError("over");
        c.reset();
      });
    }
    for (std::thread& t : threads) t.join();
  }

#if defined(REGROUP_REAL_GPU)
  RealGpu gpu;
  NcclApi api = *gpu.Nccl();
#else
  FakeGpu gpu;
  NcclApi api = *OpenNccl(FakeGpu::path());
#endif
  NcclOptions options;

 private:
  const int world_;
};

}  // namespace regroup::worker
