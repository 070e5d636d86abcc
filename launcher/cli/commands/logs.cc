#include <regex.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "common/io/proc.h"
#include "common/rpc/convert.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/job_parts.h"
#include "launcher/cli/commands/log_source.h"
#include "launcher/cli/render/lists.h"

namespace regroup::cli {
namespace {

using namespace std::chrono_literals;
constexpr std::size_t kMostHeldBytes =
    64u << 20;  // Above it the older half is printed, in the order known so far.
constexpr std::size_t kPrintedAtOnceBytes = 1u << 20;  // Of what is read from files.
constexpr auto kReorder =
    100ms;  // A followed line waits once or twice this long for older ones of other ranks.
constexpr int kMostRanks = 65'536;
constexpr Duration kPatience = 10min, kShownAfter = 2s, kRetry = 200ms;  // With a coordinator.

// POSIX extended, as grep -E; linear in memory, unlike std::regex. Lines may hold NUL.
class Pattern {
 public:
  Pattern() = default;
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  ~Pattern() {
    if (compiled_) ::regfree(&regex_);
  }
  absl::Status Compile(const std::string& text) {
    int error = ::regcomp(&regex_, text.c_str(), REG_EXTENDED);
    if (error == 0) return compiled_ = true, absl::OkStatus();
    char why[128];
    ::regerror(error, &regex_, why, sizeof why);
    return UserError(absl::StatusCode::kInvalidArgument,
                     Cat(ShellQuote(text.substr(0, 60)), " is not a regular expression"), why,
                     "as for grep -E");
  }
  bool given() const { return compiled_; }
  bool Matches(const std::string& line) const {
    if (!compiled_) return true;
    regmatch_t range{};
    range.rm_eo = static_cast<regoff_t>(line.size());
    return ::regexec(&regex_, line.data(), 1, &range, REG_STARTEND) == 0;
  }

 private:
  regex_t regex_{};
  bool compiled_ = false;
};

absl::Status ParseRanks(std::string_view text, std::vector<int>& ranks) {
  while (!text.empty()) {
    std::size_t comma = text.find(',');
    absl::StatusOr<std::int64_t> rank = ParseNumber(text.substr(0, comma), 0, kMostRanks - 1);
    if (!rank.ok()) return rank.status();
    ranks.push_back(static_cast<int>(*rank));
    if (comma == std::string_view::npos) return absl::OkStatus();
    text.remove_prefix(comma + 1);
  }
  return UserError(absl::StatusCode::kInvalidArgument, "a rank is missing", "R or R,R is expected",
                   "0,1");
}

class Logs : public Command {
 public:
  Logs()
      : Command({.name = "logs",
                 .summary = "output of a job's workers, of all ranks in order of time",
                 .usage =
                     "regroup logs JOB [-f] [--rank R,R] [--node N] [--generation G]\n"
                     "                    [--stdout] [--stderr] [--since DURATION] [--grep RE]\n"
                     "                    [--tail N] [--raw]",
                 .text = "Lines of all ranks and generations, merged by the time they were written "
                         "(UTC); a line "
                         "separates generations. A live job's logs come from every agent, nodes "
                         "that cannot be reached "
                         "are named; an ended run's are read from disk. With -f no line is lost "
                         "while an agent or the coordinator restarts. On a terminal workers can "
                         "colour their lines, of a progress bar the last state is shown, and every "
                         "other control byte is escaped; into a pipe, and with --raw, go the bytes "
                         "that were written.",
                 .example = "regroup logs train-4 -f --rank 0\nregroup logs last --generation 3 "
                            "--stderr --tail 20",
                 .positionals = {{"JOB", "an id, a name, the beginning of an id, or last"}}}) {
    AddSwitch(line().app(), "-f,--follow", follow_, "go on until the job is over");
    AddParsed(line().app(), "--rank", "R,R", "", "only these global ranks",
              [this](std::string_view text) { return ParseRanks(text, filter_.ranks = {}); });
    AddText(line().app(), "--node", filter_.node, "only what this node wrote, by name or id",
            "NODE");
    AddInt(line().app(), "--generation", generation_, 1, 1'000'000'000, "only this generation",
           "G");
    AddSwitch(line().app(), "--stdout", filter_.stdout_only,
              "only standard output; with --stderr: both, as without either");
    AddSwitch(line().app(), "--stderr", filter_.stderr_only,
              "only standard error; with --stdout: both, as without either");
    AddDuration(line().app(), "--since", filter_.since, "not older than this, as in 10m");
    AddParsed(line().app(), "--grep", "RE", "", "only lines that match, as for grep -E",
              [this](std::string_view text) { return pattern_.Compile(std::string(text)); });
    AddInt(line().app(), "--tail", filter_.tail, 0, 1'000'000'000,
           "at most so many last lines of each rank, of its node's newest generation");
    AddSwitch(line().app(), "--raw", raw_, "lines as written: no time, no node, no separators");
    AddText(line().app(), "--log-dir", log_dir_,
            "where an ended run kept its output, if it was given --log-dir", "DIRECTORY");
    DescribeFlags(line().app(), options_, "a JSON object for each line instead of text");
    ScopeEnvironment(line().app(), "logs");
  }

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) override {
    RETURN_IF_ERROR(CheckWords(*this, words, 1, 1));
    if (filter_.stdout_only && filter_.stderr_only)
      filter_.stdout_only = filter_.stderr_only = false;
    if (generation_) filter_.generation = Generation(static_cast<std::uint64_t>(*generation_));
    ASSIGN_OR_RETURN(Reader reader, Reader::Open(options_, Cat("regroup logs ", words.rest[0])));
    ASSIGN_OR_RETURN(Found found, reader.FindJob(words.rest[0], true));
    TellNotes(reader, terminal);
    RETURN_IF_ERROR(Check(reader, found.job));
    if (found.job.generations.empty())
      terminal.Say(Cat("regroup: ", found.job.id.value(), " has no output yet, ",
                       NotStarted(found.job), "; waiting for it\n"));
    LogForm form = options_.json ? LogForm::kJson : raw_ ? LogForm::kRaw : LogForm::kText;
    LogMerge merge(found.job, form, terminal.out());
    bool run_over =
        IsOver(found.job) && found.job.spec.origin == JobOrigin::kLaunched;  // Its agents are gone.
    if (!found.live || run_over || !log_dir_.empty()) {
      std::vector<std::string> roots =
          FindLogRoots(found.place.state_dir(), log_dir_, found.job.id);
      if (log_dir_.empty()) roots = OwnLogRoots(roots, found.place, found.job.spec.origin);
      if (!found.live || !roots.empty()) return FromDisk(found, roots, merge, terminal);
    }
    return Live(reader, std::move(found), merge, terminal);
  }

