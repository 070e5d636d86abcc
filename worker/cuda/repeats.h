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

  // Launches these pieces as a graph, if they came twice before. False: nothing was put, each is to
  // be. Where CUDA cannot make a graph none is made any more, and where it cannot launch one none
  // is launched: for one it may need memory that there is not. `likeness`: equal ones of this
  // process mean equal work.
  bool Launch(CudaStreamHandle stream, const std::string& likeness,
              const std::vector<Piece>& pieces);

  // As many graphs are kept; and so many likenesses of what came once or twice. Of those, what came
  // once goes first: an optimizer's steps never come again.
  static constexpr std::size_t kMostGraphs = 1024, kMostSeen = 1024;

 private:
  // Null: not yet, or no more.
  CudaExecHandle Find(CudaStreamHandle stream, const std::string& likeness,
                      const std::vector<Piece>& pieces);
  CudaExecHandle Make(CudaStreamHandle stream, const std::vector<Piece>& pieces);

  const CudaApi& api_;
  bool makes_, launches_ = true;
  std::unordered_map<std::string, CudaExecHandle> graphs_;
  std::unordered_map<std::string, int> seen_;  // How often.
};

}  // namespace regroup::worker
