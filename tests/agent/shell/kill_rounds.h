#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <variant>
#include <vector>

#include "agent/shell/group_host.h"
#include "tests/agent/sights.h"

namespace regroup::agent::testing {

// Kills what is left of that group as the core orders it: rounds until two in a row find nothing,
// then the mark. `told` is what the host says; each round is answered before it returns.
inline void KillAll(GroupHost& host, const std::vector<Happening>& told, const GroupKey& key) {
  for (int clean = 0, rounds = 0; clean < 2; ++rounds) {
    ASSERT_LT(rounds, 2000);
    host.Carry(KillGroup{key});
    clean = std::get<LeftoversKilled>(told.back()).none ? clean + 1 : 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // A killed process takes a moment.
  }
  host.Carry(MarkKilled{key});
}

}  // namespace regroup::agent::testing