  std::function<int(int)> on_signal(const Terminal&) override {
    if (!follow_) return nullptr;
    return [](int signal) { return signal == SIGINT ? 0 : 128 + signal; };
  }

 private:
  absl::Status Check(Reader& reader, const JobView& job) const {
    std::vector<NodeView> nodes;
    if (follow_ && !filter_.node.empty()) {
      absl::StatusOr<std::vector<NodeView>> known = reader.Nodes();
      if (known.ok()) nodes = *std::move(known);
    }
    return CheckLogs(job, filter_, follow_, nodes);
  }

  absl::StatusOr<int> FromDisk(const Found& found, const std::vector<std::string>& roots,
                               LogMerge& merge, const Terminal& terminal) {
    if (roots.empty()) {
      return UserError(
          absl::StatusCode::kNotFound,
          Cat("there are no logs of ", found.job.id.value(), " on this host"),
          log_dir_.empty() ? Cat("none below ", found.place.state_dir())
                           : Cat("none in ", log_dir_),
          "--log-dir DIRECTORY where the run was given one, or ask on the other nodes");
    }
    for (const std::string& text : NotKept(roots, found.job, filter_))
      terminal.Say(Cat("regroup: ", text, "\n"));
    if (!filter_.tail && !filter_.since) AddEvents(found.job, merge);
    absl::Status printed;
    RETURN_IF_ERROR(ReadLogFiles(roots, found.job, filter_, [&](LogEntry entry) {
      const WallTime at = entry.at;
      if (printed.ok()) printed = AddEntry(std::move(entry), merge, terminal);
      // They come in order of time.
      if (printed.ok() && merge.held_bytes() >= kPrintedAtOnceBytes)
        printed = terminal.Print(merge.Take(at));
    }));
    RETURN_IF_ERROR(printed);
    RETURN_IF_ERROR(terminal.Print(merge.Take(std::nullopt)));
    if (filter_.ranks.empty() && filter_.node.empty() && !filter_.since && !filter_.stdout_only &&
        !filter_.stderr_only) {
      for (const std::string& node : NodesWithoutLogs(roots, found.job)) {
        terminal.Say(Cat("regroup: no output of ", node, " on this host\n"));
      }
    }
    return kDone;
  }

