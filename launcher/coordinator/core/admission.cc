#include "launcher/coordinator/core/admission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/base/user_error.h"

namespace regroup::coordinator {
namespace {

std::string NodesText(const JobSpec& spec) {
  return spec.min_nodes == spec.max_nodes ? absl::StrCat(spec.min_nodes)
                                          : absl::StrCat(spec.min_nodes, ":", spec.max_nodes);
}

std::string Quoted(const std::string& line) { return absl::StrCat("'", line, "'"); }

std::string Milliseconds(Duration time) {
  return absl::StrCat(std::chrono::duration_cast<std::chrono::milliseconds>(time).count(), "ms");
}

std::string LimitText(const std::optional<int>& limit) {
  return limit ? absl::StrCat(*limit) : "unlimited";
}

// Whoever reads it typed one of the two commands: both texts and the way out are named.
absl::Status Differs(const JobId& job, const std::string& flag, const std::string& running,
                     const std::string& asked) {
  return UserError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("job ", job.value(), " runs with another ", flag,
                                " than this launch command asks for"),
                   absl::StrCat("the job has ", running, ", this launch command ", asked),
                   absl::StrCat("give ", running, ", or another --rdzv-id"));
}
absl::Status Mismatch(const JobId& job, const std::string& flag, const std::string& running,
                      const std::string& asked) {
  return Differs(job, flag, absl::StrCat(flag, " ", running), absl::StrCat(flag, " ", asked));
}

std::string WarmText(const std::optional<std::vector<std::string>>& modules) {
  if (!modules) return "no --warm";
  return modules->empty() ? "--warm" : absl::StrCat("--warm=", absl::StrJoin(*modules, ","));
}

// NAME or NAME-2: what a node that asked for NAME was given.
bool IsSuffixed(const std::string& given, const std::string& asked) {
  if (given.compare(0, asked.size(), asked) != 0) return false;
  std::string_view rest = std::string_view(given).substr(asked.size());
  if (rest.empty()) return true;
  return rest.size() > 1 && rest[0] == '-' &&
         rest.find_first_not_of("0123456789", 1) == std::string_view::npos;
}

}  // namespace

absl::Status CheckVersion(const Version& ours, const Version& theirs) {
  // One minor apart works both ways, so that a cluster can be upgraded node by node.
  const std::uint32_t apart =
      ours.minor > theirs.minor ? ours.minor - theirs.minor : theirs.minor - ours.minor;
  if (ours.major == theirs.major && apart <= 1) return absl::OkStatus();
  return UserError(
      absl::StatusCode::kFailedPrecondition, "coordinator and agent speak different protocols",
      absl::StrCat("the coordinator speaks ", ours.major, ".", ours.minor, " (", ours.build,
                   "), the agent ", theirs.major, ".", theirs.minor, " (", theirs.build, ")"),
      "install the same Regroup on all nodes");
}

Fence CheckFence(const ClusterId& cluster, Epoch epoch, const Hello& hello, bool known) {
  // An agent that never followed a coordinator has nothing to protect. One of another cluster is
  // refused whatever its epoch. A higher epoch than ours means that this journal was restored from
  // an old copy, but only the word of a node that this journal knows may stop a coordinator.
  if (hello.cluster.empty()) return Fence::kPasses;
  if (hello.cluster != cluster) return Fence::kOtherCluster;
  if (hello.highest_epoch <= epoch) return Fence::kPasses;
  return known ? Fence::kJournalTooOld : Fence::kUnprovedEpoch;
}

Epoch NextEpoch(const MetaRow& meta, bool accept_journal) {
  // One that no row of coordinators can have reached was made up.
  const bool plausible = meta.older_than.value() <= kMaxEpoch;
  return accept_journal && plausible ? std::max(meta.epoch, meta.older_than).Next()
                                     : meta.epoch.Next();
}

absl::StatusOr<std::string> AdmitName(const Hello& hello, const std::optional<std::string>& current,
                                      const NameTaken& taken) {
  // A node keeps the name that it was given before, so that NAME-2 does not become NAME when the
  // first NAME is gone: people and logs know it by that.
  if (current && !hello.name_explicit && IsSuffixed(*current, hello.name)) return *current;
  std::optional<std::string> address = taken(hello.name);
  if (!address) return hello.name;
  if (hello.name_explicit) {
    return UserError(
        absl::StatusCode::kAlreadyExists, absl::StrCat("node name ", hello.name, " is taken"),
        absl::StrCat("a node at ", *address, " has it, this one is at ", hello.address),
        "give another --node-name, or none");
  }
  for (int suffix = 2;; ++suffix) {
    std::string name = absl::StrCat(hello.name, "-", suffix);
    if (!taken(name)) return name;
  }
}

bool IsLoopback(const std::string& ip) {
  return ip.starts_with("127.") || ip == "::1" || ip.starts_with("::ffff:127.");
}

absl::Status CheckSameBounds(const JobId& job, const JobSpec& running, const JobSpec& asked) {
  if (running.min_nodes != asked.min_nodes || running.max_nodes != asked.max_nodes)
    return Mismatch(job, "--nnodes", NodesText(running), NodesText(asked));
  if (running.unit != asked.unit)
    return Mismatch(job, "unit", absl::StrCat(running.unit), absl::StrCat(asked.unit));
  if (running.max_restarts != asked.max_restarts)
    return Mismatch(job, "--max-restarts", absl::StrCat(running.max_restarts),
                    absl::StrCat(asked.max_restarts));
  if (running.max_preemptions != asked.max_preemptions)
    return Mismatch(job, "--max-preemptions", LimitText(running.max_preemptions),
                    LimitText(asked.max_preemptions));
  // A member may take as long to prepare as the job's check may.
  const NodeCheck &check = running.node_check, &own = asked.node_check;
  if (check.command != own.command)
    return Mismatch(job, "--node-check", Quoted(check.command), Quoted(own.command));
  if (check.wanted() && check.timeout != own.timeout)
    return Mismatch(job, "--node-check-timeout", Milliseconds(check.timeout),
                    Milliseconds(own.timeout));
  if (running.warm != asked.warm)
    return Differs(job, "--warm", WarmText(running.warm), WarmText(asked.warm));
  if (running.keeps_ranks() != asked.keeps_ranks())
    return Differs(job, "--in-place", running.keeps_ranks() ? "on" : "off",
                   asked.keeps_ranks() ? "on" : "off");
  // ROLE_RANK and ROLE_WORLD_SIZE count within a role: with one role they are RANK and WORLD_SIZE.
  if (running.role != asked.role) return Mismatch(job, "--role", running.role, asked.role);
  return absl::OkStatus();
}

LaunchDecision DecideLaunch(const LaunchRequest& request, const std::optional<LaunchedJob>& mine,
                            const std::optional<LaunchedJob>& newest) {
  if (mine) {
    // The same command asks again after a reconnect: it belongs to its own job,
    // whatever became of that.
    if (mine->ended) return ShowResult{mine->id};
    return JoinJob{mine->id};
  }
  if (request.standalone || !newest) return BeginJob{};
  if (newest->ended) {
    // A command that was started before the job ended was meant for it and is only late; one that
    // was started after it wants a new run.
    if (newest->ended_for && request.age >= *newest->ended_for) return ShowResult{newest->id};
    return BeginJob{};
  }
  absl::Status same = CheckSameBounds(newest->id, newest->spec, request.spec);
  if (!same.ok()) return same;
  return JoinJob{newest->id};
}

}  // namespace regroup::coordinator
