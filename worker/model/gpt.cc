#include "worker/model/gpt.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "worker/tensor/arena.h"

namespace regroup::worker {
namespace {

constexpr double kInitStd = 0.02;
constexpr std::int64_t kMaxSize = 1 << 24;
constexpr std::int64_t kMaxHeadWidth = 256;
constexpr double kMaxParameters = 0x1p40;  // Their bytes can be counted without overflow.

// Hands out a buffer front to back, on the borders that vector loads like.
class Cutter {
 public:
  template <typename U>
  static std::int64_t Bytes(std::int64_t elements) {
    return static_cast<std::int64_t>(Arena::Footprint<U>(static_cast<std::size_t>(elements)));
  }
  explicit Cutter(std::span<std::byte> buffer) : rest_(buffer) {}
  template <typename U>
  U* Take(std::int64_t elements) {
    const auto bytes = static_cast<std::size_t>(Bytes<U>(elements));
    CHECK(bytes <= rest_.size());
    U* taken = reinterpret_cast<U*>(rest_.data());
    rest_ = rest_.subspan(bytes);
    return taken;
  }

 private:
  std::span<std::byte> rest_;
};

ParamSpec Matrix(std::string name, std::int64_t in, std::int64_t out, double std) {
  return {
      .name = std::move(name), .shape = {in, out}, .decay = true, .init_mean = 0, .init_std = std};
}
ParamSpec Vector(std::string name, std::int64_t width, double value) {
  return {
      .name = std::move(name), .shape = {width}, .decay = false, .init_mean = value, .init_std = 0};
}

template <typename T>
std::int64_t Rows(const LayerContext<T>& context) {
  return context.batch * context.time;
}

// Of a kernel that makes two gradients at once, which are of one unit and so always alike.
template <typename T>
bool AddsBoth(const LayerContext<T>& context, int first, int second) {
  CHECK(context.Adds(first) == context.Adds(second));
  return context.Adds(first);
}

template <typename T>
class EmbedLayer final : public Layer<T> {
 public:
  explicit EmbedLayer(const GptConfig& config) : config_(config) {}

  LayerSpec Spec(const Extent&) const override {
    return {.params = {Matrix("wte.weight", config_.vocabulary, config_.width, kInitStd),
                       Matrix("wpe.weight", config_.context, config_.width, kInitStd)},
            .output_width = config_.width};
  }
  void Forward(const LayerContext<T>& context, const T*, T* out) const override {
    context.kernels.embedding_forward(context.On(), {.batch = context.batch,
                                                     .time = context.time,
                                                     .width = config_.width,
                                                     .tokens = context.tokens,
                                                     .token_weights = context.weights[0],
                                                     .position_weights = context.weights[1],
                                                     .out = out});
  }
  void Backward(const LayerContext<T>& context, const T*, T*, T* gradient) const override {
    context.kernels.embedding_backward(
        context.On(),
        {.shape = {context.batch, context.time, config_.width, config_.vocabulary, config_.context},
         .tokens = context.tokens,
         .dout = gradient,
         .dtoken = context.gradients[0],
         .add_token = context.Adds(0),
         .dposition = context.gradients[1],
         .add_position = context.Adds(1)});
  }

 private:
  const GptConfig config_;
};

// What a block keeps from Forward for Backward, per token and in units of the width: 15, and a few
// numbers per row.
template <typename T>
struct BlockStash {
  using W = Wide<T>;
  T *norm1, *qkv, *attended, *middle, *norm2, *before_gelu, *after_gelu;
  W *mean1, *rstd1, *log_sum_exp, *mean2, *rstd2;

