#pragma once

// Who gets which slots. Pure: it knows what jobs demand and what nodes supply, and says whose turn
// it is, which nodes are the best, and who has to look again after a change.
//
//   kQueued ──────────────> kBetween ─────────────> kGrowing
//     only the head may       may take nodes at       may take nodes while
//     take nodes              any time                no queued job could
//
// The head is the oldest queued job that the known nodes could run, were they all free. It waits
// for as long as it takes: no younger job overtakes it, so that a large one is not starved. Whoever
// looks at the nodes in one step does so by age. A change costs what it concerns: neither the fleet
// nor the queue is walked.

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/job_spec.h"
#include "common/base/lookup.h"
#include "common/base/reasons.h"

namespace regroup::coordinator {

enum class Stage {
  kQueued,   // It holds nothing and stands in the line.
  kBetween,  // It forms a generation, or regroups with the nodes of the one before.
  kGrowing,  // Its generation runs with fewer nodes than it may have.
};

// What a submitted job wants of the fleet.
struct Demand {
  JobId job;
  std::uint64_t sequence = 0;  // The lower, the older.
  Stage stage = Stage::kQueued;
  int min = 1, max = 1, unit = 1;  // Nodes.
  int slots = 1;                   // On each of them; kWorkerPerGpu: all, where they are GPUs.
  int has = 0;                     // kGrowing: nodes of the generation that runs.
  friend bool operator==(const Demand&, const Demand&) = default;
};

class Placement {
 public:
  // ---- what changes ----------------------------------------------------------------------------
  // Replaces what this job wanted before.
  void Set(const Demand& demand);
  void Remove(std::uint64_t sequence);  // It wants nothing any more.

  // How many slots the node has, free or not. Below 1: it is no node that a job could count on.
  void SetSize(const NodeId& node, const std::string& name, int slots, bool gpus = false);
  // Below 0: so many more are taken than there are, and once less is, there is more for a job that
  // holds some of them. A node of which no size is known supplies nothing.
  void SetFree(const NodeId& node, int slots);

  // ---- whose turn it is ------------------------------------------------------------------------
  // CannotFit or BehindJob; nullopt: it may take nodes now.
  std::optional<WaitReason> WhyNot(std::uint64_t sequence) const;
  // False: there is a head. The job has to look again once there is none.
  bool MayGrow(std::uint64_t sequence);
  // nullopt: the known nodes could run it, were they all free.
  std::optional<CannotFit> WhyUnfit(int nodes, int slots) const;
  std::size_t queued() const { return demands_.size() - takers_.size(); }

  // ---- which nodes -----------------------------------------------------------------------------
  // How many nodes have at least `slots` (>= 1) free; kWorkerPerGpu: all of theirs, which are GPUs.
  int CountFree(int slots) const;
  // At most `limit` of them in the order in which a job takes nodes that it never had: those with
  // the most free slots first, then by name as people count.
  std::vector<NodeId> FirstFree(int slots, std::size_t limit) const;

  // ---- who has to look again -------------------------------------------------------------------
  // Whose turn it has become, who could run now or no longer can, who may grow: since the last
  // call.
  std::set<std::uint64_t> TakeNews();
  // All who could take more, if some node got more free slots since the last call. Less is found
  // out by whoever looks.
  std::set<std::uint64_t> TakeOffers();
  std::set<std::uint64_t> Takers() const;  // The head, and all that are not queued.

  // Whatever the order in which it was told, and whoever has been told to look again.
  bool SaysTheSame(const Placement& other) const;

 private:
  struct Known {
    std::string name;
    int size = 0, free = 0;  // size >= 1.
    bool gpus = false;
    friend bool operator==(const Known&, const Known&) = default;
  };
  struct Named {
    std::string name;
    NodeId node;
    bool operator<(const Named& other) const;
    friend bool operator==(const Named&, const Named&) = default;
  };
  enum Wants { kSlots, kWholeGpuNodes };
  // Nodes as one kind of job sees them, by what it could have of them. No set is empty.
  struct Index {
    std::map<int, std::set<NodeId>> by_size;
    std::map<int, std::set<Named>> by_free;  // Nodes where it is not 0.
    // Queued jobs by the slots that a node must have, then by the number of such nodes.
    std::map<int, std::map<int, std::set<std::uint64_t>>> line;
    friend bool operator==(const Index&, const Index&) = default;
  };
  // Of a node, what a job could have that wants this: were all free; now.
  static int SizeFor(Wants wants, const Known& known);
  static int FreeFor(Wants wants, const Known& known);
  // As `slots` of a demand say.
  Index& For(int slots) { return indices_[slots == kWorkerPerGpu ? kWholeGpuNodes : kSlots]; }
  const Index& For(int slots) const {
    return indices_[slots == kWorkerPerGpu ? kWholeGpuNodes : kSlots];
  }
  // The only queued job that may start now; 0: none fits.
  std::uint64_t Head() const { return fitting_.empty() ? 0 : *fitting_.begin(); }
  int CountLarge(int slots) const;
  void IndexFree(const NodeId& node, const Known& known);
  void UnindexFree(const NodeId& node, const Known& known);
  void SizeChanged(const NodeId& node, Wants wants, int before, int after);
  void Unindex(const Demand& demand);
  void HeadWas(std::uint64_t before);

  Lookup<NodeId, Known> nodes_;
  std::array<Index, 2> indices_;  // One for each of Wants.

  std::map<std::uint64_t, Demand> demands_;
  std::set<std::uint64_t> fitting_;  // Queued jobs that the known nodes could run.
  std::set<std::uint64_t> takers_;   // Jobs that are not queued.

  std::set<std::uint64_t> turned_away_;  // Jobs that might not grow when they asked.
  std::set<std::uint64_t> news_;
  bool more_ = false;
};

// ---- the policy at one look ---------------------------------------------------------------------

// For whoever reads it, and for tests: what a Placement and the looks of all jobs come to, from
// scratch.

struct Supply {
  NodeId node;
  std::string name;
  int slots = 0, free = 0;
  bool gpus = false;  // Its slots are.
};
struct Asking {
  Demand demand;
  // False: it waits for something besides nodes, as for a last call. It keeps its turn meanwhile.
  bool ready = true;
  // Where it finds another number of free slots than others do: what it holds itself is free for
  // it, and a node that it may not take has none.
  std::map<NodeId, int> own{};
};
struct Grant {
  JobId job;
  std::vector<NodeId> nodes{};          // The best first.
  std::optional<WaitReason> why_not{};  // Set where it is ready to start and no nodes are given.
};

// REQUIRES: the oldest job first. One grant for each; those that grow are last.
std::vector<Grant> Place(std::span<const Asking> askings, std::span<const Supply> supplies);

}  // namespace regroup::coordinator