  void AddEvents(const JobView& job, LogMerge& merge) const {
    for (const JobEvent& event : job.events) {
      if (!filter_.generation) merge.Add(event);
    }
  }

  absl::Status AddEntry(LogEntry entry, LogMerge& merge, const Terminal& terminal) const {
    if (!pattern_.Matches(entry.text)) return absl::OkStatus();
    if (pattern_.given()) entry.cut = false;  // What it goes on with may not match.
    merge.Add(entry);
    if (merge.held_bytes() < kMostHeldBytes) return absl::OkStatus();
    return terminal.Print(merge.Take(merge.Median()));
  }

  regroup::v1::LogSelection Selection(const JobId& job) const {
    regroup::v1::LogSelection selection;
    selection.set_job(job.value());
    for (int rank : filter_.ranks) selection.add_ranks(rank);
    selection.set_node(filter_.node);
    selection.set_generation(filter_.generation ? filter_.generation->value() : 0);
    selection.set_stdout_only(filter_.stdout_only);
    selection.set_stderr_only(filter_.stderr_only);
    if (filter_.since) selection.set_since_ns(filter_.since->count());
    if (filter_.tail) selection.set_tail(*filter_.tail);
    selection.set_follow(follow_);
    return selection;
  }

  // Prints what is old enough, a few times a second, while the call's thread adds.
  class Follower {
   public:
    // `printed`: what came of all printing so far. Guarded by the mutex.
    Follower(LogMerge& merge, const Terminal& terminal, absl::Status& printed)
        : merge_(merge), terminal_(terminal), printed_(printed), thread_([this] { Loop(); }) {}
    ~Follower() {
      {
        std::lock_guard lock(mutex_);
        done_ = true;
      }
      wake_.notify_all();
      thread_.join();
    }
    std::mutex& mutex() { return mutex_; }

   private:
    void Loop() {
      std::unique_lock lock(mutex_);
      while (!done_) {
        wake_.wait_for(lock, kReorder);
        std::string text = merge_.TakeSettled();
        if (text.empty() || !printed_.ok()) continue;
        printed_ = terminal_.Print(text);
      }
    }
    LogMerge& merge_;  // Guarded by mutex_.
    const Terminal& terminal_;
    absl::Status& printed_;
    std::mutex mutex_;
    std::condition_variable wake_;
    bool done_ = false;
    std::thread thread_;
  };

  // What one reading has got so far, over any number of calls.
  struct Progress {
    Progress(std::function<void(LogEntry)> take, std::function<void(std::string)> tell)
        : replies(std::move(take), std::move(tell)) {}
    LogReplies replies;
    std::map<std::string, std::string> problems;  // By node.
    std::uint64_t last_event = 0;
    absl::Status printed;
  };

  absl::StatusOr<int> Live(Reader& reader, Found found, LogMerge& merge, const Terminal& terminal) {
    std::mutex alone;
    Progress progress(
        [&](LogEntry entry) {
          if (progress.printed.ok()) progress.printed = AddEntry(std::move(entry), merge, terminal);
        },
        [&](const std::string& text) { terminal.Say(Cat("regroup: ", text, "\n")); });
    std::unique_ptr<Follower> follower;
    if (follow_) {
      follower = std::make_unique<Follower>(merge, terminal, progress.printed);
    } else if (!filter_.tail && !filter_.since) {
      AddEvents(found.job, merge);
    }
    if (!found.job.events.empty()) progress.last_event = found.job.events.back().number;
    std::mutex& mutex = follower ? follower->mutex() : alone;
    absl::Status called = Call(found, progress, mutex, merge, terminal);
    // Its coordinator was killed, say: whatever is missing is asked for again once it is back.
    while (follow_ && absl::IsUnavailable(called)) {
      ASSIGN_OR_RETURN(found, Await(reader, found, called, terminal));
      {
        std::lock_guard lock(mutex);
        for (const JobEvent& event : found.job.events) AddNewEvent(event, progress, merge);
      }
      called = found.live ? Call(found, progress, mutex, merge, terminal) : absl::OkStatus();
    }
    follower.reset();
    progress.replies.Finish();
    if (follow_ && called.ok()) called = Rest(reader, found, progress, merge, terminal);
    progress.printed.Update(terminal.Print(merge.Take(std::nullopt)));
    for (const auto& [node, problem] : progress.problems)
      terminal.Say(Cat("regroup: no logs from ", node, ": ", EscapeControls(problem), "\n"));
    RETURN_IF_ERROR(progress.printed);
    RETURN_IF_ERROR(called);
    return progress.problems.empty() ? kDone : kNo;
  }

