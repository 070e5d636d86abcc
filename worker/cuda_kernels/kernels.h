#pragma once

#include "worker/kernels/arguments.h"

namespace regroup::worker::cuda {

// Own kernels for GPUs, each of which puts what its twin of ReferenceKernels computes on a stream:
// plain CUDA for every GPU since sm_80, no atomic operation, so the same bits every time. T: float,
// BFloat16, Half. Sums are floats but where the arguments are doubles.
template <typename T>
void LinearForward(const Launch& launch, const LinearForwardArgs<T>& args);
template <typename T>
void LinearInputGrad(const Launch& launch, const LinearInputGradArgs<T>& args);
template <typename T>
void LinearGeluInputGrad(const Launch& launch, const LinearGeluInputGradArgs<T>& args);
template <typename T>
void LinearWeightGrad(const Launch& launch, const LinearWeightGradArgs<T>& args);
template <typename T>
void BiasGrad(const Launch& launch, const BiasGradArgs<T>& args);
template <typename T>
void LayerNormForward(const Launch& launch, const LayerNormForwardArgs<T>& args);
template <typename T>
void LayerNormBackward(const Launch& launch, const LayerNormBackwardArgs<T>& args);
template <typename T>
void GeluForward(const Launch& launch, const GeluForwardArgs<T>& args);
template <typename T>
void GeluBackward(const Launch& launch, const GeluBackwardArgs<T>& args);
// Heads of at most kMostHeadWidth numbers; others are refused.
inline constexpr int kMostHeadWidth = 256;
template <typename T>
void AttentionForward(const Launch& launch, const AttentionForwardArgs<T>& args);
template <typename T>
void AttentionBackward(const Launch& launch, const AttentionBackwardArgs<T>& args);
template <typename T>
void EmbeddingForward(const Launch& launch, const EmbeddingForwardArgs<T>& args);
template <typename T>
void EmbeddingBackward(const Launch& launch, const EmbeddingBackwardArgs<T>& args);
template <typename T>
void CrossEntropy(const Launch& launch, const CrossEntropyArgs<T>& args);
template <typename T>
void RoundWeights(const Launch& launch, const RoundWeightsArgs<T>& args);
template <typename T>
void Narrow(const Launch& launch, const NarrowArgs<T>& args);
template <typename T>
void Widen(const Launch& launch, const WidenArgs<T>& args);

void UpdateAdamW(const Launch& launch, const AdamWArgs<float>& args);
void UpdateSgd(const Launch& launch, const SgdArgs<float>& args);
void UpdateLamb(const Launch& launch, const LambArgs<float>& args);
void SquareForTrust(const Launch& launch, const TrustSquaresArgs<float>& args);
void Sum(const Launch& launch, const SumArgs<float>& args);
void SumSquares(const Launch& launch, const SumArgs<float>& args);
void SquareBlocks(const Launch& launch, const SquareBlocksArgs<float>& args);

#define REGROUP_FOR_NUMBER_TYPES(use) use(float) use(BFloat16) use(Half)

}  // namespace regroup::worker::cuda
