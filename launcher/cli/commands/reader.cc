#include "launcher/cli/commands/reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "common/rpc/local_coordinator.h"
#include "common/rpc/places.h"
#include "launcher/cli/render/lists.h"
#include "launcher/coordinator/shell/offline.h"

namespace regroup::cli {
namespace {

using namespace std::chrono_literals;
using regroup::v1::ReadRequest;
constexpr Duration kReadLimit = 10s;

bool Exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

absl::StatusOr<Reading> ReadEnded(const std::string& folder, const ReadRequest& request) {
  coordinator::ReadFilter filter;
  filter.jobs = request.what() == ReadRequest::WHAT_JOBS;
  filter.nodes = !filter.jobs;
  (filter.jobs ? filter.job : filter.node) = request.selector();
  filter.ended = request.ended();
  filter.detail = request.detail();
  absl::StatusOr<coordinator::ReadReply> reply = coordinator::ReadOffline(folder, filter);
  if (!reply.ok()) return Refused(reply.status());
  return Reading{std::move(reply->jobs), std::move(reply->nodes), Version{}};
}

// One of this host with another state directory, else the one that ran here last, else any.
std::string StartOrNameOne(const std::vector<Place>& places) {
  for (const LocalCoordinator& local : LocalCoordinators()) {
    if (!local.ad_hoc()) return Cat("--coordinator ", ShellQuote(local.folder));
  }
  for (const Place& place : places) {
    const std::optional<CoordinatorLock> lock = ReadCoordinatorLock(place.folder);
    if (lock && !lock->command.empty()) return lock->command;
  }
  return "regroup coordinator, or --coordinator HOST[:PORT]";
}

}  // namespace

absl::StatusOr<Reader> Reader::Open(const ReadOptions& options, std::string_view command) {
  ASSIGN_OR_RETURN(std::vector<Place> places, FindPlaces(options, command));
  return Reader(options, std::move(places));
}

absl::StatusOr<Reader::Part> Reader::ReadPlace(const Place& place,
                                               const ReadRequest& request) const {
  bool may_answer = place.tcp.has_value() || Exists(place.socket);
  absl::Status away =
      UserError(absl::StatusCode::kUnavailable, Cat("no coordinator at ", place.label),
                "there is no socket", "is it running? regroup ps shows what this host knows");
  if (may_answer) {
    absl::StatusOr<Client> client = Client::Dial(place);
    absl::StatusOr<Reading> reading =
        client.ok() ? client->Read(request, kReadLimit) : client.status();
    if (reading.ok()) return Part{*std::move(reading), true};
    if (reading.status().code() != absl::StatusCode::kUnavailable) return reading.status();
    away = reading.status();
  }
  // Who names a coordinator wants its answer, not what its journal said when it was last alive.
  if (place.folder.empty() || !options_.coordinator.empty()) return away;
  absl::StatusOr<Reading> ended = ReadEnded(place.folder, request);
  if (ended.ok()) return Part{*std::move(ended), false};
  // Its folder is locked, but it does not answer: starting, or ending.
  if (ended.status().code() == absl::StatusCode::kUnavailable) return away;
  return ended.status();
}

absl::Status Reader::Each(const ReadRequest& request,
                          const std::function<void(const Place&, Part)>& take) {
  absl::Status first;
  std::size_t read = 0;
  warnings_.clear();
  for (const Place& place : places_) {
    absl::StatusOr<Part> part = ReadPlace(place, request);
    if (part.ok()) {
      for (const std::string& warning : part->reading.warnings) warnings_.push_back(warning);
      take(place, *std::move(part));
      ++read;
    } else if (part.status().code() == absl::StatusCode::kNotFound) {
      ++read;
    } else {
      UserErrorParts parts = PartsOf(part.status());
      warnings_.push_back(Cat(parts.what, parts.because.empty() ? "" : ": ", parts.because));
      if (first.ok()) first = part.status();
    }
  }
  return read == 0 ? first : absl::OkStatus();
}

// What a journal says of a job that is not over was true when its coordinator ended.
void Reader::NoteDead(const Place& place, std::vector<JobView>& jobs) {
  std::string names;
  for (JobView& job : jobs) {
    if (IsOver(job)) continue;
    job.state = "unknown";
    job.why.reset();
    names += Cat(names.empty() ? "" : ", ", job.id.value());
  }
  if (names.empty()) return;
  const std::optional<CoordinatorLock> lock = ReadCoordinatorLock(place.folder);
  const bool service = lock && !lock->command.empty();
  notes_.push_back(Cat(
      "no coordinator runs in ", place.label, ", so it cannot be told how ", names,
      " fares · it is started by: ", service ? lock->command : "the launch command, given again"));
}

absl::StatusOr<std::vector<JobView>> Reader::Jobs(bool ended) {
  ReadRequest request;
  request.set_what(ReadRequest::WHAT_JOBS);
  request.set_ended(ended);
  std::vector<JobView> jobs;
  notes_.clear();
  RETURN_IF_ERROR(Each(request, [&](const Place& place, Part part) {
    if (!part.live) NoteDead(place, part.reading.jobs);
    std::move(part.reading.jobs.begin(), part.reading.jobs.end(), std::back_inserter(jobs));
  }));
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const JobView& a, const JobView& b) { return a.created_at < b.created_at; });
  return jobs;
}

