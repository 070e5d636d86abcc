#pragma once

// Real shims and real workers. Every wait has a generous limit and ends with the event it waits
// for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/shim/client.h"
#include "agent/shim/protocol.h"
#include "agent/shim/run_directory.h"
#include "common/base/time.h"
#include "tests/common/io/temp_directory.h"

namespace regroup::shim {

std::string ShimProgram();  // Of this build.

// One group under test, from this process as its agent.
class Group {
 public:
  explicit Group(Spec spec) : spec(std::move(spec)) {}
  Group(Group&&) = default;
  ~Group();  // Kills and reaps.

  // Until the newest state fits; false (and a failure) after 20 s or when the shim went away
  // before.
  bool WaitFor(const std::function<bool(const State&)>& fits);
  bool WaitForPhase(Phase phase);
  bool WaitForEnd();           // Free, released, the connection closed, the process gone.
  void Start(int first = 10);  // StartRanks with ranks `first`, `first` + 1, …
  void Stop(Duration grace, int signal = 15);
  const RankState& rank(int local_rank = 0) const {
    return state.ranks.at(static_cast<std::size_t>(local_rank));
  }

  Spec spec;
  RunDirectory directory;
  SpawnedShim shim;
  std::optional<Link> link;
  State state;
  bool gone = false;  // The connection has ended.
  Address witness;
};

class ShimTest : public testing::Test {
 protected:
  ShimTest();
  ~ShimTest() override;

  // A group that runs `script` with sh in every rank.
  Spec ShellSpec(const std::string& script, int workers = 1);
  Spec CommandSpec(std::vector<std::string> command, int workers = 1);
  Group Spawn(Spec spec, int lifeline = -1, int rank0_stdin = -1, bool wants_output = false);
  Group Run(Spec spec);  // Spawn and Start.
  // The group goes on as that of its job's next generation; the result is what it was. Its link is
  // closed once that has happened.
  struct Before {
    Spec spec;
    RunDirectory directory;
    Link link;
  };
  Before HandOver(Group& group);
  // What is to be sent for that; the spec and the directory are already those of `group`.
  Before PrepareHandOver(Group& group, Adoption& adoption);
  std::string Log(const Group& group, int rank = 10, io::LogStream stream = io::LogStream::kStdout);
  std::string ShimLog(const Group& group);

  io::TempDirectory base_{"/dev/shm"}, work_;
  bool use_cgroup_ = false;
  std::uint64_t next_generation_ = 1;
};

// Polls a condition that no descriptor tells of (another process's doing).
bool Eventually(const std::function<bool()>& holds);
// Live processes that carry this group's mark or are named so.
int LiveWithMark(const Spec& spec);

}  // namespace regroup::shim
