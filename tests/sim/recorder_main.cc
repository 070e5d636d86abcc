// Records lives: one line for each seed, or the text of one.
//
//   sim_recorder FIRST LAST    prints SEED, steps and hash of each life, then the hash of all
//   sim_recorder SEED          prints all that the core decided in that life, to be compared by eye

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "tests/sim/recorder.h"

int main(int argc, char** argv) {
  using regroup::sim::Record;
  using regroup::sim::RecordedLife;
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: %s FIRST LAST | SEED\n", argv[0]);
    return 2;
  }
  const std::uint64_t first = std::strtoull(argv[1], nullptr, 10);
  if (argc == 2) {
    std::fputs(Record(first, RecordedLife(first), /*keep_text=*/true).text.c_str(), stdout);
    return 0;
  }
  const std::uint64_t last = std::strtoull(argv[2], nullptr, 10);
  std::uint64_t steps = 0, all = 0;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    const regroup::sim::Recording life = Record(seed, RecordedLife(seed), /*keep_text=*/false);
    std::printf("%" PRIu64 " %" PRIu64 " %016" PRIx64 "\n", seed, life.steps, life.hash);
    steps += life.steps;
    all = all * 1099511628211ull + life.hash;
  }
  std::printf("all %" PRIu64 " %016" PRIx64 "\n", steps, all);
  return 0;
}
