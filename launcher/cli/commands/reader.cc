#include "launcher/cli/commands/reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "common/report/format.h"
#include "common/rpc/local_coordinator.h"
#include "common/rpc/places.h"
#include "launcher/cli/render/lists.h"
#include "launcher/coordinator/shell/offline.h"

namespace regroup::cli {
namespace {

using namespace std::chrono_literals;
using regroup::v1::ReadRequest;
constexpr Duration kReadLimit = 10s;
constexpr Duration kReadHereLimit = 2s;  // Of this host's: its journal says nearly as much.
constexpr std::size_t kMostNamed = 4;    // Jobs in one line; more are counted.

bool Exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

// `held`: a coordinator has the folder, but does not answer.
absl::StatusOr<Reading> ReadJournal(const std::string& folder, bool held,
                                    const ReadRequest& request) {
  coordinator::ReadFilter filter;
  filter.jobs = request.what() == ReadRequest::WHAT_JOBS;
  filter.nodes = !filter.jobs;
  (filter.jobs ? filter.job : filter.node) = request.selector();
  filter.ended = request.ended();
  filter.detail = request.detail();
  absl::StatusOr<coordinator::ReadReply> reply =
      held ? coordinator::ReadHeld(folder, filter) : coordinator::ReadOffline(folder, filter);
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
        client.ok() ? client->Read(request, place.folder.empty() ? kReadLimit : kReadHereLimit)
                    : client.status();
    if (reading.ok()) return Part{*std::move(reading), true, false};
    if (!absl::IsUnavailable(reading.status()) && !absl::IsDeadlineExceeded(reading.status()))
      return reading.status();
    away = reading.status();
  }
  if (place.folder.empty()) return away;
  // Who names a coordinator wants its answer, not what its journal said when it was last alive.
  const bool named = !options_.coordinator.empty();
  if (named && !absl::IsDeadlineExceeded(away)) return away;
  absl::StatusOr<Reading> ended = ReadJournal(place.folder, false, request);
  const bool held = absl::IsUnavailable(ended.status());
  if (named && !held) return away;  // Another program has its port.
  if (ended.ok()) return Part{*std::move(ended), false, false};
  if (!held) return ended.status();
  // Its folder is locked, but it does not answer: starting, ending, stopped, or its disk is full.
  absl::StatusOr<Reading> durable = ReadJournal(place.folder, true, request);
  const bool refused =
      durable.status().code() == absl::StatusCode::kNotFound || IsAmbiguousJob(durable.status());
  if (!durable.ok()) return refused ? durable.status() : away;
  return Part{*std::move(durable), false, true};
}

absl::Status Reader::Each(const ReadRequest& request,
                          const std::function<void(const Place&, Part)>& take) {
  absl::Status first;
  std::size_t read = 0;
  warnings_.clear();
  notes_.clear();
  memory_.clear();
  ambiguous_ = absl::OkStatus();
  const bool named = !options_.coordinator.empty();  // Several are names of one.
  for (const Place& place : places_) {
    absl::StatusOr<Part> part = ReadPlace(place, request);
    const absl::Status status = part.status();
    if (!part.ok() && !absl::IsNotFound(status) && !IsAmbiguousJob(status)) {
      UserErrorParts parts = PartsOf(status);
      warnings_.push_back(Cat(parts.what, parts.because.empty() ? "" : ": ", parts.because));
      if (first.ok()) first = status;
      continue;
    }
    ++read;
    if (IsAmbiguousJob(status)) ambiguous_ = status;
    if (part.ok()) {
      for (const std::string& warning : part->reading.warnings) notes_.push_back(warning);
      if (part->reading.memory) memory_.push_back({place.label, *part->reading.memory});
      if (part->held) {
        notes_.push_back(Cat("the coordinator at ", place.label,
                             " does not answer; this is what its journal says"));
      }
      take(place, *std::move(part));
    }
    if (!named) continue;
    warnings_.clear();  // Of those before it.
    break;
  }
  return read == 0 ? first : absl::OkStatus();
}

// What a journal says of a job that is not over was true when its coordinator ended.
void Reader::NoteDead(const Place& place, std::vector<JobView>& jobs) {
  std::vector<std::string> names;
  for (JobView& job : jobs) {
    if (IsOver(job)) continue;
    job.state = "unknown";
    job.why.reset();
    names.push_back(job.id.value());
  }
  if (names.empty()) return;
  const std::string who = names.size() > kMostNamed
                              ? Count(static_cast<long long>(names.size()), "job")
                              : JoinWords(names);
  const std::optional<CoordinatorLock> lock = ReadCoordinatorLock(place.folder);
  const bool service = lock && !lock->command.empty();
  notes_.push_back(Cat("no coordinator runs in ", place.label, ", so it cannot be told how ", who,
                       names.size() == 1 ? " fares" : " fare", " · it is started by: ",
                       service ? lock->command : "the launch command, given again"));
}

absl::StatusOr<std::vector<JobView>> Reader::Jobs(bool ended) {
  ReadRequest request;
  request.set_what(ReadRequest::WHAT_JOBS);
  request.set_ended(ended);
  std::vector<JobView> jobs;
  RETURN_IF_ERROR(Each(request, [&](const Place& place, Part part) {
    if (!part.live && !part.held) NoteDead(place, part.reading.jobs);
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
  RETURN_IF_ERROR(Each(request, [&](const Place& place, Part part) {
    live = live || part.live || part.held;
    if (!part.live && !part.held && options_.coordinator.empty())
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

absl::Status Reader::NoSuchJob(const std::string& word) {
  absl::StatusOr<std::vector<JobView>> jobs = Jobs(true);
  std::vector<std::string> ids;
  if (jobs.ok()) {
    for (const JobView& job : *jobs) ids.push_back(job.id.value());
  }
  const std::string what = Cat("no job ", ShellQuote(word));
  if (ids.empty()) {
    std::string where;
    for (const Place& place : places_) where += Cat(where.empty() ? "" : ", ", place.label);
    if (word == kLastJob) {
      return UserError(
          absl::StatusCode::kNotFound, "there is no job yet",
          where.empty() ? "nothing has run from this state directory" : Cat("none in ", where),
          "regroup run train.py, or --state-dir DIRECTORY");
    }
    return UserError(absl::StatusCode::kNotFound, what,
                     where.empty() ? "nothing has run from this state directory"
                                   : Cat("there is no job at all in ", where),
                     "regroup ps -a, or --state-dir DIRECTORY");
  }
  std::string nearest;
  for (auto id = ids.rbegin(); nearest.empty() && id != ids.rend(); ++id) {
    if (id->starts_with(word)) nearest = *id;
  }
  if (nearest.empty()) nearest = DidYouMean(word, ids);
  return UserError(absl::StatusCode::kNotFound, what,
                   nearest.empty() ? "" : Cat("did you mean ", nearest, "?"), "regroup ps -a");
}

absl::StatusOr<Found> Reader::FindJob(const std::string& word, bool detail, JobPrefixes prefixes) {
  ReadRequest request;
  request.set_what(ReadRequest::WHAT_JOBS);
  request.set_selector(word);
  request.set_detail(detail);
  std::vector<Found> found;
  RETURN_IF_ERROR(Each(request, [&](const Place& place, Part part) {
    for (JobView& job : part.reading.jobs)
      found.push_back({std::move(job), place, part.live, part.held});
  }));
  std::vector<JobChoice> choices;
  for (const Found& f : found) {
    const bool over = IsOver(f.job) && f.job.state != "preempted";
    choices.push_back(
        {f.job.id, f.job.spec.name, over, f.job.created_at.time_since_epoch().count()});
  }
  const std::vector<std::size_t> meant = ChooseJobs(word, choices, prefixes);
  const bool exact = meant.size() == 1 && found[meant[0]].job.id.value() == word;
  if (!exact && !ambiguous_.ok()) {
    const absl::Status ambiguous = ambiguous_;
    if (prefixes == JobPrefixes::kAllowed) return ambiguous;
    ASSIGN_OR_RETURN(const std::vector<JobView> jobs, Jobs(true));
    const bool name = std::any_of(jobs.begin(), jobs.end(),
                                  [&](const JobView& job) { return job.spec.name == word; });
    return name ? ambiguous : NoSuchJob(word);
  }
  if (meant.empty()) return NoSuchJob(word);
  if (meant.size() == 1) return std::move(found[meant[0]]);
  std::string list;
  std::set<std::string> ids;
  for (std::size_t i : meant) {
    list += Cat(list.empty() ? "" : ", ", found[i].job.id.value(), " (", found[i].place.label, ")");
    ids.insert(found[i].job.id.value());
  }
  if (ids.size() > 1) return Refused(AmbiguousJob(word, list, *ids.begin()));
  return UserError(absl::StatusCode::kFailedPrecondition,
                   Cat("there is more than one job ", *ids.begin()), list,
                   Cat("--coordinator ", found[meant[0]].place.label));
}

void TellNotes(const Reader& reader, const Terminal& terminal) {
  for (const std::vector<std::string>* list : {&reader.warnings(), &reader.notes()}) {
    for (const std::string& text : *list)
      terminal.Say(Cat("regroup: ", EscapeControls(text), "\n"));
  }
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
      if (!options.coordinator.empty()) break;  // Several names of one.
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
