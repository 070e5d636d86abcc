#pragma once

// What lives have reached, counted: every reason, every transition, every event and order of the
// two cores. What no life reaches is checked by nothing, or has no speaker.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "agent/core/events.h"
#include "common/base/reasons.h"
#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/rows.h"

namespace regroup::sim {

struct Coverage {
  using Count = std::uint64_t;
  template <class Variant>
  using Of = std::array<Count, std::variant_size_v<Variant>>;
  template <std::size_t n>
  using Square = std::array<std::array<Count, n>, n>;
  static constexpr std::size_t kJobPhases = 8, kGenerationPhases = 3, kGroupPhases = 8, kLosses = 6;

  Of<EndReason> end_reasons{};
  Of<FailReason> fail_reasons{};
  Of<WaitReason> wait_reasons{};
  Of<JobEventBody> job_events{};
  Of<coordinator::Event> events{};
  Of<coordinator::Action> actions{};
  Of<agent::Event> agent_events{};
  Of<agent::Action> agent_actions{};
  Square<kJobPhases> job_phases{};
  Square<kGenerationPhases> generation_phases{};
  Square<kGroupPhases> group_phases{};
  std::array<Count, kLosses> losses{};

  void OnState(const coordinator::JobStateRow& before, const coordinator::JobStateRow& after);
  void OnGeneration(const coordinator::GenerationRow* before,
                    const coordinator::GenerationRow& after);
  void OnLost(const std::string& how);
  void OnGroup(Phase before, Phase after);
  void Add(const Coverage& other);

  // One line each: what it is, and how often.
  std::string Table() const;
  // Reasons, losses, events and orders that no life has reached, but for those of which
  // coverage.cc says why none can.
  std::vector<std::string> Missing() const;
};

// Of an event or action, as its struct is called.
const char* NameOf(const coordinator::Event& event);
const char* NameOf(const agent::Event& event);
const char* NameOf(const agent::Action& action);

}  // namespace regroup::sim
