#pragma once

// --numa-binding: which CPUs a worker is bound to, as torch.numa chooses them.

#include <optional>
#include <string>
#include <vector>

namespace regroup::agent {

struct NumaQuestion {
  std::string how;  // node, socket, exclusive, core-complex.
  int local_rank = 0, workers = 1;
  std::vector<int> allowed;    // Nothing else is chosen.
  std::vector<int> gpu_nodes;  // NUMA node of the GPU of each local rank; empty: no GPUs.
  std::string sysfs = "/sys";
};
// Without GPUs local ranks are spread over the nodes in blocks. Empty: no binding, since nothing is
// known or nothing of it is allowed.
std::vector<int> CpusNear(const NumaQuestion& question);

// Of the GPUs that a worker sees, in its order; `visible` is CUDA_VISIBLE_DEVICES. Empty where one
// of them is not known by number.
std::vector<int> NumaNodesOfGpus(const std::optional<std::string>& visible,
                                 const std::string& proc = "/proc",
                                 const std::string& sysfs = "/sys");

// "0-3,8".
std::vector<int> ParseCpuList(const std::string& text);

}  // namespace regroup::agent
