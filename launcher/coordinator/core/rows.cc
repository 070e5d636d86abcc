#include "launcher/coordinator/core/rows.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace regroup::coordinator {
namespace {

constexpr std::size_t kMaxGenerationBytes = 900u << 10;
constexpr std::size_t kFixed = 64;  // Numbers, tags and lengths of one message, generously.

std::size_t SizeOf(const std::string& text) { return text.size() + 4; }
std::size_t SizeOf(const RankExit& exit) { return kFixed + SizeOf(exit.error); }
std::size_t SizeOf(const RankCause& cause) {
  return kFixed + SizeOf(cause.node) + SizeOf(cause.exit);
}
std::size_t SizeOf(const Version& version) { return kFixed + SizeOf(version.build); }
std::size_t SizeOf(const std::vector<std::string>& texts) {
  std::size_t size = 0;
  for (const std::string& text : texts) size += SizeOf(text);
  return size;
}

// Only texts and lists vary in size; numbers are within kFixed. A bound that is too high costs a
// little room in a step, one that is too low would let a step outgrow the journal's limit.
struct SizeOfReason {
  std::size_t operator()(const WorkerFailed& r) const { return SizeOf(r.cause); }
  std::size_t operator()(const ExecFailed& r) const { return SizeOf(r.cause); }
  std::size_t operator()(const NodeLost& r) const { return SizeOf(r.node) + SizeOf(r.how); }
  std::size_t operator()(const Resized& r) const { return SizeOf(r.joined); }
  std::size_t operator()(const Cancelled& r) const { return SizeOf(r.by); }
  std::size_t operator()(const Finished&) const { return 0; }
  template <class R>
  std::size_t operator()(const R& r) const {
    return SizeOf(r.node);
  }
};
std::size_t SizeOf(const EndReason& reason) { return kFixed + std::visit(SizeOfReason{}, reason); }

struct SizeOfWait {
  std::size_t operator()(const BelowMinimum& r) const { return SizeOf(r.missing); }
  std::size_t operator()(const SlotsStopping& r) const { return SizeOf(r.nodes); }
  std::size_t operator()(const AwaitReattach& r) const { return SizeOf(r.nodes); }
  std::size_t operator()(const UnreachableHold& r) const { return SizeOf(r.nodes); }
  std::size_t operator()(const MembersPreparing& r) const { return SizeOf(r.nodes); }
  std::size_t operator()(const BudgetVerdictOpen& r) const { return SizeOf(r.waiting_for); }
  std::size_t operator()(const FinishHold& r) const { return SizeOf(r.node); }
  std::size_t operator()(const SavingBeforeLeave& r) const { return SizeOf(r.node); }
  std::size_t operator()(const BehindJob& r) const { return SizeOf(r.job.value()); }
  std::size_t operator()(const CannotFit& r) const { return SizeOf(r.node); }
  std::size_t operator()(const LastCall&) const { return 0; }
  std::size_t operator()(const BackingOff& r) const { return SizeOf(r.node) + SizeOf(r.why); }
};

struct SizeOfEvent {
  std::size_t operator()(const NodeJoined& e) const { return SizeOf(e.node); }
  std::size_t operator()(const NodeLeft& e) const { return SizeOf(e.node) + SizeOf(e.why); }
  std::size_t operator()(const GenerationFormed& e) const { return SizeOf(e.members); }
  std::size_t operator()(const GenerationRunning&) const { return 2 * kFixed; }
  std::size_t operator()(const GenerationEnded& e) const { return SizeOf(e.reason); }
  std::size_t operator()(const CommitAccepted&) const { return 0; }
  std::size_t operator()(const NodeWillLeave& e) const { return SizeOf(e.node) + kFixed; }
  std::size_t operator()(const Waits& e) const { return std::visit(SizeOfWait{}, e.reason); }
  std::size_t operator()(const JobEnded& e) const { return SizeOf(e.state); }
};

// Encoded sizes without encoding, for the core knows no protobuf: texts count whole, and what is
// repeated by its number.
struct SizeOfValue {
  std::size_t operator()(const MetaRow& row) const { return SizeOf(row.cluster.value()); }
  std::size_t operator()(const NodeRow& row) const {
    std::size_t size = SizeOf(row.node.value()) + SizeOf(row.name) + SizeOf(row.boot.value()) +
                       SizeOf(row.address) + SizeOf(row.dialled) + SizeOf(row.version) +
                       SizeOf(row.lost_how);
    if (row.launch) size += kFixed + SizeOf(row.launch->key) + SizeOf(row.launch->job.value());
    for (const TakenSlots& taken : row.taken) size += kFixed + SizeOf(taken.job.value());
    return size;
  }
  std::size_t operator()(const JobSpecRow& row) const {
    const JobSpec& spec = row.spec;
    std::size_t size = 4 * kFixed + SizeOf(row.job.value()) + SizeOf(row.key) + SizeOf(spec.name) +
                       SizeOf(spec.command) + SizeOf(spec.directory) + 24 * spec.exit_codes.size();
    for (const auto& [name, value] : spec.environment) size += 8 + SizeOf(name) + SizeOf(value);
    return size;
  }
  std::size_t operator()(const JobStateRow& row) const {
    std::size_t size = 6 * kFixed + SizeOf(row.job.value()) + SizeOf(row.cancel.key) +
                       10 * row.ends.charges.size();
    for (const ExcludedNode& node : row.excluded)
      size += kFixed + SizeOf(node.node.value()) + SizeOf(node.name);
    if (row.verdict && row.verdict->failed)
      size += 4 * kFixed;  // The longest reason names a program or a person.
    return size + (row.verdict ? SizeOfFail(*row.verdict) : 0);
  }
  std::size_t operator()(const GenerationRow& row) const {
    std::size_t size = 8 * kFixed + SizeOf(row.job.value());
    for (const GenerationMember& member : row.members) {
      size += 24 + SizeOf(member.node.value()) + SizeOf(member.name) + SizeOf(member.address) +
              6 * member.pids.size();
      if (member.witness) size += 12 + SizeOf(member.witness->host);
    }
    if (row.ended) size += SizeOf(*row.ended);
    for (const RankCause& cause : row.consequences) size += SizeOf(cause);
    return size;
  }
  std::size_t operator()(const DoneRow& row) const {
    return SizeOf(row.job.value()) + SizeOf(row.node.value()) + 6 * row.local_ranks.size();
  }
  std::size_t operator()(const CommitRow& row) const {
    return SizeOf(row.job.value()) + SizeOf(row.manifest_hash) + SizeOf(row.path);
  }
  std::size_t operator()(const JobEventRow& row) const {
    return SizeOf(row.job.value()) + std::visit(SizeOfEvent{}, row.event.body);
  }
  static std::size_t SizeOfFail(const Verdict& verdict) {
    if (!verdict.failed) return 0;
    if (auto* r = std::get_if<NotExecutable>(&*verdict.failed)) return SizeOf(r->program);
    if (auto* r = std::get_if<CancelledBy>(&*verdict.failed)) return SizeOf(r->who);
    return 0;
  }
};

}  // namespace

