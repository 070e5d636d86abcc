#include "launcher/cli/commands/job_parts.h"

#include <algorithm>
#include <set>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "common/report/format.h"
#include "launcher/cli/render/lists.h"

namespace regroup::cli {
namespace {

absl::Status No(std::string_view what, std::string_view because, std::string_view try_this) {
  return UserError(absl::StatusCode::kNotFound, what, because, try_this);
}

absl::Status CheckNode(const JobView& job, const LogFilter& filter, bool follow,
                       const std::vector<NodeView>& nodes) {
  std::set<std::string> names;
  for (const GenerationView& g : job.generations) {
    for (const MemberView& member : g.members) {
      if (member.name == filter.node || member.node.value() == filter.node) return absl::OkStatus();
      names.insert(member.name);
    }
  }
  const bool may_join = follow && std::any_of(nodes.begin(), nodes.end(), [&](const NodeView& n) {
                          return n.name == filter.node || n.id.value() == filter.node;
                        });
  if (may_join || names.empty()) return absl::OkStatus();
  std::vector<std::string> list(names.begin(), names.end());
  std::string nearest = DidYouMean(filter.node, list);
  return No(Cat(job.id.value(), " has not run on ", ShellQuote(filter.node)),
            Cat("it has run on ", JoinWords(list, ", ")),
            Cat("regroup logs ", job.id.value(), " --node ", nearest.empty() ? list[0] : nearest));
}

absl::Status CheckRanks(const JobView& job, const LogFilter& filter) {
  int world = 0;
  for (const GenerationView& g : job.generations) {
    if (!filter.generation || g.generation == *filter.generation) world = std::max(world, g.world);
  }
  for (int rank : filter.ranks) {
    if (rank < world || world == 0) continue;
    return No(Cat("no rank ", rank, " of ", job.id.value()),
              world == 1 ? std::string("it has rank 0 only") : Cat("it has ranks 0 to ", world - 1),
              Cat("regroup logs ", job.id.value(), " --rank ", world - 1));
  }
  return absl::OkStatus();
}

}  // namespace

std::string NotStarted(const JobView& job) {
  if (IsOver(job)) return Cat("it was ", job.state, " before any of its workers started");
  const std::string why = WhyOf(job);
  return Cat("it is ", job.state, why.empty() ? "" : ": ", why);
}

absl::Status CheckGeneration(const JobView& job, Generation generation, std::string_view command) {
  const auto has = [&](const GenerationView& g) { return g.generation == generation; };
  if (std::any_of(job.generations.begin(), job.generations.end(), has)) return absl::OkStatus();
  std::string known = "it has none yet";
  if (!job.generations.empty()) {
    const std::uint64_t first = job.generations.front().generation.value(),
                        last = job.generations.back().generation.value();
    known = first == last ? Cat("it has only ", first) : Cat("it has ", first, " to ", last);
  }
  return No(Cat("no generation ", generation.value(), " of ", job.id.value()), known,
            Cat(command, " ", job.id.value()));
}

absl::Status CheckLogs(const JobView& job, const LogFilter& filter, bool follow,
                       const std::vector<NodeView>& nodes) {
  if (job.generations.empty()) {
    if (follow && !IsOver(job)) return absl::OkStatus();
    return No(Cat(job.id.value(), " has no output"), NotStarted(job),
              IsOver(job) ? Cat("regroup explain ", job.id.value())
                          : Cat("regroup logs ", job.id.value(), " -f, which waits for it"));
  }
  // Of a job with very many generations the oldest are listed no more, but their output may be
  // kept.
  const Generation first = job.generations.front().generation;
  if (filter.generation && *filter.generation > first)
    RETURN_IF_ERROR(CheckGeneration(job, *filter.generation, "regroup logs"));
  if (!filter.node.empty()) RETURN_IF_ERROR(CheckNode(job, filter, follow, nodes));
  return CheckRanks(job, filter);
}

}  // namespace regroup::cli
