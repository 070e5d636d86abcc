#pragma once

#include <cstddef>
#include <vector>

namespace regroup::worker {

// Seconds of `n` all-reduces of that many floats by two processes with Gloo, the slower process of
// each. False if this build has no Gloo.
bool GlooAllReduce(std::size_t floats, int n, std::vector<double>& samples);

}  // namespace regroup::worker
