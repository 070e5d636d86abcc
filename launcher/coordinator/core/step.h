#pragma once

// One step in the making. Everything that leaves the core goes through it: rows, which change the
// state at once and become durable together; actions and notes, which follow them; and what has to
// be looked at later. Private to this folder.

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/state.h"

namespace regroup::coordinator {

// From so many on a job waits without a look at each of them whenever one of them tells something.
inline constexpr int kManyNodes = 64;

class Step {
 public:
  // Time never goes back: an earlier `now` than the last step's counts as that.
  Step(State& state, Instant now, WallTime wall);
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  State& state;
  const Config& config() const { return state.config; }
  Instant now() const { return state.now; }
  WallTime wall() const { return state.wall; }

  // ---- rows ------------------------------------------------------------------------------------
  // Visible at once to whatever looks at the state later in this step; durable
  // together with the rest.
  void Put(Value value);  // Replaces what this step put under the same key before.
  void Delete(Key key);
  void UpdateState(Job& job, const std::function<void(JobStateRow&)>& change);
  // REQUIRES: the job has this generation.
  void UpdateGeneration(Job& job, Generation generation,
                        const std::function<void(GenerationRow&)>& change);

  // ---- actions and notes -----------------------------------------------------------------------
  // In the order in which they are called, after all rows of this step.
  void Do(Action action) { effects_.actions.push_back(std::move(action)); }
  // Once a step, about how many: they are large, and a thousand need not be moved ten times.
  void WillDo(std::size_t more) { effects_.actions.reserve(effects_.actions.size() + more); }
  void Say(Severity severity, std::string what,
           std::vector<std::pair<std::string, std::string>> fields);

  // ---- later -----------------------------------------------------------------------------------
  void LookAt(Job& job);  // In this step if there is room, else in the next one.
  // What the node is told about this job may have changed; compared and sent at the
  // end of the step.
  void Reorder(Job& job, const NodeId& node);
  void ReorderMembers(Job& job, const GenerationSoft& soft);
  // Each look at a job begins with Disarm and says anew when the next one is due, if
  // nothing happens.
  void Wake(Job& job, Instant at);  // Look at the job again by then.
  void Disarm(Job& job);
  // So many nodes were looked at in vain. If they are many, none of them is looked at again for a
  // while: thousands that become free one by one would be thousands of looks at thousands.
  void Rest(Job& job, int nodes);
  // Whether that while goes on; then the job is woken at its end.
  bool Rests(Job& job);
  void Arm(Node& node, std::optional<Instant> at);

  bool HasRoom() const;  // For the rows of one more job or deadline.
  std::size_t bytes() const { return bytes_; }

  Effects Take();  // The end of the step.

 private:
  void Add(Row row);

  Effects effects_;
  std::map<Key, std::size_t> row_of_;
  std::size_t bytes_ = 0;
};

}  // namespace regroup::coordinator
