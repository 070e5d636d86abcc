#pragma once

// One group as GroupHost keeps it, and how it reads what a shim or a run directory says. Of
// group_host.cc and group_host_scan.cc alone.

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/shell/group_host.h"

namespace regroup::agent {

// Owned by GroupHost; its processes' handlers refer to it by key.
struct GroupHost::Hosted {
  GroupKey key;
  shim::Spec spec;
  WorkerOptions worker;
  std::vector<int> slots;  // By number.
  std::string path, store_path;
  std::string worker_secret;  // Of its ranks' tokens.
  bool host_store = false;
  std::optional<std::vector<std::string>> warm;  // As JobSpec has it: from a nursery.
  bool has_had_nursery = false;
  std::vector<std::string> store_members;
  // In place. The first generation of its shim, whose ranks may still say that they are of it.
  Generation since;
  bool not_taken = false;               // Its predecessor's shim was asked, and has it not.
  std::optional<GroupKey> from, to;     // Handed over.
  std::map<int, shim::RankPlan> plans;  // By local rank, once it was started.
  std::set<int> to_tell;                // Local ranks that live on and have not heard it.
  std::optional<Address> witness, store;
  io::UniqueFd witness_fd;  // Until the shim has it.
  std::shared_ptr<ShimProcess> shim, store_shim;
  std::optional<shim::State> state;    // The newest one.
  std::optional<shim::RunRecord> end;  // The shim's last words.
  std::optional<shim::UnreadableRun> unreadable;

  bool adopted = false, ready = false;
  bool checking = false;
  std::size_t starts = 0;         // Ranks that had started, as its state was last.
  std::optional<RunRecord> seen;  // What was told last.
  // Marks. Ranks that were signalled alone, by their local ranks.
  bool killed = false, store_closed = false;
  std::set<int> signalled;
  bool left_told = false;  // What its ranks have left behind.
};

// Ended, and not by exit code 0 of its program.
bool Failed(const shim::RankState& rank);
bool Started(const shim::RankState& rank);
RankEnded EndOf(const shim::RankState& rank, const shim::Spec& spec);

// What an agent has noted for itself; an empty object where that is none.
nlohmann::json ParseNotes(const std::string& text);
std::optional<Address> AddressFrom(const nlohmann::json& object, const char* name);

}  // namespace regroup::agent
