#include "worker/cuda/repeats.h"

#include <algorithm>
#include <utility>

namespace regroup::worker {
namespace {

// The first time a kernel is loaded, which no capture may do; the second shows that it repeats.
constexpr int kTimesBefore = 2;

}  // namespace

Repeats::Repeats(const CudaApi& api, bool makes)
    : api_(api), makes_(makes && api.stream_begin_capture != nullptr) {}

Repeats::~Repeats() {
  for (const auto& [likeness, exec] : graphs_) (void)api_.graph_exec_destroy(exec);
}

bool Repeats::Launch(CudaStreamHandle stream, const std::string& likeness,
                     const std::vector<Piece>& pieces) {
  if (pieces.size() < 2 || !launches_) return false;
  CudaExecHandle exec = Find(stream, likeness, pieces);
  if (exec == nullptr) return false;
  launches_ = api_.graph_launch(exec, stream) == kCudaSuccess;
  return launches_;
}

CudaExecHandle Repeats::Find(CudaStreamHandle stream, const std::string& likeness,
                             const std::vector<Piece>& pieces) {
  if (const auto known = graphs_.find(likeness); known != graphs_.end()) return known->second;
  if (!makes_ || graphs_.size() >= kMostGraphs) return nullptr;
  auto seen = seen_.find(likeness);
  if (seen == seen_.end()) {
    if (seen_.size() >= kMostSeen)
      std::erase_if(seen_, [](const auto& s) { return s.second == 1; });
    if (seen_.size() >= kMostSeen) seen_.clear();
    seen = seen_.emplace(likeness, 0).first;
  }
  if (seen->second++ < kTimesBefore) return nullptr;
  seen_.erase(seen);
  CudaExecHandle exec = Make(stream, pieces);
  if (exec == nullptr) {
    makes_ = false;
  } else {
    graphs_.emplace(likeness, exec);
  }
  return exec;
}

CudaExecHandle Repeats::Make(CudaStreamHandle stream, const std::vector<Piece>& pieces) {
  if (api_.stream_begin_capture(stream, kCudaStreamCaptureThreadLocal) != kCudaSuccess)
    return nullptr;
  const bool put = std::all_of(pieces.begin(), pieces.end(),
                               [](const Piece& piece) { return piece.put().ok(); });
  CudaGraphHandle graph = nullptr;
  const bool ended = api_.stream_end_capture(stream, &graph) == kCudaSuccess;
  CudaExecHandle exec = nullptr;
  const bool made = put && ended && graph != nullptr &&
                    api_.graph_instantiate(&exec, graph, /*flags=*/0) == kCudaSuccess;
  if (graph != nullptr) (void)api_.graph_destroy(graph);
  return made ? exec : nullptr;
}

}  // namespace regroup::worker
