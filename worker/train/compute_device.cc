#include "worker/train/compute_device.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/env.h"
#include "worker/comm/host_staged_communicator.h"
#include "worker/cuda/libraries.h"
#include "worker/train/worker_exit.h"

namespace regroup::worker {
namespace {

constexpr int kOldestCapability = 80;  // What the kernels are compiled for at least.

// 13020 → "13.2".
std::string VersionName(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

absl::Status NoDevice(const std::string& because, const std::string& try_this) {
  return WithExit(
      UserError(absl::StatusCode::kUnavailable, "--device cuda cannot be had", because, try_this),
      WorkerExit::kNoDevice);
}

// Whoever asks for NCCL has asked for GPUs.
bool MustBeCuda(const DeviceRequest& request) {
  return request.device == DeviceChoice::kCuda || request.transport == Transport::kNccl;
}

// What hides GPUs of the machine from this process.
std::string Visible() {
  const std::optional<std::string> value = GetEnv("CUDA_VISIBLE_DEVICES");
  return value ? absl::StrCat(", CUDA_VISIBLE_DEVICES being \"", *value, "\"") : "";
}

// OK where there is a driver that this runtime can use.
absl::Status CheckDriver(const CudaApi& api, int& driver, int& runtime) {
  RETURN_IF_ERROR(CudaStatus(api, api.runtime_get_version(&runtime), "cudaRuntimeGetVersion"));
  RETURN_IF_ERROR(CudaStatus(api, api.driver_get_version(&driver), "cudaDriverGetVersion"));
  if (driver == 0) return NoDevice("this machine has no NVIDIA driver", "--device cpu");
  if (driver / 1000 >= runtime / 1000) return absl::OkStatus();
  return NoDevice(
      absl::StrCat("the NVIDIA driver of this machine is for CUDA ", VersionName(driver),
                   ", and this program was built with CUDA ", VersionName(runtime)),
      "a newer driver, or --device cpu");
}

absl::Status CheckGpu(const CudaApi& api, int ordinal, int count) {
  if (count == 0)
    return NoDevice(absl::StrCat("there is no GPU that this process may use", Visible()),
                    "--device cpu");
  if (ordinal >= count) {
    return NoDevice(absl::StrCat("LOCAL_RANK is ", ordinal, ", and this process may use ", count,
                                 count == 1 ? " GPU" : " GPUs", Visible()),
                    absl::StrCat("--nproc-per-node ", count));
  }
  int major = 0, minor = 0;
  RETURN_IF_ERROR(CudaStatus(api,
                             api.device_get_attribute(&major, kCudaComputeCapabilityMajor, ordinal),
                             "cudaDeviceGetAttribute"));
  RETURN_IF_ERROR(CudaStatus(api,
                             api.device_get_attribute(&minor, kCudaComputeCapabilityMinor, ordinal),
                             "cudaDeviceGetAttribute"));
  if (10 * major + minor >= kOldestCapability) return absl::OkStatus();
  return NoDevice(absl::StrCat("GPU ", ordinal, " has compute capability ", major, ".", minor,
                               ", and the kernels are for ", kOldestCapability / 10, ".",
                               kOldestCapability % 10, " and newer"),
                  "--device cpu");
}

// What CUDA itself says, as a reason.
absl::Status Explained(const absl::Status& status) {
  if (status.ok() || ExitOf(status) == WorkerExit::kNoDevice) return status;
  return NoDevice(std::string(status.message()), "regroup-worker check-gpu");
}

}  // namespace

absl::StatusOr<ComputeDevice> ComputeDevice::ChooseCuda(const DeviceRequest& request,
                                                        const CudaBuild& build) {
  const CudaApi& api = build.runtime;
  int driver = 0, runtime = 0, count = 0;
  RETURN_IF_ERROR(Explained(CheckDriver(api, driver, runtime)));
  const int error = api.get_device_count(&count);
  if (error == kCudaErrorNoDevice) count = 0;
  if (error != kCudaSuccess && error != kCudaErrorNoDevice)
    return Explained(CudaStatus(api, error, "cudaGetDeviceCount"));
  const bool shared = request.transport == Transport::kHost && count > 0;
  const int ordinal = shared ? request.device_rank % count : request.device_rank;
  RETURN_IF_ERROR(Explained(CheckGpu(api, ordinal, count)));
  absl::StatusOr<NcclApi> nccl = absl::NotFoundError("");
  const bool looks = request.transport == Transport::kNccl ||
                     (request.transport == Transport::kAuto && !request.alone);
  if (looks) nccl = FindNccl(build.nccl_places);
  if (!nccl.ok() && looks && MustBeCuda(request)) {
    return NoDevice(
        std::string(nccl.status().message()),
        absl::StrCat("pip install nvidia-nccl-cu", runtime / 1000, ", or --transport host"));
  }
  RasPlace ras;
  if (nccl.ok()) ras = ChooseRasPlace(nccl->version);  // Before CUDA has threads.
  absl::StatusOr<std::unique_ptr<CudaDevice>> device = CudaDevice::Create(api, ordinal);
  if (!device.ok()) return Explained(device.status());
  (*device)->UseGraphs(request.cuda_graphs);
  ComputeDevice made(request, build.kernels);
  made.words_ = absl::StrCat("training on GPU ", ordinal, " of ", count, ", by CUDA ",
                             VersionName(runtime), " and a driver for CUDA ", VersionName(driver));
  if (nccl.ok()) {
    absl::StrAppend(&made.words_, ", with NCCL ", NcclVersionName(nccl->version), " (", nccl->path,
                    ")");
    made.nccl_ = std::make_unique<NcclApi>(*std::move(nccl));
    made.ras_ = std::move(ras);
  } else if (!request.alone) {
    absl::StrAppend(&made.words_, "; tensors go through the host",
                    nccl.status().message().empty() ? "" : ": ", nccl.status().message());
  }
  made.cuda_ = device->get();
  made.device_ = *std::move(device);
  made.UseCublasLt(build.cublas_lt_places);
  return made;
}

void ComputeDevice::UseCublasLt(const std::vector<std::string>& places) {
  const absl::StatusOr<CublasLt*> used =
      FindLibrary("cuBLASLt", places, [&](const std::string& path) -> absl::StatusOr<CublasLt*> {
        ASSIGN_OR_RETURN(const CublasLtApi api, OpenCublasLt(path));
        ASSIGN_OR_RETURN(std::unique_ptr<CublasLt> products, CublasLt::Create(api));
        cuda_->SetProducts(std::move(products));
        RETURN_IF_ERROR(CublasLt::Check(*cuda_));
        return cuda_->products();
      });
  if (used.ok()) {
    return absl::StrAppend(&words_, "; products by ", (*used)->name(), " (", (*used)->path(), ")",
                           (*used)->has_slopes() ? "" : ", but for those by GELU's slope");
  }
  cuda_->SetProducts(nullptr);
  absl::StrAppend(&words_, "; products by own kernels, which are slower: ",
                  absl::IsNotFound(used.status())
                      ? "no cuBLASLt was found, which comes with CUDA and with PyTorch"
                      : used.status().message());
}

std::string ComputeDevice::products() const {
  if (!is_cuda() || cuda_->products() == nullptr) return "own kernels";
  return absl::StrCat(cuda_->products()->name(), cuda_->products()->has_slopes() ? "" : " in part");
}

ComputeDevice ComputeDevice::Cpu(const DeviceRequest& request, std::string words) {
  ComputeDevice made(request, KernelTablesOf(request.isa));
  made.device_ = std::make_unique<HostDevice>();
  made.words_ = std::move(words);
  return made;
}

absl::StatusOr<ComputeDevice> ComputeDevice::Choose(const DeviceRequest& request,
                                                    const CudaBuild* build) {
  if (request.device == DeviceChoice::kCpu) return Cpu(request, "");
  absl::StatusOr<ComputeDevice> cuda =
      build != nullptr
          ? ChooseCuda(request, *build)
          : NoDevice("this program was built without nvcc, so it has no kernels for GPUs",
                     "a build where nvcc is found, or --device cpu");
  if (cuda.ok() || MustBeCuda(request)) return cuda;
  return Cpu(request, absl::StrCat("training on the CPU: ", PartsOf(cuda.status()).because));
}

absl::Status ComputeDevice::AgreeOnLeast(Group& ranks) {
  const bool chooses = request_.device == DeviceChoice::kAuto && !MustBeCuda(request_),
             chooses_transport = chooses && request_.transport == Transport::kAuto;
  const std::int64_t mine = ranks.rank() + 1;
  // Of a GPU, NCCL and cuBLASLt: the highest rank of those that lack it, then of those that have
  // it.
  enum : std::uint8_t { kGpu, kNccl, kProducts, kKinds };
  std::array<std::int64_t, 2 * kKinds> ranks_that{};
  const auto say = [&](int kind, bool has) {
    ranks_that[static_cast<std::size_t>(has ? kKinds + kind : kind)] = mine;
  };
  if (chooses) say(kGpu, is_cuda());
  if (chooses_transport) say(kNccl, nccl_ != nullptr);
  if (is_cuda()) say(kProducts, cuda_->products() != nullptr);
  RETURN_IF_ERROR(ranks.AllReduce(ranks_that, Reduction::kMax));
  const std::span<const std::int64_t> lacks(ranks_that.data(), kKinds);
  for (std::size_t kind = 0; kind < kKinds; ++kind)
    holds_back_ = holds_back_ || (lacks[kind] == mine && ranks_that[kKinds + kind] > 0);
  if (chooses && is_cuda() && lacks[kGpu] > 0) {
    *this = Cpu(request_, absl::StrCat("training on the CPU, as rank ", lacks[kGpu] - 1,
                                       " does, which says why"));
  } else if (chooses_transport && is_cuda() && nccl_ && lacks[kNccl] > 0) {
    nccl_.reset();
    absl::StrAppend(&words_, "; but tensors go through the host: rank ", lacks[kNccl] - 1,
                    " has no NCCL");
  }
  if (is_cuda() && cuda_->products() != nullptr && lacks[kProducts] > 0) {
    cuda_->SetProducts(nullptr);
    absl::StrAppend(&words_, "; but products by own kernels, as those of rank ",
                    lacks[kProducts] - 1);
  }
  return absl::OkStatus();
}

absl::StatusOr<Collectives*> ComputeDevice::Connect(Communicator& ranks,
                                                    const NcclOptions& options) {
  if (!is_cuda()) return &ranks;
  if (nccl_) {
    NcclOptions with = options;
    with.ras_address = ras_.address;
    ASSIGN_OR_RETURN(tensors_, NcclCommunicator::Create(ranks, *cuda_, *nccl_, with));
  } else {
    ASSIGN_OR_RETURN(tensors_, HostStagedCommunicator::Create(ranks, *cuda_));
  }
  return tensors_.get();
}

}  // namespace regroup::worker
