#pragma once

#include "worker/kernels/kernels.h"

namespace regroup::worker {

// Updates of weights that every table shares. Plain loops, which are their own twins: a float is
// computed with as a double is. W: float, double.
template <typename W>
void UpdateSgd(const SgdArgs<W>& args, void* workspace);
template <typename W>
void UpdateLamb(const LambArgs<W>& args, void* workspace);
template <typename W>
void SquareForTrust(const TrustSquaresArgs<W>& args, void* workspace);

}  // namespace regroup::worker