  static BlockStash Cut(const LayerContext<T>& context, const GptConfig& c, std::int64_t rows) {
    Cutter cut(context.stash), cheap(context.cheap_stash);
    const std::int64_t wide = rows * c.width;
    BlockStash s;
    s.mean1 = cut.Take<W>(rows), s.rstd1 = cut.Take<W>(rows);
    s.qkv = cut.Take<T>(3 * wide), s.attended = cut.Take<T>(wide);
    s.log_sum_exp = cut.Take<W>(rows * c.heads), s.middle = cut.Take<T>(wide);
    s.mean2 = cut.Take<W>(rows), s.rstd2 = cut.Take<W>(rows);
    s.before_gelu = cut.Take<T>(4 * wide);
    s.norm1 = cheap.Take<T>(wide), s.norm2 = cheap.Take<T>(wide);
    s.after_gelu = cheap.Take<T>(4 * wide);
    return s;
  }
  static std::int64_t Bytes(const GptConfig& c, std::int64_t rows) {
    const std::int64_t wide = rows * c.width;
    return 2 * Cutter::Bytes<T>(wide) + Cutter::Bytes<T>(3 * wide) + Cutter::Bytes<T>(4 * wide) +
           4 * Cutter::Bytes<W>(rows) + Cutter::Bytes<W>(rows * c.heads);
  }
  static std::int64_t CheapBytes(const GptConfig& c, std::int64_t rows) {
    return 2 * Cutter::Bytes<T>(rows * c.width) + Cutter::Bytes<T>(4 * rows * c.width);
  }
};

template <typename T>
class BlockLayer final : public Layer<T> {
 public:
  BlockLayer(const GptConfig& config, std::int64_t index) : config_(config), index_(index) {}

  LayerSpec Spec(const Extent& extent) const override;
  void Forward(const LayerContext<T>& context, const T* in, T* out) const override;
  void Recompute(const LayerContext<T>& context, const T* in) const override;
  void Backward(const LayerContext<T>& context, const T* in, T* out, T* gradient) const override;

 private:
  enum Param {
    kGain1,
    kBias1,
    kQkvWeight,
    kQkvBias,
    kProjWeight,
    kProjBias,
    kGain2,
    kBias2,
    kUpWeight,
    kUpBias,
    kDownWeight,
    kDownBias,
  };
  enum Part { kAttentionPart, kMlpPart };
  struct Scratch {
    T *wide, *narrow;    // (rows, 4 C), (rows, C)
    Wide<T>* reduction;  // Whatever a kernel asks for.
  };
  std::int64_t ReductionElements(std::int64_t rows, const AttentionShape& attention) const;
  AttentionShape Attention(std::int64_t batch, std::int64_t time) const {
    return {batch, time, config_.heads, config_.width / config_.heads};
  }
  // x · w + bias, or y + that.
  void Linear(const LayerContext<T>& context, const LinearShape& shape, Param weight, const T* x,
              T* y, bool add = false) const;
  // Of what a norm's weights begin at.
  void Norm(const LayerContext<T>& context, Param gain, LayerNormForwardArgs<T> args) const;
  void NormBackward(const LayerContext<T>& context, Param gain, LayerNormBackwardArgs<T> args,
                    Wide<T>* reduction) const;
  // Gradients of one linear layer: of its weights, its bias and, into dx, its input, or what GELU
  // made that of, if there is such.
  void LinearBackward(const LayerContext<T>& context, const LinearShape& shape, Param weight,
                      const T* x, const T* dy, T* dx, Wide<T>* reduction,
                      const T* before_gelu = nullptr) const;
  void MlpBackward(const LayerContext<T>& context, const BlockStash<T>& stash,
                   const Scratch& scratch, T* gradient) const;
  void AttentionBackward(const LayerContext<T>& context, const BlockStash<T>& stash,
                         const Scratch& scratch, const T* in, T* gradient) const;

