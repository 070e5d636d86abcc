#pragma once

#include <string>

namespace regroup::worker {

// What tells this program's build from any other: the build ID that the linker wrote into it, as
// hex. "unknown" where it wrote none.
std::string BuildId();

}  // namespace regroup::worker