absl::StatusOr<std::vector<NodeView>> Reader::Nodes() {
  ReadRequest request;
  request.set_what(ReadRequest::WHAT_NODES);
  std::vector<NodeView> nodes;
  std::vector<Place> dead;
  bool live = false;
  notes_.clear();
  RETURN_IF_ERROR(Each(request, [&](const Place& place, Part part) {
    live = live || part.live;
    if (!part.live && options_.coordinator.empty())
      return dead.push_back(place);  // Nodes of an ended run are gone with it.
    std::move(part.reading.nodes.begin(), part.reading.nodes.end(), std::back_inserter(nodes));
  }));
  for (const Place& place : dead) {
    const std::optional<CoordinatorLock> lock = ReadCoordinatorLock(place.folder);
    if (!live && lock && !lock->command.empty())
      notes_.push_back(
          Cat("no coordinator runs in ", place.label, " · it is started by: ", lock->command));
  }
  return nodes;
}

absl::Status Reader::NoSuchJob(const std::string& selector) {
  absl::StatusOr<std::vector<JobView>> jobs = Jobs(true);
  std::vector<std::string> ids;
  if (jobs.ok()) {
    for (const JobView& job : *jobs) ids.push_back(job.id.value());
  }
  if (ids.empty()) {
    std::string where;
    for (const Place& place : places_) where += Cat(where.empty() ? "" : ", ", place.label);
    return UserError(absl::StatusCode::kNotFound, Cat("no job ", ShellQuote(selector)),
                     where.empty() ? std::string("there is no run in the state directory")
                                   : Cat("there is no job in ", where),
                     "regroup ps -a, or --state-dir DIRECTORY");
  }
  std::string nearest = DidYouMean(selector, ids);
  return UserError(absl::StatusCode::kNotFound, Cat("no job ", ShellQuote(selector)),
                   nearest.empty() ? "" : Cat("did you mean ", nearest, "?"), "regroup ps -a");
}

absl::StatusOr<Found> Reader::FindJob(const std::string& selector, bool detail) {
  ReadRequest request;
  request.set_what(ReadRequest::WHAT_JOBS);
  request.set_selector(selector);
  request.set_detail(detail);
  std::vector<Found> found;
  RETURN_IF_ERROR(Each(request, [&](const Place& place, Part part) {
    for (JobView& job : part.reading.jobs) found.push_back({std::move(job), place, part.live});
  }));
  if (found.empty()) return NoSuchJob(selector);
  auto exact = std::stable_partition(found.begin(), found.end(),
                                     [&](const Found& f) { return f.job.id.value() == selector; });
  if (exact != found.begin()) found.erase(exact, found.end());
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return a.job.created_at > b.job.created_at;
  });
  std::set<std::string> ids;
  for (const Found& f : found) ids.insert(f.job.id.value());
  bool ambiguous = selector != "last" && found.size() > 1;
  if (ambiguous) {
    std::string list;
    for (const Found& f : found)
      list += Cat(list.empty() ? "" : ", ", f.job.id.value(), " (", f.place.label, ")");
    return UserError(
        absl::StatusCode::kFailedPrecondition, Cat(ShellQuote(selector), " is more than one job"),
        list, ids.size() > 1 ? "the full id" : Cat("--coordinator ", found.front().place.label));
  }
  return std::move(found.front());
}

absl::StatusOr<Client> TheCoordinator(const ReadOptions& options, std::string_view command) {
  ASSIGN_OR_RETURN(std::vector<Place> places, FindPlaces(options, command));
  std::vector<Client> live;
  absl::Status last;
  ReadRequest request;
  request.set_what(ReadRequest::WHAT_NODES);
  for (const Place& place : places) {
    if (!place.tcp && !Exists(place.socket)) continue;
    // The one of runs without an endpoint has no agents to give a job to, and comes and goes.
    bool of_local_runs = place.folder == LocalCoordinatorFolder(place.state_dir());
    if (of_local_runs && options.coordinator.empty()) continue;
    absl::StatusOr<Client> client = Client::Dial(place);
    absl::Status answered =
        client.ok() ? client->Read(request, kReadLimit).status() : client.status();
    if (answered.ok()) {
      live.push_back(*std::move(client));
    } else {
      last = answered;
    }
  }
  if (live.size() == 1) return std::move(live.front());
  if (live.size() > 1) {
    std::string list;
    for (const Client& client : live) list += Cat(list.empty() ? "" : ", ", client.place().label);
    return UserError(absl::StatusCode::kFailedPrecondition, "more than one coordinator answers",
                     list, Cat("--coordinator ", live.front().place().label));
  }
  if (!last.ok()) return last;
  ASSIGN_OR_RETURN(std::vector<std::string> directories, StateDirectories(options));
  if (!options.coordinator.empty()) {
    return UserError(absl::StatusCode::kUnavailable, "no coordinator",
                     Cat("nothing listens at ", options.coordinator),
                     "regroup coordinator, or --coordinator HOST[:PORT]");
  }
  return UserError(absl::StatusCode::kUnavailable, "no coordinator",
                   Cat("none runs in ", directories.front(), ", and --coordinator was not given"),
                   StartOrNameOne(places));
}

}  // namespace regroup::cli
