#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/cuda/cublas_lt_api.h"
#include "worker/tensor/dtype.h"

namespace regroup::worker {

class CudaDevice;
class CudaStream;

// c (m, n) = a (m, k) · b (k, n) [+ bias (n)] [+ c], row by row and dense, but what is transposed
// lies as (k, m) or (n, k). Or c = a · b · gelu'(x (m, n)), with neither. Sums are floats, rounded
// once. REQUIRES: with a bias or x, `result` is `type`.
struct MatrixProduct {
  DType type = DType::kF32;    // Of a, b, bias and x.
  DType result = DType::kF32;  // Of c: `type`, or kF32.
  std::int64_t m = 0, n = 0, k = 0;
  const void *a = nullptr, *b = nullptr;
  bool a_transposed = false, b_transposed = false;
  const void* bias = nullptr;
  void* c = nullptr;
  bool add = false;
  const void* x = nullptr;
};

// Products of one GPU by cuBLASLt, on its tensor cores where the numbers have 16 bits. How each
// shape is multiplied is asked for once. Equal arguments give equal bits by one version of the
// library on GPUs of one kind, wherever the operands lie, as long as they all begin at a multiple
// of 16 bytes. Execution thread only; outlives the streams that it is used on.
class CublasLt {
 public:
  // Of the GPU that the calling thread uses; `api` is copied. Unavailable, with what the library
  // says.
  static absl::StatusOr<std::unique_ptr<CublasLt>> Create(const CublasLtApi& api);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  std::string name() const;  // "cuBLASLt 13.1.0".
  const std::string& path() const { return api_.path; }

  // Puts it on the stream, which has a workspace, at the latest as it is submitted. False: the
  // library has no way to multiply these, and nothing is put. What fails is the stream.
  bool Multiply(CudaStream& stream, const MatrixProduct& product);

  // Products of every kind whose results are known, on a stream of that device, whose products are
  // this. Failed precondition, with the first that differs or that it has no way for; else what the
  // stream says. Where GELU's slopes alone are such, it has no way for those from here on.
  static absl::Status Check(CudaDevice& device);
  static constexpr int kChecked = 36;  // So many products.
  bool has_slopes() const { return slopes_; }

  static constexpr std::size_t kWorkspaceBytes = 32 << 20;  // As cuBLAS itself has it on sm_90.

 private:
  // What decides how it is done: sizes, types, order, bias, adds, x, aligned.
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, DType, DType, bool, bool, bool,
                         bool, bool, bool>;
  struct Way;
  explicit CublasLt(const CublasLtApi& api);
  std::shared_ptr<const Way> Find(const MatrixProduct& product, bool aligned);
  absl::Status Put(CudaStream& stream, const MatrixProduct& product, const Way& way);

  const CublasLtApi api_;
  CublasLtHandle handle_ = nullptr;
  std::map<Key, std::shared_ptr<const Way>> ways_;  // Null: there is none.
  bool slopes_ = true;
};

}  // namespace regroup::worker
