#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>
#include <utility>

#include "tests/worker/fake_gpu/fake_state.h"
#include "worker/tensor/dtype.h"

// A cuBLASLt that multiplies on the CPU, in the order of its stream, and refuses what the real one
// forbids or leaves undefined.
namespace fake {
namespace {

using regroup::worker::BFloat16;
using regroup::worker::Half;

constexpr int kSuccess = 0, kNotInitialized = 1, kInvalidValue = 7, kNotSupported = 15,
              kExecutionFailed = 13;
constexpr int kR32F = 0, kR16F = 2, kR16BF = 14, kCompute32F = 68;
constexpr unsigned kBias = 4, kDGelu = 192;

struct Handle {
  int device;
};
struct Desc {
  int op_a = 0, op_b = 0;
  unsigned epilogue = 1;
  const void *bias = nullptr, *aux = nullptr;
  std::int64_t aux_leading = 0;
};
struct Layout {
  int type;
  std::uint64_t rows, columns;
  std::int64_t leading;
};
struct Preference {
  std::uint64_t workspace = 0;
  unsigned reduction = 7, alignment[4] = {256, 256, 256, 256};
};

struct Library {
  std::mutex mutex;
  std::size_t version = 130100;
  FakeProducts plays = FakeProducts::kRight;
  int right = 0;    // So many more, before those that it spoils.
  int silent = -1;  // So many more; below 0: all.
  bool said = false, said_slope = false;
  std::set<void*> live;
  std::map<std::string, int> calls;
};
Library& library() {
  static auto* one = new Library;
  return *one;
}

void Count(const char* call) {
  const std::scoped_lock lock(library().mutex);
  ++library().calls[call];
}

// Of the products after so many: that there are such, and such by slopes.
void SayOnce(bool slope) {
  const std::scoped_lock lock(library().mutex);
  if (library().silent < 0 || library().silent-- > 0) return;
  library().silent = 0;
  bool& said = slope ? library().said_slope : library().said;
  if (said) return;
  said = true;
  std::fputs(slope ? "fake cuBLASLt: a product by slopes\n" : "fake cuBLASLt: a product\n", stdout);
  std::fflush(stdout);
}

bool Lives(void* object, const char* call) {
  {
    const std::scoped_lock lock(library().mutex);
    if (library().live.count(object) != 0) return true;
  }
  Refuse("cublasLt object", std::string(call) + " with what was not made, or is destroyed");
  return false;
}

template <typename Object>
int Make(void** out, Object object) {
  auto* made = new Object(object);
  const std::scoped_lock lock(library().mutex);
  library().live.insert(made);
  *out = made;
  return kSuccess;
}

template <typename Object>
int Destroy(void* object, const char* call) {
  if (!Lives(object, call)) return kInvalidValue;
  const std::scoped_lock lock(library().mutex);
  library().live.erase(object);
  delete static_cast<Object*>(object);
  return kSuccess;
}

template <typename Value>
int Read(const void* from, std::size_t bytes, Value& to, const char* call) {
  if (bytes != sizeof to) {
    Refuse("attribute size", std::string(call) + " with " + std::to_string(bytes) + " bytes for " +
                                 std::to_string(sizeof to));
    return kInvalidValue;
  }
  std::memcpy(&to, from, bytes);
  return kSuccess;
}

std::size_t SizeOf(int type) { return type == kR32F ? 4 : 2; }
float NumberAt(int type, const void* at, std::uint64_t i) {
  if (type == kR32F) return static_cast<const float*>(at)[i];
  return type == kR16BF ? float(static_cast<const BFloat16*>(at)[i])
                        : float(static_cast<const Half*>(at)[i]);
}
void Put(int type, void* at, std::uint64_t i, float number) {
  if (type == kR32F) static_cast<float*>(at)[i] = number;
  if (type == kR16BF) static_cast<BFloat16*>(at)[i] = BFloat16(number);
  if (type == kR16F) static_cast<Half*>(at)[i] = Half(number);
}

// Bytes from the first to the last element.
std::size_t BytesOf(const Layout& layout) {
  return ((layout.columns - 1) * static_cast<std::uint64_t>(layout.leading) + layout.rows) *
         SizeOf(layout.type);
}

// d (m, n) = op(a) · op(b), all of which lie column by column.
struct Problem {
  Desc desc;
  Layout a, b, c, d;
  std::uint64_t m() const { return d.rows; }
  std::uint64_t n() const { return d.columns; }
  std::uint64_t k() const { return desc.op_a == 0 ? a.columns : a.rows; }

