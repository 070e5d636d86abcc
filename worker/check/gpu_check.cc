#include "worker/check/gpu_check.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/check/product_kernel.h"

namespace regroup::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kRows = 512, kThreads = 128;
constexpr std::chrono::milliseconds kLookAgain{50};

// Small whole numbers: every sum is exact.
float Left(unsigned row, unsigned k) { return static_cast<float>((7 * row + 3 * k) % 5); }
float Right(unsigned k, unsigned column) { return static_cast<float>((5 * k + 2 * column) % 7); }

constexpr unsigned kRowsBeforeTheyRepeat = 5;

// Row after row.
std::vector<float> Expected() {
  std::vector<float> product(static_cast<std::size_t>(kRows) * kRows);
  for (unsigned row = 0; row < kRows; ++row) {
    for (unsigned column = 0; column < kRows; ++column) {
      float& sum = product[static_cast<std::size_t>(row) * kRows + column];
      if (row >= kRowsBeforeTheyRepeat) {
        sum = product[static_cast<std::size_t>(row - kRowsBeforeTheyRepeat) * kRows + column];
      } else {
        for (unsigned k = 0; k < kRows; ++k) sum += Left(row, k) * Right(k, column);
      }
    }
  }
  return product;
}

class Product {
 public:
  explicit Product(const CudaDriver& cuda) : cuda_(cuda), expected_(Expected()) {
    for (unsigned i = 0; i < kRows; ++i) {
      for (unsigned k = 0; k < kRows; ++k) {
        left_.push_back(Left(i, k));
        right_.push_back(Right(i, k));
      }
    }
  }

  // On that device. The time of one product.
  absl::StatusOr<std::chrono::nanoseconds> Compute(int ordinal) const {
    CudaDriver::Device device = 0;
    void* context = nullptr;
    RETURN_IF_ERROR(Done(cuda_.device_get(&device, ordinal), "it cannot be opened"));
    RETURN_IF_ERROR(Done(cuda_.context_retain(&context, device), "it cannot be used"));
    absl::StatusOr<std::chrono::nanoseconds> took = In(context);
    cuda_.context_release(device);
    return took;
  }

 private:
  absl::Status Done(int code, const char* what) const {
    if (code == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(what, ": ", cuda_.Words(code)));
  }

  absl::StatusOr<std::chrono::nanoseconds> In(void* context) const {
    constexpr std::size_t kBytes = sizeof(float) * kRows * kRows;
    void *module = nullptr, *function = nullptr;
    CudaDriver::Address a = 0, b = 0, c = 0;
    RETURN_IF_ERROR(Done(cuda_.context_set(context), "it cannot be used"));
    RETURN_IF_ERROR(Done(cuda_.module_load(&module, kProductPtx), "it loads no program"));
    RETURN_IF_ERROR(
        Done(cuda_.module_function(&function, module, kProductName), "it loads no program"));
    for (CudaDriver::Address* matrix : {&a, &b, &c})
      RETURN_IF_ERROR(Done(cuda_.allocate(matrix, kBytes), "it has no memory left"));
    RETURN_IF_ERROR(Done(cuda_.copy_in(a, left_.data(), kBytes), "memory cannot be copied to it"));
    RETURN_IF_ERROR(Done(cuda_.copy_in(b, right_.data(), kBytes), "memory cannot be copied to it"));
    unsigned rows = kRows;
    void* arguments[] = {&a, &b, &c, &rows};
    Clock::time_point began;
    for (int i = 0; i < 2; ++i) {  // The first one wakes it up.
      began = Clock::now();
      RETURN_IF_ERROR(Done(cuda_.launch(function, (kRows + kThreads - 1) / kThreads, kRows, 1,
                                        kThreads, 1, 1, 0, nullptr, arguments, nullptr),
                           "it computes nothing"));
      RETURN_IF_ERROR(Done(cuda_.synchronize(), "it computes nothing"));
    }
    const auto took = Clock::now() - began;
    std::vector<float> product(expected_.size());
    RETURN_IF_ERROR(
        Done(cuda_.copy_out(product.data(), c, kBytes), "memory cannot be copied from it"));
    const auto wrong =
        std::mismatch(product.begin(), product.end(), expected_.begin()).first - product.begin();
    if (wrong == std::ssize(product)) return took;
    return absl::FailedPreconditionError(
        absl::StrFormat("it computes %g where %g is right (row %d, column %d of a product)",
                        product[static_cast<std::size_t>(wrong)],
                        expected_[static_cast<std::size_t>(wrong)], wrong / kRows, wrong % kRows));
  }

