#include "tests/sim/recorder.h"

#include "tests/sim/text.h"

namespace regroup::sim {

std::string TextOf(const coordinator::Effects& effects) {
  std::string text;
  WriteLines(text, "row ", effects.rows);
  WriteLines(text, "action ", effects.actions);
  WriteLines(text, "note ", effects.notes);
  return text;
}

ChaosOptions RecordedLife(std::uint64_t seed) {
  ChaosOptions options;
  options.actions = seed % 2 == 0 ? 40 : 14;
  options.rest_every = 13;
  if (seed % 4 != 1) return options;
  options.config.limits.ended_jobs = 1;
  options.config.limits.events_per_job = 8;
  options.config.limits.generations_per_job = 3;
  options.config.limits.lost_nodes = 1;
  options.config.limits.away_nodes = 1;
  options.config.retention.ended_jobs = std::chrono::seconds(20);
  options.config.retention.sweep = std::chrono::seconds(5);
  return options;
}

Recording Record(std::uint64_t seed, const ChaosOptions& options, bool keep_text) {
  Recording recording;
  recording.hash = kNothingFolded;
  ChaosOptions recorded = options;
  recorded.plant = [&](World& world) {
    if (options.plant) options.plant(world);
    world.tamper = [&recording, keep_text, before = world.tamper](coordinator::Effects& effects) {
      if (before) before(effects);
      const std::string text = TextOf(effects);
      ++recording.steps;
      recording.hash = Fold(recording.hash, text + "step\n");
      if (keep_text) recording.text += text + "step\n";
    };
  };
  RunChaos(seed, recorded);
  return recording;
}

}  // namespace regroup::sim
