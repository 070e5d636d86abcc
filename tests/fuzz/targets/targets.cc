#include "tests/fuzz/targets/targets.h"

namespace regroup::fuzz {

std::span<const Target> Targets() {
  static constexpr Target kTargets[] = {
      {"agent_session", AgentSession},
      {"store", Store},
      {"worker_lines", WorkerLines},
      {"job_file", JobFile},
      {"rows", Rows},
      {"error_file", ErrorFile},
      {"checkpoint", Checkpoint},
      {"shim", Shim},
      {"http2", Http2},
      {"proof", Proof},
  };
  return kTargets;
}

}  // namespace regroup::fuzz