  const char* Wrong() const {
    for (const Layout& layout : {a, b, c, d}) {
      if (layout.type != kR32F && layout.type != kR16F && layout.type != kR16BF) return "type";
      if (layout.rows == 0 || layout.columns == 0) return "a matrix of nothing";
      if (layout.leading < static_cast<std::int64_t>(layout.rows)) return "leading dimension";
    }
    if (a.type != b.type || c.type != d.type) return "two types";
    if (d.type != a.type && d.type != kR32F) return "type of the result";
    if ((desc.op_a == 0 ? a.rows : a.columns) != m()) return "rows of a";
    if ((desc.op_b == 0 ? b.columns : b.rows) != n()) return "columns of b";
    if ((desc.op_b == 0 ? b.rows : b.columns) != k()) return "k of b";
    if (c.rows != d.rows || c.columns != d.columns) return "shape of c";
    if (desc.epilogue != 1 && desc.epilogue != kBias && desc.epilogue != kDGelu) return "epilogue";
    if (desc.epilogue == kDGelu && (desc.aux_leading % 8 != 0 || desc.aux == nullptr ||
                                    desc.aux_leading < static_cast<std::int64_t>(d.rows)))
      return "aux";
    return nullptr;
  }
  // Equal ones are done by the same algorithm.
  std::uint64_t Hash() const {
    std::uint64_t hash = 14695981039346656037u;
    const auto mix = [&](std::uint64_t x) { hash = (hash ^ x) * 1099511628211u; };
    for (const Layout& layout : {a, b, c, d}) {
      mix(static_cast<std::uint64_t>(layout.type));
      mix(layout.rows);
      mix(layout.columns);
      mix(static_cast<std::uint64_t>(layout.leading));
    }
    mix(static_cast<std::uint64_t>(desc.op_a));
    mix(static_cast<std::uint64_t>(desc.op_b));
    mix(desc.epilogue);
    return hash;
  }
};

bool ProblemOf(void* desc, void* a, void* b, void* c, void* d, const char* call, Problem& out) {
  for (void* object : {desc, a, b, c, d}) {
    if (!Lives(object, call)) return false;
  }
  out = {*static_cast<Desc*>(desc), *static_cast<Layout*>(a), *static_cast<Layout*>(b),
         *static_cast<Layout*>(c), *static_cast<Layout*>(d)};
  const char* wrong = out.Wrong();
  if (wrong != nullptr) Refuse(std::string("product: ") + wrong, call);
  return wrong == nullptr;
}

struct Algo {
  std::uint64_t hash, workspace, alignment[4], bias_alignment, aux_alignment;
};
static_assert(sizeof(Algo) == 64);
struct Heuristic {
  Algo algo;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

float GeluSlope(float x) {
  const float u = 0.79788456f * (x + 0.044715f * x * x * x), t = std::tanh(u);
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.79788456f * (1 + 0.134145f * x * x);
}

void Compute(const Problem& p, float alpha, const void* a, const void* b, float beta, const void* c,
             void* d, bool wrong) {
  const auto at = [](const Layout& layout, bool transposed, std::uint64_t i, std::uint64_t j) {
    const auto leading = static_cast<std::uint64_t>(layout.leading);
    return transposed ? i * leading + j : j * leading + i;
  };
  for (std::uint64_t j = 0; j < p.n(); ++j) {
    for (std::uint64_t i = 0; i < p.m(); ++i) {
      float sum = 0;
      for (std::uint64_t l = 0; l < p.k(); ++l) {
        sum += NumberAt(p.a.type, a, at(p.a, p.desc.op_a != 0, i, l)) *
               NumberAt(p.b.type, b, at(p.b, p.desc.op_b != 0, l, j));
      }
      sum *= alpha;
      if (p.desc.epilogue == kDGelu) {
        const auto leading = static_cast<std::uint64_t>(p.desc.aux_leading);
        sum *= GeluSlope(NumberAt(p.d.type, p.desc.aux, j * leading + i));
      }
      if (beta != 0) sum += beta * NumberAt(p.c.type, c, at(p.c, false, i, j));
      if (p.desc.epilogue == kBias) sum += NumberAt(p.d.type, p.desc.bias, i);
      if (wrong && i + 1 == p.m() && j + 1 == p.n()) sum += 1;
      Put(p.d.type, d, at(p.d, false, i, j), sum);
    }
  }
}

bool Overlap(const void* a, std::size_t of_a, const void* b, std::size_t of_b) {
  const auto *x = static_cast<const char*>(a), *y = static_cast<const char*>(b);
  return x < y + of_b && y < x + of_a;
}

// What the memory of a call must be, for what its algorithm was asked for.
const char* WrongMemory(const Problem& p, const Algo& algo, const void* a, const void* b,
                        const void* c, const void* d, const void* workspace, std::size_t bytes,
                        int device) {
  const struct {
    const void* at;
    const Layout& layout;
  } all[] = {{a, p.a}, {b, p.b}, {c, p.c}, {d, p.d}};
  for (std::size_t i = 0; i < 4; ++i) {
    if (!IsReachable(all[i].at, BytesOf(all[i].layout), device)) return "memory of an operand";
    if (reinterpret_cast<std::uintptr_t>(all[i].at) % algo.alignment[i] != 0)
      return "alignment that was not said";
  }
  if (Overlap(a, BytesOf(p.a), d, BytesOf(p.d)) || Overlap(b, BytesOf(p.b), d, BytesOf(p.d)))
    return "a result over what is multiplied";
  if (c != d && Overlap(c, BytesOf(p.c), d, BytesOf(p.d))) return "a result over what is added";
  const std::size_t of_bias = p.m() * SizeOf(p.d.type);
  const Layout aux{p.d.type, p.d.rows, p.d.columns, p.desc.aux_leading};
  const auto wrong = [&](const void* at, std::size_t size, std::uint64_t alignment) {
    return !IsReachable(at, size, device) || Overlap(at, size, d, BytesOf(p.d)) ||
           reinterpret_cast<std::uintptr_t>(at) % alignment != 0;
  };
  if (p.desc.epilogue == kBias && wrong(p.desc.bias, of_bias, algo.bias_alignment)) return "bias";
  if (p.desc.epilogue == kDGelu && wrong(p.desc.aux, BytesOf(aux), algo.aux_alignment))
    return "memory of aux";
  if (bytes < algo.workspace) return "too small a workspace";
  if (!IsDeviceMemory(workspace, bytes, device)) return "memory of the workspace";
  if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) return "alignment of the workspace";
  return nullptr;
}

}  // namespace

void ResetProducts() {
  const std::scoped_lock lock(library().mutex);
  library().version = 130100;
  library().plays = FakeProducts::kRight;
  library().calls.clear();
}

}  // namespace fake

