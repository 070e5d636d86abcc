#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "worker/cuda/cuda_api.h"

namespace regroup::worker {

// Work that comes again in each step, as the kernels of a unit do, which CUDA then takes as one
// graph: one call of the host's, and less between two kernels than if each came by itself. What is
// alike is told by what it is made of, so whoever puts it on a stream need not know that it comes
// again. Of one stream and its thread.
class Repeats {
 public:
  struct Piece {
    // Puts it on the stream. Called as often as it has to be.
    std::function<absl::Status()> put;
    bool of_cuda = true;  // Else of another library, whose errors are not CUDA's.
  };

  // `api` outlives this. Without `makes`, or where it lacks the calls, there are no graphs.
  Repeats(const CudaApi& api, bool makes);
  ~Repeats();  // REQUIRES: the stream has done all.
  Repeats(const Repeats&) = delete;
  Repeats& operator=(const Repeats&) = delete;

  // The graph of these pieces, if they came twice before: a launch of it does what they do. Null:
  // put each. Where CUDA cannot make one, none is made any more. `likeness`: equal ones of this
  // process mean equal work.
  CudaExecHandle Find(CudaStreamHandle stream, const std::string& likeness,
                      const std::vector<Piece>& pieces);

  // As many graphs are kept; and so many likenesses of what came once, some of which never come
  // again, as an optimizer's steps.
  static constexpr std::size_t kMostGraphs = 1024, kMostSeen = 1024;

 private:
  CudaExecHandle Make(CudaStreamHandle stream, const std::vector<Piece>& pieces);

  const CudaApi& api_;
  bool makes_;
  std::unordered_map<std::string, CudaExecHandle> graphs_;
  std::unordered_map<std::string, int> seen_;  // How often.
};

}  // namespace regroup::worker