  absl::Status Call(const Found& found, Progress& progress, std::mutex& mutex, LogMerge& merge,
                    const Terminal& terminal) const {
    ASSIGN_OR_RETURN(Client client, Client::Dial(found.place));
    regroup::v1::LogSelection selection = Selection(found.job.id);
    progress.replies.marks().AddTo(selection);
    progress.problems.clear();
    return client.Logs(selection, [&](const regroup::v1::LogsReply& reply) {
      std::lock_guard lock(mutex);
      if (reply.has_chunk()) progress.replies.Add(reply.chunk());
      if (reply.has_ended() && !reply.ended().problem().empty())
        progress.problems[reply.ended().node()] = reply.ended().problem();
      if (reply.has_waiting()) TellWaiting(reply.waiting(), terminal);
      if (reply.has_event()) {
        absl::StatusOr<JobEvent> event = FromProto(reply.event());
        if (event.ok()) AddNewEvent(*event, progress, merge);
      }
      return progress.printed.ok();
    });
  }

  static void TellWaiting(const regroup::v1::LogsReply::Source& source, const Terminal& terminal) {
    const std::string node = EscapeControls(source.node());
    terminal.Say(source.problem().empty() ? Cat("regroup: the logs of ", node, " go on\n")
                                          : Cat("regroup: waiting for the logs of ", node, ": ",
                                                EscapeControls(source.problem()), "\n"));
  }

  // Until the coordinator answers, or its journal says that the job is over.
  absl::StatusOr<Found> Await(Reader& reader, const Found& lost, const absl::Status& why,
                              const Terminal& terminal) const {
    const Instant begun = io::MonotonicNow();
    for (bool told = false;;) {
      std::this_thread::sleep_for(kRetry);  // First: who is starting refuses at once.
      absl::StatusOr<Found> found = reader.FindJob(lost.job.id.value(), true);
      if (found.ok() && (found->live || IsOver(found->job))) {
        if (told && found->live) terminal.Say("regroup: the coordinator answers again\n");
        return found;
      }
      const Duration away = io::MonotonicNow() - begun;
      if (away > kPatience) return why;
      if (!told && away > kShownAfter) {
        terminal.Say("regroup: the coordinator does not answer; waiting for it, no line is lost\n");
        told = true;
      }
    }
  }

  // The agents of a launched job end with it, perhaps before all was sent: the rest is read from
  // this host's files. What lies on other hosts stays a problem.
  absl::Status Rest(Reader& reader, Found& found, Progress& progress, LogMerge& merge,
                    const Terminal& terminal) {
    if (found.live && progress.problems.empty()) return absl::OkStatus();
    if (absl::StatusOr<Found> now = reader.FindJob(found.job.id.value(), true); now.ok())
      found = *std::move(now);
    std::vector<std::string> roots = FindLogRoots(found.place.state_dir(), log_dir_, found.job.id);
    if (log_dir_.empty()) roots = OwnLogRoots(roots, found.place, found.job.spec.origin);
    if (roots.empty()) return absl::OkStatus();
    LogFilter rest = filter_;
    rest.read = progress.replies.marks();
    RETURN_IF_ERROR(ReadLogFiles(roots, found.job, rest, [&](LogEntry entry) {
      if (progress.printed.ok()) progress.printed = AddEntry(std::move(entry), merge, terminal);
    }));
    const std::vector<std::string> without = NodesWithoutLogs(roots, found.job);
    for (const std::string& node : without) {
      if (!found.live) terminal.Say(Cat("regroup: no output of ", node, " on this host\n"));
    }
    std::erase_if(progress.problems, [&](const auto& entry) {
      return std::find(without.begin(), without.end(), entry.first) == without.end();
    });
    return absl::OkStatus();
  }

  void AddNewEvent(const JobEvent& event, Progress& progress, LogMerge& merge) const {
    if (event.number <= progress.last_event) return;
    progress.last_event = event.number;
    if (!filter_.generation) merge.Add(event);
  }

  bool follow_ = false, raw_ = false;
  LogFilter filter_;
  std::optional<int> generation_;
  Pattern pattern_;
  std::string log_dir_;
  ReadOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeLogs() { return std::make_unique<Logs>(); }

}  // namespace regroup::cli