  const GptConfig config_;
  const std::int64_t index_;
};

template <typename T>
std::int64_t BlockLayer<T>::ReductionElements(std::int64_t rows,
                                              const AttentionShape& attention) const {
  return std::max({ColumnSumElements(rows, 4 * config_.width),
                   LayerNormElements(rows, config_.width), AttentionElements(attention)});
}

template <typename T>
LayerSpec BlockLayer<T>::Spec(const Extent& extent) const {
  const std::int64_t C = config_.width, rows = extent.rows();
  const std::string h = absl::StrCat("h.", index_, ".");
  const double projection_std = kInitStd / std::sqrt(2.0 * static_cast<double>(config_.layers));
  LayerSpec spec;
  spec.params = {Vector(h + "ln_1.weight", C, 1),
                 Vector(h + "ln_1.bias", C, 0),
                 Matrix(h + "attn.c_attn.weight", C, 3 * C, kInitStd),
                 Vector(h + "attn.c_attn.bias", 3 * C, 0),
                 Matrix(h + "attn.c_proj.weight", C, C, projection_std),
                 Vector(h + "attn.c_proj.bias", C, 0),
                 Vector(h + "ln_2.weight", C, 1),
                 Vector(h + "ln_2.bias", C, 0),
                 Matrix(h + "mlp.c_fc.weight", C, 4 * C, kInitStd),
                 Vector(h + "mlp.c_fc.bias", 4 * C, 0),
                 Matrix(h + "mlp.c_proj.weight", 4 * C, C, projection_std),
                 Vector(h + "mlp.c_proj.bias", C, 0)};
  spec.part_begins = {kGain2};
  spec.stash_bytes = BlockStash<T>::Bytes(config_, rows);
  spec.cheap_stash_bytes = BlockStash<T>::CheapBytes(config_, rows);
  spec.scratch_bytes =
      Cutter::Bytes<T>(4 * rows * C) + Cutter::Bytes<T>(rows * C) +
      Cutter::Bytes<Wide<T>>(ReductionElements(rows, Attention(extent.batch, extent.time)));
  spec.largest_product = {rows, C, 4 * C};
  spec.output_width = C;
  spec.forward_flops = static_cast<double>(rows) * (24.0 * static_cast<double>(C * C) +
                                                    2.0 * static_cast<double>(extent.time * C));
  return spec;
}

template <typename T>
void BlockLayer<T>::Linear(const LayerContext<T>& context, const LinearShape& shape, Param weight,
                           const T* x, T* y, bool add) const {
  context.kernels.linear_forward(context.On(), {.shape = shape,
                                                .order = WeightOrder::kInOut,
                                                .x = x,
                                                .w = context.weights[weight],
                                                .bias = context.weights[std::size_t{weight} + 1],
                                                .y = y,
                                                .add = add});
}

template <typename T>
void BlockLayer<T>::Norm(const LayerContext<T>& context, Param gain,
                         LayerNormForwardArgs<T> args) const {
  args.rows = Rows(context);
  args.width = config_.width;
  args.gain = context.weights[gain];
  args.bias = context.weights[std::size_t{gain} + 1];
  context.kernels.layer_norm_forward(context.On(), args);
}

template <typename T>
void BlockLayer<T>::Forward(const LayerContext<T>& context, const T* in, T* out) const {
  const std::int64_t C = config_.width, rows = Rows(context);
  const BlockStash<T> s = BlockStash<T>::Cut(context, config_, rows);
  Norm(context, kGain1, {.x = in, .y = s.norm1, .mean = s.mean1, .rstd = s.rstd1});
  Linear(context, {rows, C, 3 * C}, kQkvWeight, s.norm1, s.qkv);
  context.kernels.attention_forward(context.On(context.scratch.data()),
                                    {.shape = Attention(context.batch, context.time),
                                     .qkv = s.qkv,
                                     .out = s.attended,
                                     .log_sum_exp = s.log_sum_exp});
  // `out` serves as the projection's output until the block's own is due.
  Linear(context, {rows, C, C}, kProjWeight, s.attended, out);
  Norm(context, kGain2,
       {.x = out, .residual = in, .sum = s.middle, .y = s.norm2, .mean = s.mean2, .rstd = s.rstd2});
  Linear(context, {rows, C, 4 * C}, kUpWeight, s.norm2, s.before_gelu);
  context.kernels.gelu_forward(context.On(), {rows * 4 * C, s.before_gelu, s.after_gelu});
  context.stream.Copy(out, s.middle, static_cast<std::size_t>(rows * C) * sizeof(T));
  Linear(context, {rows, 4 * C, C}, kDownWeight, s.after_gelu, out, /*add=*/true);
}

template <typename T>
void BlockLayer<T>::Recompute(const LayerContext<T>& context, const T* in) const {
  const std::int64_t C = config_.width, rows = Rows(context);
  const BlockStash<T> s = BlockStash<T>::Cut(context, config_, rows);
  Norm(context, kGain1, {.x = in, .y = s.norm1, .mean = s.mean1, .rstd = s.rstd1});
  Norm(context, kGain2, {.x = s.middle, .y = s.norm2, .mean = s.mean2, .rstd = s.rstd2});
  context.kernels.gelu_forward(context.On(), {rows * 4 * C, s.before_gelu, s.after_gelu});
}

template <typename T>
void BlockLayer<T>::NormBackward(const LayerContext<T>& context, Param gain,
                                 LayerNormBackwardArgs<T> args, Wide<T>* reduction) const {
  args.rows = Rows(context);
  args.width = config_.width;
  args.gain = context.weights[gain];
  args.add_dx = true;
  args.dgain = context.gradients[gain];
  args.dbias = context.gradients[std::size_t{gain} + 1];
  args.add = AddsBoth(context, gain, gain + 1);
  context.kernels.layer_norm_backward(context.On(reduction), args);
}

template <typename T>
void BlockLayer<T>::LinearBackward(const LayerContext<T>& context, const LinearShape& shape,
                                   Param weight, const T* x, const T* dy, T* dx, Wide<T>* reduction,
                                   const T* before_gelu) const {
  const KernelTable<T>& k = context.kernels;
  constexpr auto kOrder = WeightOrder::kInOut;
  const int bias = weight + 1;
  k.bias_grad(context.On(reduction), {.rows = shape.rows,
                                      .out = shape.out,
                                      .dy = dy,
                                      .db = context.gradients[static_cast<std::size_t>(bias)],
                                      .add = context.Adds(bias)});
  k.linear_weight_grad(context.On(), {.shape = shape,
                                      .order = kOrder,
                                      .x = x,
                                      .dy = dy,
                                      .dw = context.gradients[weight],
                                      .add = context.Adds(weight)});
  const LinearInputGradArgs<T> input{
      .shape = shape, .order = kOrder, .dy = dy, .w = context.weights[weight], .dx = dx};
  if (before_gelu != nullptr && k.linear_gelu_input_grad)
    return k.linear_gelu_input_grad(context.On(), {input, before_gelu});
  k.linear_input_grad(context.On(), input);
  if (before_gelu == nullptr) return;
  k.gelu_backward(context.On(),
                  {.elements = shape.rows * shape.in, .x = before_gelu, .dy = dx, .dx = dx});
}

template <typename T>
void BlockLayer<T>::MlpBackward(const LayerContext<T>& context, const BlockStash<T>& s,
                                const Scratch& scratch, T* gradient) const {
  const std::int64_t C = config_.width, rows = Rows(context);
  LinearBackward(context, {rows, 4 * C, C}, kDownWeight, s.after_gelu, gradient, scratch.wide,
                 scratch.reduction, s.before_gelu);
  LinearBackward(context, {rows, C, 4 * C}, kUpWeight, s.norm2, scratch.wide, scratch.narrow,
                 scratch.reduction);
  NormBackward(
      context, kGain2,
      {.dy = scratch.narrow, .x = s.middle, .mean = s.mean2, .rstd = s.rstd2, .dx = gradient},
      scratch.reduction);
}

template <typename T>
void BlockLayer<T>::AttentionBackward(const LayerContext<T>& context, const BlockStash<T>& s,
                                      const Scratch& scratch, const T* in, T* gradient) const {
  const std::int64_t C = config_.width, rows = Rows(context);
  LinearBackward(context, {rows, C, C}, kProjWeight, s.attended, gradient, scratch.narrow,
                 scratch.reduction);
  context.kernels.attention_backward(context.On(scratch.reduction),
                                     {.shape = Attention(context.batch, context.time),
                                      .qkv = s.qkv,
                                      .out = s.attended,
                                      .log_sum_exp = s.log_sum_exp,
                                      .dout = scratch.narrow,
                                      .dqkv = scratch.wide});
  LinearBackward(context, {rows, C, 3 * C}, kQkvWeight, s.norm1, scratch.wide, scratch.narrow,
                 scratch.reduction);
  NormBackward(context, kGain1,
               {.dy = scratch.narrow, .x = in, .mean = s.mean1, .rstd = s.rstd1, .dx = gradient},
               scratch.reduction);
}

template <typename T>
void BlockLayer<T>::Backward(const LayerContext<T>& context, const T* in, T*, T* gradient) const {
  const std::int64_t C = config_.width, rows = Rows(context);
  const BlockStash<T> stash = BlockStash<T>::Cut(context, config_, rows);
  Cutter cut(context.scratch);
  Scratch scratch;
  scratch.wide = cut.Take<T>(4 * rows * C);
  scratch.narrow = cut.Take<T>(rows * C);
  scratch.reduction =
      cut.Take<Wide<T>>(ReductionElements(rows, Attention(context.batch, context.time)));
  if (context.part != kAttentionPart) MlpBackward(context, stash, scratch, gradient);
  if (context.part != kMlpPart) AttentionBackward(context, stash, scratch, in, gradient);
}

// Final norm, head, loss. Output: logits, where there are no targets. With targets logits, and then
// their gradients, are there for some tokens at a time.
template <typename T>
class HeadLayer final : public Layer<T> {
 public:
  HeadLayer(const GptConfig& config, std::int64_t logit_bytes)
      : config_(config), logit_bytes_(logit_bytes) {}

