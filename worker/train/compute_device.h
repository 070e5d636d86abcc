#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/cuda/cublas_lt_api.h"
#include "worker/cuda/cuda_api.h"
#include "worker/cuda/cuda_device.h"
#include "worker/device/device.h"
#include "worker/device/host_device.h"
#include "worker/kernels/kernels.h"
#include "worker/nccl/nccl_api.h"
#include "worker/nccl/nccl_communicator.h"
#include "worker/nccl/ras.h"
#include "worker/train/train_config.h"

namespace regroup::worker {

// What a program has for GPUs: a CUDA runtime, the kernels that were linked with it, and where it
// looks for NCCL and cuBLASLt.
struct CudaBuild {
  const CudaApi& runtime;
  KernelTables kernels;
  std::vector<std::string> nccl_places = NcclPlaces();
  std::vector<std::string> cublas_lt_places = CublasLtPlaces();
};

struct DeviceRequest {
  DeviceChoice device = DeviceChoice::kAuto;
  Transport transport = Transport::kAuto;
  bool cuda_graphs = true;
  Isa isa = BestIsa();
  int device_rank = 0;  // The number of its GPU; with Transport::kHost ranks take turns.
  bool alone = false;   // There is no other rank: NCCL is not looked for, unless it was asked for.
};

// What one rank computes on: the CPU, or a GPU, whose tensors NCCL moves or the host. Outlives
// whatever uses its device, kernels and collectives. Execution thread only.
class ComputeDevice {
 public:
  // Of this rank alone; asks CUDA, and looks for NCCL, which it gives a port for questions: no
  // other thread uses the environment meanwhile. `build` outlives the device; null: this program
  // has nothing for GPUs. kAuto is the CPU where kCuda would fail. Unavailable in three parts, with
  // the exit kNoDevice: kCuda was asked for, and there is no GPU, driver or NCCL, or one that is of
  // no use.
  static absl::StatusOr<ComputeDevice> Choose(const DeviceRequest& request, const CudaBuild* build);

  // Collective, before Connect: where some rank was left to choose and is on the CPU, all that were
  // left to choose go there, and likewise from NCCL to the host, so that a node that lacks
  // something costs no more than what it lacks. From cuBLASLt all go to own kernels. The failure of
  // the group.
  absl::Status AgreeOnLeast(Group& ranks);

  // By AgreeOnLeast others go without what they have because of this rank: words() say why.
  bool holds_back() const { return holds_back_; }

  bool is_cuda() const { return cuda_ != nullptr; }
  const char* name() const { return is_cuda() ? "cuda" : "cpu"; }
  const char* transport() const { return nccl_ ? "nccl" : "host"; }
  // Who multiplies on a GPU: "cuBLASLt 13.1.0", "cuBLASLt 13.1.0 in part" or "own kernels".
  std::string products() const;
  // A line: which GPU, and the versions of what it is used by; or why it is the CPU, empty where
  // that was asked for.
  const std::string& words() const { return words_; }
  Device& device() const { return *device_; }
  const KernelTables& kernels() const { return kernels_; }

  // What moves tensors of this device between the ranks: `ranks` itself on the CPU, else what this
  // makes. Collective; failures are those of NcclCommunicator::Create, or resource exhausted. What
  // is referred to outlives this.
  absl::StatusOr<Collectives*> Connect(Communicator& ranks, const NcclOptions& options);

 private:
  ComputeDevice(const DeviceRequest& request, KernelTables kernels)
      : request_(request), kernels_(kernels) {}
  static ComputeDevice Cpu(const DeviceRequest& request, std::string words);
  static absl::StatusOr<ComputeDevice> ChooseCuda(const DeviceRequest& request,
                                                  const CudaBuild& build);
  // REQUIRES: is_cuda(). Before it has streams.
  void UseCublasLt(const std::vector<std::string>& places);

  DeviceRequest request_;
  KernelTables kernels_;
  std::string words_;
  bool holds_back_ = false;
  std::unique_ptr<Device> device_;
  CudaDevice* cuda_ = nullptr;  // device_, if it is one.
  std::unique_ptr<NcclApi> nccl_;
  RasPlace ras_;  // Where the RAS service of nccl_ listens.
  std::unique_ptr<Collectives> tensors_;
};

}  // namespace regroup::worker
