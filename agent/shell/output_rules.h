#pragma once

// What becomes of a rank's output: where it is shown, behind which prefix, and what else is kept.

#include <string>

#include "agent/shell/relay.h"
#include "common/config/launch_config.h"

namespace regroup::agent {

struct OutputOf {
  std::string node, host;  // Names.
  std::string job;
  int generation = 1, rank = 0, local_rank = 0;
};
// Pure. See OutputOptions; behind torchrun's prefix stands what --tee named, behind ours the rest
// where there is more than one worker and prefixes are wanted.
Relay::Rules RulesFor(const LaunchConfig& launch, const OutputOf& output);

// ${name} and $name of what is known; the rest stays.
std::string RenderPrefix(const std::string& prefix, const std::string& role,
                         const OutputOf& output);

}  // namespace regroup::agent