  const CudaDriver& cuda_;
  const std::vector<float> expected_;
  std::vector<float> left_, right_;
};

// A visible device is named by number, or by the begin of its UUID.
const Gpu* Find(const std::vector<Gpu>& gpus, const std::string& name) {
  for (const Gpu& gpu : gpus) {
    if (gpu.id == name || (!gpu.uuid.empty() && gpu.uuid.rfind(name, 0) == 0)) return &gpu;
  }
  return nullptr;
}

// What the driver knows of it; empty: nothing bad.
std::string Fault(Nvml& nvml, const Gpu& gpu, Clock::time_point patience) {
  if (!gpu.trouble.empty()) return gpu.trouble;
  if (gpu.ecc_errors.value_or(0) > 0)
    return absl::StrCat(*gpu.ecc_errors, " uncorrected memory errors; it needs a reset");
  while (true) {
    const std::vector<std::int64_t> pids =
        nvml.ProcessesOn(gpu.id).value_or(std::vector<std::int64_t>());
    if (pids.empty()) return "";
    if (Clock::now() >= patience)
      return absl::StrCat("in use by process ", absl::StrJoin(pids, ", "));
    std::this_thread::sleep_for(kLookAgain);
  }
}

}  // namespace

absl::StatusOr<std::string> CheckGpus(const GpuCheck& check) {
  ASSIGN_OR_RETURN(Nvml nvml, Nvml::Open(check.nvml));
  ASSIGN_OR_RETURN(const std::vector<Gpu> gpus, nvml.Gpus());
  std::vector<std::string> names, faults;
  if (check.visible) {
    ASSIGN_OR_RETURN(const NodeDevices devices, DevicesOfNode(check.visible));
    names = devices.names;
  } else {
    for (const Gpu& gpu : gpus) names.push_back(gpu.id);
  }
  if (names.empty()) {
    return absl::FailedPreconditionError(
        check.visible
            ? absl::StrCat(check.visible->variable, "=", check.visible->value, " names no GPU")
            : "the driver has no GPU");
  }
  std::string kind;
  bool idle = true, counts_errors = true;  // As far as the driver says.
  const Clock::time_point patience = Clock::now() + check.idle;
  for (const std::string& name : names) {
    const Gpu* gpu = Find(gpus, name);
    const std::string fault =
        gpu == nullptr ? "the driver has none of this name" : Fault(nvml, *gpu, patience);
    if (!fault.empty()) faults.push_back(absl::StrCat("GPU ", name, ": ", fault));
    if (gpu == nullptr) continue;
    kind = gpu->name;
    idle = idle && nvml.ProcessesOn(gpu->id);
    counts_errors = counts_errors && gpu->ecc_errors;
  }
  const auto all = [&] { return absl::FailedPreconditionError(absl::StrJoin(faults, "; ")); };
  if (!faults.empty()) return all();
  ASSIGN_OR_RETURN(const CudaDriver cuda, OpenCudaDriver(check.cuda));
  int count = 0;
  for (const int code : {cuda.init(0), cuda.device_count(&count)}) {
    if (code != 0)
      return absl::FailedPreconditionError(absl::StrCat("CUDA cannot be used: ", cuda.Words(code)));
  }
  if (count != std::ssize(names)) {
    return absl::FailedPreconditionError(
        absl::StrCat("CUDA sees ", count, " of ", names.size(), " GPUs"));
  }
  const Product product(cuda);
  std::chrono::nanoseconds longest{};
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const absl::StatusOr<std::chrono::nanoseconds> took = product.Compute(ordinal);
    std::string fault(took.status().message());
    if (took.ok() && *took > check.product)
      fault = absl::StrFormat("a product took %.2f s, %.2f s are allowed", 1e-9 * took->count(),
                              1e-3 * check.product.count());
    if (!fault.empty())
      faults.push_back(absl::StrCat("GPU ", names[static_cast<std::size_t>(ordinal)], ": ", fault));
    if (took.ok()) longest = std::max(longest, *took);
  }
  if (!faults.empty()) return all();
  return absl::StrFormat("%d × %s%s%s; a product takes up to %.2f ms", count, kind,
                         idle ? ", idle" : "", counts_errors ? ", without memory errors" : "",
                         1e-6 * longest.count());
}

}  // namespace regroup::worker
