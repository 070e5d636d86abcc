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

absl::Status NativeForward(const LinearForwardArgs<BFloat16>& args, void* /*workspace*/) {
  return Multiply({.m = args.shape.rows,
                   .k = args.shape.in,
                   .n = args.shape.out,
                   .a_transposed = false,
                   .b_transposed = args.order == WeightOrder::kOutIn,
                   .bias = args.bias != nullptr,
                   .add = args.add,
                   .wide = false},
                  args.x, args.w, args.bias, args.y);
}

absl::Status NativeInputGrad(const LinearInputGradArgs<BFloat16>& args, void* /*workspace*/) {
  return Multiply({.m = args.shape.rows,
                   .k = args.shape.out,
                   .n = args.shape.in,
                   .a_transposed = false,
                   .b_transposed = args.order == WeightOrder::kInOut,
                   .bias = false,
                   .add = false,
                   .wide = false},
                  args.dy, args.w, nullptr, args.dx);
}

absl::Status NativeWeightGrad(const LinearWeightGradArgs<BFloat16>& args, void* /*workspace*/) {
  const bool in_out = args.order == WeightOrder::kInOut;
  return Multiply({.m = in_out ? args.shape.in : args.shape.out,
                   .k = args.shape.rows,
                   .n = in_out ? args.shape.out : args.shape.in,
                   .a_transposed = true,
                   .b_transposed = false,
                   .bias = false,
                   .add = args.add,
                   .wide = true},
                  in_out ? args.x : args.dy, in_out ? args.dy : args.x, nullptr, args.dw);
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
absl::Status WidenedForward(const LinearForwardArgs<T>& args, void* workspace) {
  const LinearShape& s = args.shape;
  if (!IsShape(s)) return NoShape(s);
  ProductLibrary& library = ThisThreadsProducts();
  const std::int64_t all = s.rows * s.out;
  float* sum = Room(all + s.out, library.c);
  float* bias = args.bias == nullptr ? nullptr : sum + all;
  if (args.add) Convert(all, args.y, sum);
  if (args.bias != nullptr) Convert(s.out, args.bias, bias);
  RETURN_IF_ERROR(OnednnLinearForward({.shape = s,
                                       .order = args.order,
                                       .x = Widened(s.rows * s.in, args.x, library.a),
                                       .w = Widened(s.in * s.out, args.w, library.b),
                                       .bias = bias,
                                       .y = sum,
                                       .add = args.add},
                                      workspace));
  Convert(all, sum, args.y);
  return absl::OkStatus();
}

template <typename T>
absl::Status WidenedInputGrad(const LinearInputGradArgs<T>& args, void* workspace) {
  const LinearShape& s = args.shape;
  if (!IsShape(s)) return NoShape(s);
  ProductLibrary& library = ThisThreadsProducts();
  float* sum = Room(s.rows * s.in, library.c);
  RETURN_IF_ERROR(OnednnLinearInputGrad({.shape = s,
                                         .order = args.order,
                                         .dy = Widened(s.rows * s.out, args.dy, library.a),
                                         .w = Widened(s.in * s.out, args.w, library.b),
                                         .dx = sum},
                                        workspace));
  Convert(s.rows * s.in, sum, args.dx);
  return absl::OkStatus();
}

template <typename T>
absl::Status WidenedWeightGrad(const LinearWeightGradArgs<T>& args, void* workspace) {
  const LinearShape& s = args.shape;
  if (!IsShape(s)) return NoShape(s);
  ProductLibrary& library = ThisThreadsProducts();
  return OnednnLinearWeightGrad({.shape = s,
                                 .order = args.order,
                                 .x = Widened(s.rows * s.in, args.x, library.a),
                                 .dy = Widened(s.rows * s.out, args.dy, library.b),
                                 .dw = args.dw,
                                 .add = args.add},
                                workspace);
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
