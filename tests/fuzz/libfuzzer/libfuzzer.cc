// libFuzzer has main(), and starts this program again with the same arguments when it merges: so
// the environment says which target runs. REGROUP_FUZZ_TARGET=store build/fuzz/bin/fuzz …

#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/targets/targets.h"

namespace {

const regroup::fuzz::Target& Chosen() {
  const char* name = std::getenv("REGROUP_FUZZ_TARGET");
  for (const regroup::fuzz::Target& target : regroup::fuzz::Targets())
    if (name != nullptr && target.name == std::string_view(name)) return target;
  std::fprintf(stderr, "REGROUP_FUZZ_TARGET names none of:\n");
  for (const regroup::fuzz::Target& target : regroup::fuzz::Targets())
    std::fprintf(stderr, "  %s\n", target.name);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  static const regroup::fuzz::Target& target = Chosen();
  target.run({reinterpret_cast<const char*>(data), size});
  return 0;
}
