// The third of GroupHost: a group whose ranks live on goes into the next generation of its job.

#include <unistd.h>

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shell/group_host.h"
#include "agent/shell/hosted_group.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/proc.h"

namespace regroup::agent {
namespace {

using nlohmann::json;

bool Lives(const shim::RankState& rank) {
  return rank.phase == shim::RankPhase::kStarting || rank.phase == shim::RankPhase::kRunning;
}

}  // namespace

void GroupHost::Carry(const HandOver& action) {
  Hosted* to = Find(action.to);
  CHECK(to != nullptr);
  const absl::Status done = HandOverTo(action.from, *to);
  to->not_taken = !done.ok();
  if (!done.ok()) return Fail(action.to, done);
  logs_.Prune(action.to, to->spec.log_limits);
}

absl::Status GroupHost::HandOverTo(const GroupKey& key, Hosted& to) {
  Hosted* from = Find(key);
  if (from == nullptr || !from->shim || !from->shim->alive())
    return absl::UnavailableError("the supervisor of its ranks has ended");
  if (from->spec.workers != to.spec.workers)
    return absl::InvalidArgumentError("it has another number of workers");
  TakeLineage(to, *from);
  ASSIGN_OR_RETURN(const shim::RunDirectory directory, shim::OpenRunDirectory(to.path));
  RETURN_IF_ERROR(shim::WriteSpec(directory, to.spec));
  ASSIGN_OR_RETURN(const shim::Adoption adoption, shim::PrepareAdoption(directory));
  to.from = key;
  from->to = to.key;
  to.shim = MakeProcess(to.key, to.path, to.spec);
  // Connected before it is told: so whoever shows output never seems to be gone.
  RETURN_IF_ERROR(to.shim->Await(directory));
  return from->shim->SendAdopt(adoption, options_.pass_stdin ? STDIN_FILENO : -1);
}

// By what its processes, its ranks and its host are known goes on; nobody has seen what the
// directory was written with.
void GroupHost::TakeLineage(Hosted& to, const Hosted& from) {
  if (!to.spec.cgroup.empty()) shim::RemoveEmptyCgroup(to.spec.cgroup);
  to.witness_fd.reset();
  to.witness = from.witness;
  to.worker_secret = from.worker_secret;
  to.since = from.since;
  to.spec.nonce = from.spec.nonce;
  to.spec.cgroup = from.spec.cgroup;
  json data = ParseNotes(to.spec.agent_data);
  data["worker_secret"] = to.worker_secret;
  data["since"] = to.since.value();
  if (to.witness) data["witness"] = {{"host", to.witness->host}, {"port", to.witness->port}};
  to.spec.agent_data = data.dump();
}

// Its shim knows best who lives; who ended a moment ago is started like any other.
void GroupHost::AwaitRanks(Hosted& hosted, const StartRanks& action,
                           const shim::StartRanks& start) {
  if (!hosted.spec.keeps_ranks) return;
  for (const shim::RankPlan& plan : start.ranks) hosted.plans[plan.local_rank] = plan;
  hosted.to_tell = action.kept;
  if (!hosted.state || hosted.state->ever_started) return;
  for (const shim::RankState& rank : hosted.state->ranks) {
    if (Lives(rank)) hosted.to_tell.insert(rank.local_rank);
  }
}

// Its shim wrote them before it answered for the new group: who ended in the old one is told first.
void GroupHost::TakeLastWords(const GroupKey& key) {
  Hosted* from = Find(key);
  if (from == nullptr || from->end) return;
  const absl::StatusOr<shim::RunRecord> record = shim::ReadRunDirectory(from->path);
  if (record.ok() && record->state && record->state->phase == Phase::kFree)
    OnState(*from, *record->state);
}

// Not before its shim has taken note: then what it prints belongs to the new generation.
void GroupHost::TellNewGeneration(Hosted& hosted, const shim::State& state) {
  if (hosted.to_tell.empty() || !state.ever_started) return;
  for (const shim::RankState& rank : state.ranks) {
    if (rank.phase == shim::RankPhase::kStarting || hosted.to_tell.erase(rank.local_rank) == 0)
      continue;
    const auto plan = hosted.plans.find(rank.local_rank);
    if (rank.phase != shim::RankPhase::kRunning || plan == hosted.plans.end()) continue;
    if (handler_.new_generation)
      handler_.new_generation(NewGenerationOf(hosted.key, hosted.spec, plan->second));
  }
}

std::optional<NewGeneration> GroupHost::NewerThan(const GroupKey& key, int local_rank) const {
  for (auto entry = groups_.rbegin(); entry != groups_.rend(); ++entry) {
    const Hosted& hosted = *entry->second;
    const bool newer = hosted.key.job == key.job && hosted.key.generation > key.generation &&
                       hosted.since <= key.generation;
    const auto plan = hosted.plans.find(local_rank);
    if (!newer || plan == hosted.plans.end() || !hosted.state || !hosted.state->ever_started)
      continue;
    for (const shim::RankState& rank : hosted.state->ranks) {
      if (rank.local_rank == local_rank && rank.phase == shim::RankPhase::kRunning)
        return NewGenerationOf(hosted.key, hosted.spec, plan->second);
    }
  }
  return std::nullopt;
}

// The group itself; else one whose shim was that of that generation, too.
const GroupHost::Hosted* GroupHost::FindLineage(const GroupKey& key) const {
  if (const Hosted* hosted = Find(key)) return hosted;
  for (const auto& [other, hosted] : groups_) {
    if (other.job == key.job && other.generation > key.generation &&
        hosted->since <= key.generation && hosted->since < other.generation)
      return hosted.get();
  }
  return nullptr;
}

void GroupHost::Carry(const KillRank& action) {
  Hosted* hosted = Find(action.key);
  if (hosted == nullptr || !hosted->state) return;
  for (const shim::RankState& rank : hosted->state->ranks) {
    if (rank.local_rank != action.local_rank || !Lives(rank)) continue;
    io::SignalProcess(rank.pid, rank.start_ticks, SIGKILL)
        .IgnoreError();  // Gone: its exit is on the way.
  }
}

// What a group was is told only once it is known whether its ranks live on.
bool GroupHost::AwaitsSuccessor(const Hosted& hosted) const {
  const Hosted* to = hosted.to ? Find(*hosted.to) : nullptr;
  return to != nullptr && !to->ready && !to->not_taken;
}

void GroupHost::OnSuccessor(const GroupKey& successor) {
  for (const auto& [key, hosted] : groups_) {
    if (hosted->to == successor) return See(*hosted);
  }
}

// Whether a shim lives that goes by the same nonce: what carries that is not to be killed on behalf
// of a run directory that it never had, or has no more.
bool GroupHost::SharesLife(const Hosted& hosted) const {
  for (const auto& [key, other] : groups_) {
    if (other.get() == &hosted || other->spec.nonce != hosted.spec.nonce) continue;
    if (shim::IsHeld(other->path).value_or(true)) return true;
  }
  return false;
}

}  // namespace regroup::agent