Key MetaKey() { return "meta"; }
Key NodeKey(const NodeId& node) { return absl::StrCat("node/", node.value()); }
Key JobSpecKey(const JobId& job) { return absl::StrCat("job/", job.value(), "/spec"); }
Key JobStateKey(const JobId& job) { return absl::StrCat("job/", job.value(), "/state"); }
Key GenerationKey(const JobId& job, Generation generation) {
  return absl::StrFormat("job/%s/gen/%012d", job.value(), generation.value());
}
Key DoneKey(const JobId& job, const NodeId& node) {
  return absl::StrCat("job/", job.value(), "/done/", node.value());
}
Key CommitKey(const JobId& job) { return absl::StrCat("job/", job.value(), "/commit"); }
Key JobEventKey(const JobId& job, std::uint64_t slot) {
  return absl::StrFormat("job/%s/event/%06d", job.value(), slot);
}

Key JobFolder(const JobId& job) { return absl::StrCat("job/", job.value(), "/"); }

void FitRow(GenerationRow& row) {
  if (SizeOfValue{}(row) > kMaxGenerationBytes)
    for (GenerationMember& member : row.members) member.pids.clear();
  if (SizeOfValue{}(row) > kMaxGenerationBytes)
    for (GenerationMember& member : row.members) member.witness.reset();
}

std::size_t EstimateBytes(const Row& row) {
  std::size_t size = kFixed + SizeOf(row.key);
  if (row.value) size += kFixed + std::visit(SizeOfValue{}, *row.value);
  return size;
}

int WorldOf(const GenerationRow& row) {
  int world = 0;
  for (const GenerationMember& member : row.members) world += member.workers;
  return world;
}

}  // namespace regroup::coordinator