  LayerSpec Spec(const Extent& extent) const override;
  void Forward(const LayerContext<T>& context, const T* in, T* out) const override;
  void Backward(const LayerContext<T>& context, const T* in, T* out, T* gradient) const override;

 private:
  enum Param { kGain, kBias, kTokens };
  struct Stash {
    T* norm;
    Wide<T>*mean, *rstd;
  };
  Stash Cut(const LayerContext<T>& context) const {
    Cutter cut(context.stash);
    Stash stash;
    stash.norm = cut.Take<T>(Rows(context) * config_.width);
    stash.mean = cut.Take<Wide<T>>(Rows(context));
    stash.rstd = cut.Take<Wide<T>>(Rows(context));
    return stash;
  }
  LinearShape Shape(std::int64_t rows) const { return {rows, config_.width, config_.vocabulary}; }
  // Of tokens whose logits are there at one time, at most.
  std::int64_t RowsAtOnce(std::int64_t rows) const {
    constexpr std::int64_t kTile = 64;
    const std::int64_t room =
        logit_bytes_ / (config_.vocabulary * static_cast<std::int64_t>(sizeof(T)));
    return std::min(rows, room < kTile ? std::max<std::int64_t>(room, 1) : room / kTile * kTile);
  }
  void Logits(const LayerContext<T>& context, std::int64_t rows, const T* norm, T* logits) const {
    context.kernels.linear_forward(context.On(), {.shape = Shape(rows),
                                                  .order = WeightOrder::kOutIn,
                                                  .x = norm,
                                                  .w = context.weights[kTokens],
                                                  .y = logits});
  }
  // Losses of `count` tokens from `first` on. Their logits are in `logits`, then the gradients.
  void Loss(const LayerContext<T>& context, std::int64_t first, std::int64_t count,
            T* logits) const {
    Logits(context, count, Cut(context).norm + first * config_.width, logits);
    context.kernels.cross_entropy(context.On(), {.rows = count,
                                                 .vocabulary = config_.vocabulary,
                                                 .logits = logits,
                                                 .targets = context.targets + first,
                                                 .loss_scale = context.loss_scale,
                                                 .losses = context.losses.data() + first});
  }

