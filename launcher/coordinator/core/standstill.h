#pragma once

// For how long the coordinator could not act. A loop that stood still heard nobody. While a commit
// takes long everybody is heard, but nothing that is decided meanwhile is carried out: who has to
// answer may not even have been asked. Nobody may be found late for that time, so the core is told
// of it: Stalled.

#include <optional>

#include "common/base/time.h"

namespace regroup::coordinator {

class Standstill {
 public:
  // A loop that did not run for longer stood still.
  static constexpr Duration kLoop = std::chrono::seconds(1);
  // What a commit may take; the rest of it is told. So time goes on for who has to answer, however
  // many slow ones follow each other: by so much with each.
  static constexpr Duration kCommit = std::chrono::milliseconds(250);
  // What is told at once: a deadline may come too early by so much, and the core looks at all that
  // it waits for no more often.
  static constexpr Duration kAtLeast = std::chrono::milliseconds(50);

  explicit Standstill(Instant now) : entered_(now), told_(now) {}

  struct Gap {
    Duration gap{};
    bool heard = false;  // It was the disk alone.
    bool operator==(const Gap&) const = default;
  };
  // At each entry into the loop: what has to be told of the time until `now`, before anything else
  // is stepped. No time is told twice.
  std::optional<Gap> Enter(Instant now);

  // REQUIRES: none is under way; one is. Both after Enter(now).
  void BeginCommit(Instant now);
  // How long it took beyond kCommit.
  Duration EndCommit(Instant now);

 private:
  Instant entered_, told_;
  std::optional<Instant> commit_began_;
};

}  // namespace regroup::coordinator
