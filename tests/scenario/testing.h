#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/sim/world.h"

namespace regroup {

using namespace std::chrono_literals;  // NOLINT: in tests only.
using sim::SpecOf;

// Every scenario runs in its own world, and no world may break an invariant.
class Scenario : public ::testing::Test {
 protected:
  void TearDown() override {
    if (world_) {
      EXPECT_THAT(world_->checker.violations, ::testing::IsEmpty());
    }
    if (HasFailure() && world_ && world_->tracing)
      for (const std::string& line : world_->trace) std::fprintf(stderr, "%s\n", line.c_str());
  }

  sim::World& Start(coordinator::Config config = {}) {
    world_ = std::make_unique<sim::World>(config);
    world_->tracing = true;
    return *world_;
  }
  sim::World& world() { return *world_; }
  void AddDaemons(std::initializer_list<const char*> names, sim::Behaviour behaviour = {}) {
    for (const char* name : names) world().Add(name, {}, behaviour);
  }
  // Submitted and running.
  JobId Running(const JobSpec& spec) {
    const JobId job(spec.name + "-1");
    world().RunFor(1s);
    world().Submit(spec, "submit");
    EXPECT_TRUE(world().RunUntil([&] { return world().StateOf(job) == "running"; }, 30s))
        << world().StateOf(job);
    return job;
  }
  bool Reaches(const JobId& job, const std::string& state,
               Duration limit = std::chrono::seconds(30)) {
    const bool reached = world().RunUntil([&] { return world().StateOf(job) == state; }, limit);
    EXPECT_TRUE(reached) << job << " is " << world().StateOf(job) << ", not " << state;
    return reached;
  }
  bool ReachesGeneration(const JobId& job, std::uint64_t generation,
                         Duration limit = std::chrono::seconds(30)) {
    const bool reached = world().RunUntil(
        [&] {
          return world().coordinator_up() && world().StateOf(job) == "running" &&
                 world().View(job).generation == Generation(generation);
        },
        limit);
    EXPECT_TRUE(reached) << job << " is " << world().StateOf(job);
    return reached;
  }
  GenerationView GenerationOf(const JobId& job, std::uint64_t number) {
    for (const GenerationView& view : world().View(job).generations)
      if (view.generation == Generation(number)) return view;
    ADD_FAILURE() << "no generation " << number;
    return {};
  }
  std::vector<std::string> Members(const GenerationView& view) {
    std::vector<std::string> names;
    for (const MemberView& member : view.members) names.push_back(member.name);
    return names;
  }

  std::unique_ptr<sim::World> world_;
};

template <class Reason>
bool EndedBy(const GenerationView& view) {
  return view.ended && std::holds_alternative<Reason>(*view.ended);
}

}  // namespace regroup
