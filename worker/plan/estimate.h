#pragma once

// What published formulas say of a training before it runs. Pure: from sizes alone.

#include <cstdint>
#include <span>
#include <string_view>

#include "worker/layout/layout.h"

namespace regroup::worker {

// The most elements of this kind that any rank has.
std::int64_t MostElements(const ParamLayout& layout, StateKind kind);

// ---- model states, as ZeRO's paper counts them (arXiv 1910.02054, section 3 and table 1)

// Bytes of a parameter where products are of 16 bits and Adam keeps 32: weights and gradients of
// 16 bits; weights, mean and variance of 32.
inline constexpr std::int64_t kMixedWeightBytes = 2, kMixedGradientBytes = 2, kMixedAdamBytes = 12;
// Of the rank that has most. No buffers, no activations; our own f32 gradients are not in it.
std::int64_t MixedStateBytes(const ParamLayout& layout);

// ---- floating-point operations

struct TrainedSize {
  std::int64_t parameters = 0;                      // N: all of them, a shared one once.
  std::int64_t layers = 0, width = 0, context = 0;  // L, d, T.
};
// Forward and backward, per token. The second counts attention's matrix whole, the first the half
// of it that a causal model computes. Which one is meant moves MFU by several per cent.
double CausalFlopsPerToken(const TrainedSize& size);
double FullFlopsPerToken(const TrainedSize& size);
inline constexpr char kCausalFormula[] = "6N + 6LdT (llm.c: causal attention)";
inline constexpr char kFullFormula[] = "6N + 12LdT (PaLM: the whole attention matrix)";

// Hoffmann et al., 2022: with that many tokens per parameter, compute is spent best.
inline constexpr int kChinchillaTokens = 20;

// ---- time

// Published peaks of one GPU, without sparsity.
struct Gpu {
  std::string_view name;   // As people type it.
  std::string_view model;  // As its maker calls it.
  double short_flops = 0;  // Per second, of products of 16 bits; the next of 32.
  double f32_flops = 0;
  std::int64_t memory_bytes = 0;
  double memory_bytes_per_second = 0;
  double link_bytes_per_second = 0;  // Each way, to the other GPUs of its host.
};
std::span<const Gpu> KnownGpus();  // By name.

// What the rank that has most to do does in a step.
struct StepWork {
  double flops = 0;            // Of the model.
  double computed_again = 0;   // Times `flops`, on top of it.
  double moved_bytes = 0;      // Each way.
  double optimizer_bytes = 0;  // Read and written.
};
struct StepTime {
  double compute_s = 0, communication_s = 0, optimizer_s = 0;
  double all_s() const { return compute_s + communication_s + optimizer_s; }
};
// One after the other, as a plan's instructions are; links and memory at their peaks, products at
// `assumed_mfu` of theirs. `peak_flops` is per second.
StepTime EstimateStep(const StepWork& work, double peak_flops, double assumed_mfu,
                      double memory_bytes_per_second, double link_bytes_per_second);

}  // namespace regroup::worker
