#include "worker/kernels/short_products.h"

#include <algorithm>
#include <compare>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/kernels/onednn.h"
#include "worker/kernels/parallel_for.h"

namespace regroup::worker {
namespace {

constexpr std::int64_t kPiece = 16384;  // Elements that one task converts.

// c (m, n) = a (m, k) · b (k, n) [+ bias (n)], or added to c. a and b may be transposed in memory;
// c is of floats or as short as they are.
struct ProductKey {
  std::int64_t m, k, n;
  bool a_transposed, b_transposed, bias, add, wide;
  auto operator<=>(const ProductKey&) const = default;
};

struct Product {
  dnnl::matmul primitive;
  dnnl::memory a, b, bias, c;
  std::unordered_map<int, dnnl::memory> arguments;
};

// As onednn.cc's: compiled code, of the execution thread.
struct ProductLibrary {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<ProductKey, Product> products;
  std::vector<float> a, b, c;  // Widened operands and a result that is still to be rounded.
};

ProductLibrary& ThisThreadsProducts() {
  static thread_local ProductLibrary library;
  return library;
}

dnnl::memory::desc Matrix(std::int64_t rows, std::int64_t columns, bool transposed,
                          dnnl::memory::data_type type) {
  return {{rows, columns},
          type,
          transposed ? dnnl::memory::dims{1, rows} : dnnl::memory::dims{columns, 1}};
}

Product Compile(const dnnl::engine& engine, const ProductKey& key) {
  constexpr auto kShort = dnnl::memory::data_type::bf16, kFloat = dnnl::memory::data_type::f32;
  const auto a = Matrix(key.m, key.k, key.a_transposed, kShort),
             b = Matrix(key.k, key.n, key.b_transposed, kShort),
             bias = Matrix(1, key.n, false, kShort),
             c = Matrix(key.m, key.n, false, key.wide ? kFloat : kShort);
  dnnl::primitive_attr attributes;
  if (key.add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const dnnl::matmul::desc description =
      key.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  Product product;
  product.primitive = dnnl::matmul(dnnl::matmul::primitive_desc(description, attributes, engine));
  product.a = dnnl::memory(a, engine, nullptr);
  product.b = dnnl::memory(b, engine, nullptr);
  product.c = dnnl::memory(c, engine, nullptr);
  product.arguments = {
      {DNNL_ARG_SRC, product.a}, {DNNL_ARG_WEIGHTS, product.b}, {DNNL_ARG_DST, product.c}};
  if (key.bias) {
    product.bias = dnnl::memory(bias, engine, nullptr);
    product.arguments.emplace(DNNL_ARG_BIAS, product.bias);
  }
  return product;
}

void* Handle(const BFloat16* data) { return const_cast<BFloat16*>(data); }

absl::Status Multiply(const ProductKey& key, const BFloat16* a, const BFloat16* b,
                      const BFloat16* bias, void* c) {
  try {
    ProductLibrary& library = ThisThreadsProducts();
    auto found = library.products.find(key);
    if (found == library.products.end())
      found = library.products.emplace(key, Compile(library.engine, key)).first;
    Product& product = found->second;
    product.a.set_data_handle(Handle(a));
    product.b.set_data_handle(Handle(b));
    product.c.set_data_handle(c);
    if (bias != nullptr) product.bias.set_data_handle(Handle(bias));
    product.primitive.execute(library.stream, product.arguments);
    library.stream.wait();
    return absl::OkStatus();
  } catch (const dnnl::error& error) {
    return absl::InternalError(absl::StrCat("oneDNN bf16 product of ", key.m, " x ", key.k, " x ",
                                            key.n, " failed: status ", error.status, " ",
                                            error.message));
  }
}

absl::Status NativeForward(const LinearShape& s, WeightOrder order, const BFloat16* x,
                           const BFloat16* w, const BFloat16* bias, BFloat16* y, bool add) {
  return Multiply({.m = s.rows,
                   .k = s.in,
                   .n = s.out,
                   .a_transposed = false,
                   .b_transposed = order == WeightOrder::kOutIn,
                   .bias = bias != nullptr,
                   .add = add,
                   .wide = false},
                  x, w, bias, y);
}

absl::Status NativeInputGrad(const LinearShape& s, WeightOrder order, const BFloat16* dy,
                             const BFloat16* w, BFloat16* dx) {
  return Multiply({.m = s.rows,
                   .k = s.out,
                   .n = s.in,
                   .a_transposed = false,
                   .b_transposed = order == WeightOrder::kInOut,
                   .bias = false,
                   .add = false,
                   .wide = false},
                  dy, w, nullptr, dx);
}

absl::Status NativeWeightGrad(const LinearShape& s, WeightOrder order, const BFloat16* x,
                              const BFloat16* dy, float* dw, bool add) {
  const bool in_out = order == WeightOrder::kInOut;
  return Multiply({.m = in_out ? s.in : s.out,
                   .k = s.rows,
                   .n = in_out ? s.out : s.in,
                   .a_transposed = true,
                   .b_transposed = false,
                   .bias = false,
                   .add = add,
                   .wide = true},
                  in_out ? x : dy, in_out ? dy : x, nullptr, dw);
}

template <typename From, typename To>
void Convert(std::int64_t elements, const From* from, To* to) {
  ParallelFor((elements + kPiece - 1) / kPiece, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(elements, (task + 1) * kPiece);
    for (std::int64_t i = task * kPiece; i < end; ++i) to[i] = static_cast<To>(from[i]);
  });
}

template <typename T>
const float* Widened(std::int64_t elements, const T* from, std::vector<float>& to) {
  if (to.size() < static_cast<std::size_t>(elements)) to.resize(static_cast<std::size_t>(elements));
  Convert(elements, from, to.data());
  return to.data();
}

float* Room(std::int64_t elements, std::vector<float>& memory) {
  if (memory.size() < static_cast<std::size_t>(elements))
    memory.resize(static_cast<std::size_t>(elements));
  return memory.data();
}

bool IsShape(const LinearShape& s) { return s.rows > 0 && s.in > 0 && s.out > 0; }
absl::Status NoShape(const LinearShape& s) {
  return absl::InternalError(
      absl::StrCat("a product of ", s.rows, " x ", s.in, " x ", s.out, " is none"));
}

template <typename T>
absl::Status WidenedForward(const LinearShape& s, WeightOrder order, const T* x, const T* w,
                            const T* bias, T* y, bool add) {
  if (!IsShape(s)) return NoShape(s);
  ProductLibrary& library = ThisThreadsProducts();
  const std::int64_t all = s.rows * s.out;
  float* sum = Room(all + s.out, library.c);
  float* wide_bias = bias == nullptr ? nullptr : sum + all;
  if (add) Convert(all, y, sum);
  if (bias != nullptr) Convert(s.out, bias, wide_bias);
  RETURN_IF_ERROR(OnednnLinearForward(s, order, Widened(s.rows * s.in, x, library.a),
                                      Widened(s.in * s.out, w, library.b), wide_bias, sum, add));
  Convert(all, sum, y);
  return absl::OkStatus();
}

template <typename T>
absl::Status WidenedInputGrad(const LinearShape& s, WeightOrder order, const T* dy, const T* w,
                              T* dx) {
  if (!IsShape(s)) return NoShape(s);
  ProductLibrary& library = ThisThreadsProducts();
  float* sum = Room(s.rows * s.in, library.c);
  RETURN_IF_ERROR(OnednnLinearInputGrad(s, order, Widened(s.rows * s.out, dy, library.a),
                                        Widened(s.in * s.out, w, library.b), sum));
  Convert(s.rows * s.in, sum, dx);
  return absl::OkStatus();
}

template <typename T>
absl::Status WidenedWeightGrad(const LinearShape& s, WeightOrder order, const T* x, const T* dy,
                               float* dw, bool add) {
  if (!IsShape(s)) return NoShape(s);
  ProductLibrary& library = ThisThreadsProducts();
  return OnednnLinearWeightGrad(s, order, Widened(s.rows * s.in, x, library.a),
                                Widened(s.rows * s.out, dy, library.b), dw, add);
}

template <typename T>
void FillWidened(KernelTable<T>& table) {
  table.linear_forward = WidenedForward<T>;
  table.linear_input_grad = WidenedInputGrad<T>;
  table.linear_weight_grad = WidenedWeightGrad<T>;
}

}  // namespace

std::size_t WideningBytes(DType type, Isa isa, const LinearShape& largest) {
  if (MultipliesNatively(type, isa)) return 0;
  const std::int64_t x = largest.rows * largest.in, y = largest.rows * largest.out,
                     w = largest.in * largest.out;
  return static_cast<std::size_t>(std::max(x, y) + std::max(w, y) + std::max(x, y + largest.out)) *
         sizeof(float);
}

void FillShortProducts(KernelTable<BFloat16>& table, bool native) {
  FillWidened(table);
  if (!native) return;
  table.linear_forward = NativeForward;
  table.linear_input_grad = NativeInputGrad;
  table.linear_weight_grad = NativeWeightGrad;
}

void FillShortProducts(KernelTable<Half>& table, bool /*native*/) { FillWidened(table); }

}  // namespace regroup::worker
