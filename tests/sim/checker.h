#pragma once

// What must hold in every run, whatever fails: the invariants of facts/reliability §4.5 that
// concern the coordinator. It sees what is durable, what is answered, and every process that
// starts; never the core's memory.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/config.h"
#include "launcher/coordinator/core/rows.h"
#include "tests/sim/node.h"

namespace regroup::sim {

class Checker {
 public:
  // Once decided; durable later, and whoever is heard in between was lost all the same.
  void OnDecided(const std::map<coordinator::Key, coordinator::Value>& durable,
                 const std::vector<coordinator::Row>& batch, Instant now);
  void OnCommit(const std::map<coordinator::Key, coordinator::Value>& before,
                const std::vector<coordinator::Row>& batch);
  void OnRecovery(const std::vector<coordinator::Row>& durable,
                  const std::vector<coordinator::Row>& recovered);
  void OnRankStarted(const Node& node, const Group& group, const Rank& rank, Instant now);
  void OnOrder(const Node& node, const Order& order, Instant now);
  void OnSubmitAnswered(const std::string& key, const JobId& job);
  void OnCancelAnswered(const JobId& job, Instant now);
  void OnCommitAnswered(const CommitAnswer& answer);
  void OnView(const JobView& view);
  void OnHeard(const NodeId& node, Instant now) { heard_[node] = now; }
  void OnStall(Duration gap) { stalled_ += gap; }
  void OnJournalReplaced() { seen_epoch_ = Epoch(); }  // By hand: what was durable may be gone.
  void OnCoordinatorStart(Instant now, Epoch epoch);
  void OnCoordinatorSeen();  // It wrote a row, or an action of it was carried out.
  void OnFinished(const std::map<coordinator::Key, coordinator::Value>& rows);
  void AtEnd(const std::map<coordinator::Key, coordinator::Value>& rows);
  void Expect(bool condition, const std::string& what);

  std::vector<std::string> violations;
  Duration lease{};

 private:
  void CheckState(const coordinator::JobStateRow* before, const coordinator::JobStateRow& after);
  void CheckGeneration(const coordinator::GenerationRow* before,
                       const coordinator::GenerationRow& after);
  void CheckCommitRow(const coordinator::CommitRow* before, const coordinator::CommitRow& after);
  void CheckLost(const coordinator::NodeRow& after, Instant now);

  Epoch epoch_, seen_epoch_;  // Of this coordinator; the highest that one before it was seen in.
  bool seen_ = false;         // This coordinator was.
  Instant started_{};
  Duration stalled_{};
  std::map<JobId, JobSpec> specs_;
  std::map<JobId, Generation> proposed_, formed_;
  std::map<std::pair<JobId, Generation>, std::string> worlds_;           // What members were told.
  std::map<std::pair<JobId, Generation>, std::map<int, NodeId>> ranks_;  // Who started which rank.
  std::map<std::pair<JobId, Generation>, std::set<std::pair<NodeId, int>>> started_ranks_;
  std::map<std::string, JobId> submitted_;
  std::map<JobId, Instant> cancelled_;
  std::map<JobId, std::uint64_t> last_event_;
  std::map<JobId, int> ends_;
  std::map<NodeId, Instant> heard_;
  std::map<NodeId, bool> lost_;  // As this coordinator decided last.
};

}  // namespace regroup::sim