using fake::library;

extern "C" {

std::size_t cublasLtGetVersion() { return library().version; }
const char* cublasLtGetStatusString(int status) {
  switch (status) {
    case 1: return "the library was not initialized";
    case 7: return "an unsupported value or parameter was passed to the function";
    case 13: return "the function failed to launch on the GPU";
    default: return "a fake status";
  }
}
int cublasLtCreate(void** out) {
  if (!fake::MayCall("cublasLtCreate")) return fake::kNotInitialized;
  if (library().plays == FakeProducts::kNone) return fake::kNotInitialized;
  return fake::Make(out, fake::Handle{fake::CurrentDevice()});
}
int cublasLtDestroy(void* handle) { return fake::Destroy<fake::Handle>(handle, "cublasLtDestroy"); }
int cublasLtMatmulDescCreate(void** out, int compute, int scale) {
  if (compute != fake::kCompute32F || scale != fake::kR32F) return fake::kInvalidValue;
  return fake::Make(out, fake::Desc{});
}
int cublasLtMatmulDescDestroy(void* desc) {
  return fake::Destroy<fake::Desc>(desc, "cublasLtMatmulDescDestroy");
}
int cublasLtMatmulDescSetAttribute(void* object, int attribute, const void* from,
                                   std::size_t bytes) {
  const char* call = "cublasLtMatmulDescSetAttribute";
  if (!fake::Lives(object, call)) return fake::kInvalidValue;
  auto& desc = *static_cast<fake::Desc*>(object);
  switch (attribute) {
    case 3: return fake::Read(from, bytes, desc.op_a, call);
    case 4: return fake::Read(from, bytes, desc.op_b, call);
    case 7: return fake::Read(from, bytes, desc.epilogue, call);
    case 8: return fake::Read(from, bytes, desc.bias, call);
    case 11: return fake::Read(from, bytes, desc.aux, call);
    case 12: return fake::Read(from, bytes, desc.aux_leading, call);
    default: fake::Refuse("attribute", call); return fake::kInvalidValue;
  }
}
int cublasLtMatrixLayoutCreate(void** out, int type, std::uint64_t rows, std::uint64_t columns,
                               std::int64_t leading) {
  return fake::Make(out, fake::Layout{type, rows, columns, leading});
}
int cublasLtMatrixLayoutDestroy(void* layout) {
  return fake::Destroy<fake::Layout>(layout, "cublasLtMatrixLayoutDestroy");
}
int cublasLtMatmulPreferenceCreate(void** out) { return fake::Make(out, fake::Preference{}); }
int cublasLtMatmulPreferenceDestroy(void* preference) {
  return fake::Destroy<fake::Preference>(preference, "cublasLtMatmulPreferenceDestroy");
}
int cublasLtMatmulPreferenceSetAttribute(void* object, int attribute, const void* from,
                                         std::size_t bytes) {
  const char* call = "cublasLtMatmulPreferenceSetAttribute";
  if (!fake::Lives(object, call)) return fake::kInvalidValue;
  auto& preference = *static_cast<fake::Preference*>(object);
  switch (attribute) {
    case 1: return fake::Read(from, bytes, preference.workspace, call);
    case 3: return fake::Read(from, bytes, preference.reduction, call);
    case 5:
    case 6:
    case 7:
    case 8: return fake::Read(from, bytes, preference.alignment[attribute - 5], call);
    default: fake::Refuse("attribute", call); return fake::kInvalidValue;
  }
}
int cublasLtMatmulAlgoGetHeuristic(void* handle, void* desc, void* a, void* b, void* c, void* d,
                                   void* object, int wanted, void* out, int* found) {
  const char* call = "cublasLtMatmulAlgoGetHeuristic";
  fake::Count(call);
  *found = 0;
  fake::Problem problem{};
  if (!fake::MayCall(call) || wanted < 1 || !fake::Lives(handle, call) ||
      !fake::Lives(object, call) || !fake::ProblemOf(desc, a, b, c, d, call, problem))
    return fake::kInvalidValue;
  const auto& preference = *static_cast<fake::Preference*>(object);
  if (preference.reduction != 2)
    fake::Refuse("reduction", "an algorithm that adds parts as they come, or rounds them, or none");
  const FakeProducts plays = library().plays;
  if (plays == FakeProducts::kNoWay) return fake::kNotSupported;
  if (plays == FakeProducts::kNoSlope && problem.desc.epilogue == fake::kDGelu)
    return fake::kNotSupported;
  if (plays == FakeProducts::kFindsNone) return fake::kSuccess;
  fake::Heuristic one{};
  one.algo.hash = problem.Hash();
  one.algo.workspace = one.workspace = preference.workspace;
  if (preference.workspace == 0) fake::Refuse("workspace", "an algorithm that may have none");
  for (int i = 0; i < 4; ++i) one.algo.alignment[i] = preference.alignment[i];
  const auto said = [](const void* at) {
    const auto address = reinterpret_cast<std::uintptr_t>(at);
    return address == 0 ? 256 : std::min<std::uintptr_t>(256, address & -address);
  };
  one.algo.bias_alignment = said(problem.desc.bias);
  one.algo.aux_alignment = said(problem.desc.aux);
  if (plays == FakeProducts::kBadState) one.state = fake::kNotSupported;
  std::memcpy(out, &one, sizeof one);
  *found = 1;
  return fake::kSuccess;
}
int cublasLtMatmul(void* object, void* desc, const void* alpha, const void* a, void* of_a,
                   const void* b, void* of_b, const void* beta, const void* c, void* of_c, void* d,
                   void* of_d, const void* algo, void* workspace, std::size_t bytes,
                   void* on_stream) {
  const char* call = "cublasLtMatmul";
  fake::Count(call);
  fake::Problem problem{};
  if (!fake::MayCall(call) || !fake::Lives(object, call) ||
      !fake::ProblemOf(desc, of_a, of_b, of_c, of_d, call, problem))
    return fake::kInvalidValue;
  fake::Stream* stream = fake::StreamOf(on_stream, call);
  const int device = static_cast<fake::Handle*>(object)->device;
  if (stream == nullptr) return fake::kInvalidValue;
  fake::Algo way{};
  std::memcpy(&way, algo, sizeof way);
  const char* wrong = stream->device() != device || fake::CurrentDevice() != device
                          ? "device"
                          : fake::WrongMemory(problem, way, a, b, c, d, workspace, bytes, device);
  if (way.hash != problem.Hash()) wrong = "algorithm of another product";
  if (wrong != nullptr) {
    fake::Refuse(std::string("matmul: ") + wrong, call);
    return fake::kInvalidValue;
  }
  // All products, or those after so many.
  const FakeProducts plays = library().plays;
  const bool spoils =
      (plays == FakeProducts::kWrong || plays == FakeProducts::kFails) && library().right-- <= 0;
  if (spoils && plays == FakeProducts::kFails) return fake::kExecutionFailed;
  float scale = 0, keep = 0;
  std::memcpy(&scale, alpha, sizeof scale);
  std::memcpy(&keep, beta, sizeof keep);
  if (problem.desc.epilogue == fake::kDGelu && keep != 0)
    fake::Refuse("matmul: slope", "what is added goes through it too");
  fake::SayOnce(problem.desc.epilogue == fake::kDGelu);
  stream->Push([=] {
    std::memset(workspace, 0xA5, std::min<std::size_t>(bytes, 4096));  // It is the library's.
    fake::Compute(problem, scale, a, b, keep, c, d, spoils);
  });
  return fake::kSuccess;
}

void fakeCublasLtSetVersion(std::size_t version) { library().version = version; }
void fakeCublasLtPlay(FakeProducts plays, int after) {
  library().plays = plays;
  library().right = after;
}
void fakeCublasLtSay(int after) { library().silent = after; }
int fakeCublasLtLive() {
  const std::scoped_lock lock(library().mutex);
  return static_cast<int>(library().live.size());
}
int fakeCublasLtCalls(const char* name) {
  const std::scoped_lock lock(library().mutex);
  return std::exchange(library().calls[name], 0);
}

}  // extern "C"