  const GptConfig config_;
  const std::int64_t logit_bytes_;
};

template <typename T>
LayerSpec HeadLayer<T>::Spec(const Extent& extent) const {
  const std::int64_t C = config_.width, rows = extent.rows(), at_once = RowsAtOnce(rows);
  LayerSpec spec;
  spec.params = {
      Vector("ln_f.weight", C, 1), Vector("ln_f.bias", C, 0),
      Matrix(config_.tied_head ? "wte.weight" : "lm_head.weight", config_.vocabulary, C, kInitStd)};
  spec.shared_params = config_.tied_head ? 1 : 0;
  spec.stash_bytes = Cutter::Bytes<T>(rows * C) + 2 * Cutter::Bytes<Wide<T>>(rows);
  spec.scratch_bytes = Cutter::Bytes<T>(at_once * config_.vocabulary) + Cutter::Bytes<T>(rows * C) +
                       Cutter::Bytes<Wide<T>>(LayerNormElements(rows, C));
  spec.largest_product = Shape(extent.logits ? rows : at_once);
  spec.output_width = extent.logits ? config_.vocabulary : 0;
  spec.forward_flops =
      2.0 * static_cast<double>(rows) * static_cast<double>(C * config_.vocabulary);
  return spec;
}

template <typename T>
void HeadLayer<T>::Forward(const LayerContext<T>& context, const T* in, T* out) const {
  const std::int64_t rows = Rows(context), at_once = RowsAtOnce(rows);
  const Stash stash = Cut(context);
  context.kernels.layer_norm_forward(context.On(), {.rows = rows,
                                                    .width = config_.width,
                                                    .x = in,
                                                    .gain = context.weights[kGain],
                                                    .bias = context.weights[kBias],
                                                    .y = stash.norm,
                                                    .mean = stash.mean,
                                                    .rstd = stash.rstd});
  if (context.targets == nullptr) return Logits(context, rows, stash.norm, out);
  if (context.backward) return;
  T* const logits = Cutter(context.scratch).template Take<T>(at_once * config_.vocabulary);
  for (std::int64_t first = 0; first < rows; first += at_once)
    Loss(context, first, std::min(at_once, rows - first), logits);
}

template <typename T>
void HeadLayer<T>::Backward(const LayerContext<T>& context, const T* in, T*, T* gradient) const {
  const KernelTable<T>& k = context.kernels;
  const std::int64_t C = config_.width, rows = Rows(context), at_once = RowsAtOnce(rows);
  const Stash stash = Cut(context);
  Cutter scratch(context.scratch);
  T* const logits = scratch.Take<T>(at_once * config_.vocabulary);
  T* const dnorm = scratch.Take<T>(rows * C);
  for (std::int64_t first = 0; first < rows; first += at_once) {
    const std::int64_t count = std::min(at_once, rows - first);
    Loss(context, first, count, logits);
    k.linear_weight_grad(context.On(), {.shape = Shape(count),
                                        .order = WeightOrder::kOutIn,
                                        .x = stash.norm + first * C,
                                        .dy = logits,
                                        .dw = context.gradients[kTokens],
                                        .add = first > 0 || context.Adds(kTokens)});
    k.linear_input_grad(context.On(), {.shape = Shape(count),
                                       .order = WeightOrder::kOutIn,
                                       .dy = logits,
                                       .w = context.weights[kTokens],
                                       .dx = dnorm + first * C});
  }
  k.layer_norm_backward(context.On(scratch.Take<Wide<T>>(LayerNormElements(rows, C))),
                        {.rows = rows,
                         .width = C,
                         .dy = dnorm,
                         .x = in,
                         .gain = context.weights[kGain],
                         .mean = stash.mean,
                         .rstd = stash.rstd,
                         .dx = gradient,
                         .dgain = context.gradients[kGain],
                         .dbias = context.gradients[kBias],
                         .add = AddsBoth(context, kGain, kBias)});
}

}  // namespace

absl::Status Validate(const GptConfig& config) {
  const auto in_range = [](std::int64_t size) { return size >= 1 && size <= kMaxSize; };
  for (const auto& [name, size] : {std::pair("layers", config.layers),
                                   {"width", config.width},
                                   {"heads", config.heads},
                                   {"vocabulary", config.vocabulary},
                                   {"context", config.context}}) {
    if (!in_range(size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("model ", name, " ", size, " is not within 1 and ", kMaxSize));
    }
  }
  const auto width = static_cast<double>(config.width);
  const double parameters =
      static_cast<double>(config.layers) * 12 * width * width +
      static_cast<double>((config.tied_head ? 1 : 2) * config.vocabulary + config.context) * width;
  if (parameters > kMaxParameters) {
    return absl::InvalidArgumentError(
        absl::StrFormat("model of %.3g parameters (%d layers, %d wide), more than %.3g", parameters,
                        config.layers, config.width, kMaxParameters));
  }
  if (config.width % config.heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model width ", config.width, " is not a multiple of its ", config.heads, " heads"));
  }
  if (config.width / config.heads > kMaxHeadWidth) {
    return absl::InvalidArgumentError(absl::StrCat("model heads are ", config.width / config.heads,
                                                   " wide, more than ", kMaxHeadWidth));
  }
  return absl::OkStatus();
}

template <typename T>
Model<T> MakeGpt(const GptConfig& config, std::int64_t logit_bytes) {
  CHECK(Validate(config).ok());
  std::vector<Unit<T>> units;
  units.push_back({"embed", std::make_unique<EmbedLayer<T>>(config)});
  for (std::int64_t i = 0; i < config.layers; ++i) {
    units.push_back({absl::StrCat("block.", i), std::make_unique<BlockLayer<T>>(config, i)});
  }
  units.push_back({"head", std::make_unique<HeadLayer<T>>(config, logit_bytes)});
  return Model<T>(std::move(units), config.vocabulary, config.context);
}

AnyModel MakeGpt(const GptConfig& config, DType type) {
  switch (type) {
    case DType::kF32: return MakeGpt<float>(config);
    case DType::kBF16: return MakeGpt<BFloat16>(config);
    case DType::kF16: return MakeGpt<Half>(config);
  }
  CHECK(false);
}

template Model<float> MakeGpt<float>(const GptConfig&, std::int64_t);
template Model<double> MakeGpt<double>(const GptConfig&, std::int64_t);
template Model<BFloat16> MakeGpt<BFloat16>(const GptConfig&, std::int64_t);
template Model<Half> MakeGpt<Half>(const GptConfig&, std::int64_t);

}  // namespace regroup::worker
