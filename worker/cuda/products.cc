#include "worker/cuda/products.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/cuda/cuda_device.h"

namespace regroup::worker {
namespace {

constexpr std::uint32_t kAlignment = 16;
constexpr std::int64_t kMultipleOfAux = 8;
// A training has a few dozen; of whoever has more, each is asked for again now and then.
constexpr std::size_t kMostWays = 4096;

int TypeOf(DType type) {
  switch (type) {
    case DType::kF32: return kCudaR32F;
    case DType::kBF16: return kCudaR16BF;
    case DType::kF16: return kCudaR16F;
  }
  return kCudaR32F;
}

bool IsAligned(const void* at) { return reinterpret_cast<std::uintptr_t>(at) % kAlignment == 0; }

}  // namespace

// The library's matrices lie column by column, so ours are their own transposes to it: it is asked
// for c^T (n, m) = b^T · a^T, and b is what it calls A.
struct CublasLt::Way {
  explicit Way(const CublasLtApi& api) : api(api) {}
  ~Way() {
    if (desc != nullptr) (void)api.desc_destroy(desc);
    for (CublasLtLayout layout : {a, b, c}) {
      if (layout != nullptr) (void)api.layout_destroy(layout);
    }
  }
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;

  const CublasLtApi& api;
  CublasLtDesc desc = nullptr;
  CublasLtLayout a = nullptr, b = nullptr, c = nullptr;
  CublasLtHeuristic found;
};

CublasLt::CublasLt(const CublasLtApi& api) : api_(api) {}

absl::StatusOr<std::unique_ptr<CublasLt>> CublasLt::Create(const CublasLtApi& api) {
  std::unique_ptr<CublasLt> made(new CublasLt(api));
  const int error = api.create(&made->handle_);
  if (error == kCublasSuccess) return made;
  made->handle_ = nullptr;
  return absl::UnavailableError(absl::StrCat("cublasLtCreate of ", api.path, ": ",
                                             api.get_status_string(error), " (cuBLAS status ",
                                             error, ")"));
}

CublasLt::~CublasLt() {
  ways_.clear();
  if (handle_ != nullptr) (void)api_.destroy(handle_);
}

std::string CublasLt::name() const {
  return absl::StrCat("cuBLASLt ", CublasLtVersionName(api_.version));
}

std::shared_ptr<const CublasLt::Way> CublasLt::Find(const MatrixProduct& product, bool aligned) {
  auto way = std::make_shared<Way>(api_);
  bool ok = product.x == nullptr || product.n % kMultipleOfAux == 0;
  const auto check = [&](int error) { ok = ok && error == kCublasSuccess; };
  if (ok) check(api_.desc_create(&way->desc, kCublasCompute32F, kCudaR32F));
  const auto layout = [&](CublasLtLayout& made, DType type, std::int64_t row_count,
                          std::int64_t column_count) {
    if (ok) {
      check(api_.layout_create(&made, TypeOf(type), static_cast<std::uint64_t>(row_count),
                               static_cast<std::uint64_t>(column_count), row_count));
    }
  };
  const std::int64_t m = product.m, n = product.n, k = product.k;
  layout(way->a, product.type, product.b_transposed ? k : n, product.b_transposed ? n : k);
  layout(way->b, product.type, product.a_transposed ? m : k, product.a_transposed ? k : m);
  layout(way->c, product.result, n, m);
  const auto describe = [&](int attribute, auto value) {
    if (ok) check(api_.desc_set(way->desc, attribute, &value, sizeof value));
  };
  describe(kCublasLtDescTransA, product.b_transposed ? kCublasOpT : kCublasOpN);
  describe(kCublasLtDescTransB, product.a_transposed ? kCublasOpT : kCublasOpN);
  describe(kCublasLtDescEpilogue, product.bias != nullptr ? kCublasLtEpilogueBias
                                  : product.x != nullptr  ? kCublasLtEpilogueDGelu
                                                          : kCublasLtEpilogueDefault);
  const auto alignment = [&](DType type) {
    return aligned ? kAlignment : static_cast<std::uint32_t>(SizeOf(type));
  };
  // An address says here how those to come are aligned.
  if (product.bias != nullptr)
    describe(kCublasLtDescBiasPointer, std::uint64_t{alignment(product.result)});
  if (product.x != nullptr) {
    describe(kCublasLtDescAuxPointer, std::uint64_t{alignment(product.result)});
    describe(kCublasLtDescAuxLd, n);
  }
  CublasLtPreference preference = nullptr;
  if (ok) check(api_.preference_create(&preference));
  const auto prefer = [&](int attribute, auto value) {
    if (ok) check(api_.preference_set(preference, attribute, &value, sizeof value));
  };
  prefer(kCublasLtPrefMaxWorkspaceBytes, std::uint64_t{kWorkspaceBytes});
  prefer(kCublasLtPrefReductionSchemeMask, kCublasLtReductionComputeType);
  prefer(kCublasLtPrefMinAlignmentABytes, alignment(product.type));
  prefer(kCublasLtPrefMinAlignmentBBytes, alignment(product.type));
  prefer(kCublasLtPrefMinAlignmentCBytes, alignment(product.result));
  prefer(kCublasLtPrefMinAlignmentDBytes, alignment(product.result));
  int count = 0;
  if (ok) {
    check(api_.get_heuristic(handle_, way->desc, way->a, way->b, way->c, way->c, preference, 1,
                             &way->found, &count));
  }
  if (preference != nullptr) (void)api_.preference_destroy(preference);
  if (!ok || count == 0 || way->found.state != kCublasSuccess) return nullptr;
  return way;
}

bool CublasLt::Multiply(CudaStream& stream, const MatrixProduct& product) {
  CHECK(product.result == product.type || (product.bias == nullptr && product.x == nullptr));
  CHECK(product.x == nullptr || (product.bias == nullptr && !product.add));
  if (product.m == 0 || product.n == 0) return true;
  if (product.k == 0 || (product.x != nullptr && !slopes_)) return false;
  const bool aligned = IsAligned(product.a) && IsAligned(product.b) && IsAligned(product.c) &&
                       IsAligned(product.bias) && IsAligned(product.x);
  const Key key(product.m, product.n, product.k, product.type, product.result, product.a_transposed,
                product.b_transposed, product.bias != nullptr, product.add, product.x != nullptr,
                aligned);
  auto known = ways_.find(key);
  if (known == ways_.end()) {
    if (ways_.size() >= kMostWays) ways_.clear();
    known = ways_.emplace(key, Find(product, aligned)).first;
  }
  const std::shared_ptr<const Way> way = known->second;
  if (way == nullptr) return false;
  std::string likeness;
  const auto add = [&](const auto& number) {
    likeness.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  for (const std::int64_t size : {product.m, product.n, product.k}) add(size);
  for (const void* at : {product.a, product.b, product.bias, product.x}) add(at);
  add(product.c);
  for (const DType type : {product.type, product.result}) add(type);
  for (const bool flag : {product.a_transposed, product.b_transposed, product.add}) add(flag);
  stream.Defer(likeness, [=, this, &stream] { return Put(stream, product, *way); });
  return true;
}

absl::Status CublasLt::Put(CudaStream& stream, const MatrixProduct& product, const Way& way) {
  int error = kCublasSuccess;
  const auto point = [&](int attribute, const void* at) {
    if (at != nullptr && error == kCublasSuccess)
      error = api_.desc_set(way.desc, attribute, &at, sizeof at);
  };
  point(kCublasLtDescBiasPointer, product.bias);
  point(kCublasLtDescAuxPointer, product.x);
  const float alpha = 1, beta = product.add ? 1 : 0;
  if (error == kCublasSuccess) {
    error = api_.matmul(handle_, way.desc, &alpha, product.b, way.a, product.a, way.b, &beta,
                        product.c, way.c, product.c, way.c, &way.found.algo,
                        stream.workspace().data(), stream.workspace().size(), stream.handle());
  }
  if (error == kCublasSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "cublasLtMatmul of (", product.m, ", ", product.k, ") and (", product.k, ", ", product.n,
      "): ", api_.get_status_string(error), " (cuBLAS status ", error, ")"));
}

namespace {

constexpr std::size_t kOperandBytes = 4096;  // At most.

// Whole numbers so small that every type holds all sums; other ones in each row and column.
float NumberAt(std::int64_t row, std::int64_t column) {
  return static_cast<float>((row * 7 + column * 3 + row * column) % 5 - 2);
}

template <typename Number>
void Put(void* at, std::int64_t i, Number number) {
  std::memcpy(static_cast<std::byte*>(at) + i * std::int64_t{sizeof number}, &number,
              sizeof number);
}
void PutAs(DType type, void* at, std::int64_t i, float number) {
  switch (type) {
    case DType::kF32: return Put(at, i, number);
    case DType::kBF16: return Put(at, i, BFloat16(number));
    case DType::kF16: return Put(at, i, Half(number));
  }
}

// (rows, columns), or lying as (columns, rows).
void Fill(DType type, void* at, std::int64_t rows, std::int64_t columns, bool transposed) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j)
      PutAs(type, at, transposed ? j * rows + i : i * columns + j, NumberAt(i, j));
  }
}

