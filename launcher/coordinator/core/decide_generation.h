#pragma once

// May a generation be proposed now, and of whom? Pure. PROTOCOL §2, "Gather".

#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "common/base/reasons.h"
#include "common/base/time.h"

namespace regroup::coordinator {

enum class Readiness {
  kReady,       // Attached, its slots are free.
  kStopping,    // Attached, slots not free yet; worth waiting for until `until`.
  kAwaited,     // Not attached; worth waiting for until `until`.
  kBackingOff,  // Lost or refused a proposal lately; a candidate again at `until`.
};
struct Candidate {
  NodeId node;
  std::string name;
  Readiness readiness = Readiness::kReady;
  Instant until{};
  bool previous = false;  // Member of the generation before.
  bool former = false;    // Member of an earlier one.
  int free_slots = 0;     // kReady: for this job, what it has there included.
  int workers = 0;        // kReady: ranks that it would have there.
  std::string why{};      // kBackingOff: what it said.
};

struct GenerationPolicy {
  int min = 1, max = 1, unit = 1;
  int failures = 0;                        // In a row without progress; for the reason.
  Instant not_before{};                    // Of the job's back-off.
  std::optional<Instant> last_call_until;  // Set only where unknown nodes may still come.
  Instant unreachable_until{};  // The previous generation could train on unseen until then.
  std::vector<std::string> unreachable;  // Its nodes.
  std::vector<std::string>
      verdict_open;  // The budget is spent unless these nodes' reports say otherwise.
  std::vector<std::string> missing;  // For the reason.
};

struct Form {
  std::vector<NodeId> members;  // In no particular order.
};
struct Wait {
  WaitReason reason;             // Its `since` is left 0.
  std::optional<Instant> until;  // When to decide again if nothing happens before.
};
using GenerationDecision = std::variant<Form, Wait>;

// Whom a job takes first: who was in the generation before, then in an earlier one, then who has
// the most free slots, then by name as people count.
bool Preferred(const Candidate& a, const Candidate& b);

// A size that the bounds allow with this many nodes; 0: none.
int UsableSize(int nodes, int min, int max, int unit);

// The smallest size that `min` and `unit` allow.
int SmallestSize(int min, int unit);

// REQUIRES: candidates sorted by node, each once.
GenerationDecision DecideGeneration(const GenerationPolicy& policy,
                                    std::span<const Candidate> candidates, Instant now);

}  // namespace regroup::coordinator
