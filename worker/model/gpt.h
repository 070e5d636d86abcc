#pragma once

#include <cstdint>
#include <variant>

#include "absl/status/status.h"
#include "worker/model/model.h"

namespace regroup::worker {

// A GPT-2 decoder: learned positions, pre-norm, tanh-GELU.
struct GptConfig {
  std::int64_t layers = 6, width = 384, heads = 6;
  std::int64_t vocabulary = 256, context = 256;
  bool tied_head = true;  // To the token embedding; else it has weights of its own, lm_head.weight.
  friend bool operator==(const GptConfig&, const GptConfig&) = default;
};

// Of the logits that are there at one time where there is a loss; of one token at least.
inline constexpr std::int64_t kLogitBytes = std::int64_t{512} << 20;

// Invalid argument, with the numbers: a size below 1 or beyond 2^24, more than 2^40 parameters,
// width not divisible by heads, heads wider than 256.
absl::Status Validate(const GptConfig& config);

// Units: "embed", "block.0" …, "head". Parameter names and shapes are those of Hugging Face's GPT-2
// (without "transformer."). REQUIRES: Validate(config) is ok.
template <typename T>
Model<T> MakeGpt(const GptConfig& config, std::int64_t logit_bytes = kLogitBytes);

// Of the number type that a step computes with.
using AnyModel = std::variant<Model<float>, Model<BFloat16>, Model<Half>>;
AnyModel MakeGpt(const GptConfig& config, DType type);
inline std::vector<UnitSpec> UnitSpecs(const AnyModel& model) {
  return std::visit([](const auto& m) { return m.UnitSpecs(); }, model);
}

}  // namespace regroup::worker