double GeluSlope(double x) {
  constexpr double kScale = 0.7978845608028654, kCubic = 0.044715;  // sqrt(2 / pi).
  const double t = std::tanh(kScale * (x + kCubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kScale * (1 + 3 * kCubic * x * x);
}

float GetAs(DType type, const void* from, std::int64_t i) {
  const auto get = [&]<typename Number>(Number number) {
    std::memcpy(&number, static_cast<const std::byte*>(from) + i * std::int64_t{sizeof number},
                sizeof number);
    return static_cast<float>(number);
  };
  return type == DType::kF32 ? get(float{}) : type == DType::kBF16 ? get(BFloat16{}) : get(Half{});
}

// What a kind of product is made of; with GELU's slope, it is not a whole number.
struct Kind {
  DType type, result;
  bool a_transposed = false, b_transposed = false, bias = false, add = false, slope = false;
};

constexpr std::size_t kOperands = 5;

// Where operands are made and looked at, and where the device has them.
struct Operands {
  std::byte *host, *device;
};

absl::Status CheckOne(CudaStream& stream, const Operands& operands, const Kind& kind) {
  constexpr std::int64_t m = 16, n = 32, k = 24;
  const auto given = [&](std::size_t i) { return operands.host + i * kOperandBytes; };
  const auto there = [&](std::size_t i) { return operands.device + i * kOperandBytes; };
  Fill(kind.type, given(0), m, k, kind.a_transposed);
  Fill(kind.type, given(1), k, n, kind.b_transposed);
  Fill(kind.type, given(2), 1, n, false);
  Fill(kind.result, given(3), m, n, false);
  Fill(kind.type, given(4), m, n, false);
  CublasLt& library = *stream.products();
  stream.Copy(operands.device, operands.host, kOperands * kOperandBytes);
  const bool has_way = library.Multiply(stream, {.type = kind.type,
                                                 .result = kind.result,
                                                 .m = m,
                                                 .n = n,
                                                 .k = k,
                                                 .a = there(0),
                                                 .b = there(1),
                                                 .a_transposed = kind.a_transposed,
                                                 .b_transposed = kind.b_transposed,
                                                 .bias = kind.bias ? there(2) : nullptr,
                                                 .c = there(3),
                                                 .add = kind.add,
                                                 .x = kind.slope ? there(4) : nullptr});
  stream.Copy(given(3), there(3), kOperandBytes);
  RETURN_IF_ERROR(stream.Await());
  const auto wrong = [&](const std::string& how) {
    return absl::FailedPreconditionError(absl::StrCat(
        library.name(), " (", library.path(), ") ", how, " on this GPU: ", NameOf(kind.type),
        " (16, 24) and (24, 32)", kind.a_transposed ? ", a transposed" : "",
        kind.b_transposed ? ", b transposed" : "", kind.bias ? ", with bias" : "",
        kind.add ? ", added" : "", kind.slope ? ", by GELU's slope" : "", ", to ",
        NameOf(kind.result)));
  };
  if (!has_way) return wrong("has no way to multiply");
  // A slope is a difference of numbers about 1, some of which a GPU approximates.
  const double near = !kind.slope ? 0 : kind.type == DType::kF32 ? 4e-3 : 2e-2;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = (kind.add ? NumberAt(i, j) : 0) + (kind.bias ? NumberAt(0, j) : 0);
      for (std::int64_t d = 0; d < k; ++d) sum += NumberAt(i, d) * NumberAt(d, j);
      const double is = GetAs(kind.result, given(3), i * n + j),
                   expected = kind.slope ? sum * GeluSlope(NumberAt(i, j)) : sum;
      if (std::abs(is - expected) > near * std::max(1.0, std::abs(sum)) || std::isnan(is))
        return wrong(absl::StrCat("says that ", expected, " is ", is));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CublasLt::Check(CudaDevice& device) {
  constexpr std::size_t kBytes = kOperands * kOperandBytes;
  ASSIGN_OR_RETURN(Arena host, device.Allocate(MemoryKind::kShared, kBytes));
  ASSIGN_OR_RETURN(Arena memory, device.Allocate(MemoryKind::kDevice, kBytes));
  const Operands operands{host.Take<std::byte>(kBytes).data(),
                          memory.Take<std::byte>(kBytes).data()};
  const std::unique_ptr<Stream> made = device.NewStream(StreamKind::kCompute);
  auto& stream = static_cast<CudaStream&>(*made);
  RETURN_IF_ERROR(stream.Await());  // It may lack its workspace, and has no products then.
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const bool add : {false, true}) {
      for (const bool transposed : {false, true}) {
        for (const bool bias : {false, true})
          RETURN_IF_ERROR(CheckOne(stream, operands, {type, type, false, transposed, bias, add}));
      }
      RETURN_IF_ERROR(CheckOne(stream, operands, {type, DType::kF32, true, false, false, add}));
    }
    for (const bool transposed : {false, true}) {
      const absl::Status status =
          CheckOne(stream, operands, {type, type, false, transposed, false, false, /*slope=*/true});
      if (absl::IsFailedPrecondition(status)) {
        stream.products()->slopes_ = false;
      } else if (!status.ok()) {
        return status;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace regroup::worker
