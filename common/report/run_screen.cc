#include "common/report/run_screen.h"

#include <algorithm>
#include <utility>

#include "common/base/user_error.h"
#include "common/config/network_rule.h"
#include "common/config/state_dir.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "common/report/failure_report.h"
#include "common/report/format.h"

namespace regroup {
namespace {

using namespace std::chrono_literals;
constexpr Duration kReminder = 30s;
constexpr Duration kHold =
    1s;  // How long an arrival or a failure waits for the line that it belongs to.
constexpr Duration kAwayShown = 2s;  // A coordinator that is restarted is back before.

// A flag and its value stay together.
std::vector<std::string> Units(const std::vector<std::string>& words) {
  std::vector<std::string> units;
  for (std::size_t i = 0; i < words.size(); ++i) {
    bool flag =
        words[i].size() > 1 && words[i][0] == '-' && words[i].find('=') == std::string::npos;
    bool value = flag && i + 1 < words.size() && words[i + 1].substr(0, 1) != "-";
    units.push_back(value ? Cat(ShellQuote(words[i]), " ", ShellQuote(words[i + 1]))
                          : ShellQuote(words[i]));
    if (value) ++i;
  }
  return units;
}

// Waits that a person wants to know of at once; the others are over in a moment, or told by the
// reminder.
bool TellsAtOnce(const WaitReason& reason) {
  return std::holds_alternative<BelowMinimum>(reason) ||
         std::holds_alternative<BackingOff>(reason) ||
         std::holds_alternative<UnreachableHold>(reason) ||
         std::holds_alternative<FinishHold>(reason) ||
         std::holds_alternative<AwaitReattach>(reason);
}

std::string PhasesText(const RestartPhases& phases) {
  struct Named {
    const char* name;
    std::optional<Duration> value;
    bool always;
  };
  const Named named[] = {{"detect", phases.detect, true},
                         {"decide", phases.decide, false},
                         {"stop", phases.stop, true},
                         {"form", phases.form, true},
                         {"spawn", phases.spawn, true}};
  std::string text;
  for (const Named& phase : named) {
    if (!phase.value || (!phase.always && *phase.value < 5ms)) continue;
    text += Cat(text.empty() ? "" : " ", phase.name, " ", PhaseTextShort(*phase.value));
  }
  return text.empty() ? "" : Cat(" (", text, ")");
}

}  // namespace

std::string CommandForOthers(const LaunchConfig& launch, const Address& endpoint,
                             const std::string& token, int width) {
  std::vector<std::string> units = Units(launch.others_options);
  units.push_back(Cat("--rdzv-endpoint ", FormatEndpoint(endpoint.host, endpoint.port)));
  units.push_back(
      Cat("--rdzv-id ",
          ShellQuote(launch.worker.run_id.empty() ? launch.spec.name : launch.worker.run_id)));
  if (launch.insecure && !launch.insecure_implied) units.push_back("--insecure");
  for (const std::string& word : launch.others_program) units.push_back(ShellQuote(word));
  // In the environment: arguments are for everybody to see.
  const std::string shown =
      token.empty() || IsLoopback(endpoint.host) ? "" : Cat("REGROUP_TOKEN=", token, " ");
  std::string out = Cat("    ", shown, ShellJoin(launch.others_command)), continued = "      ";
  std::size_t column = out.size();
  for (const std::string& unit : units) {
    bool fits = column + 1 + unit.size() + 2 <= static_cast<std::size_t>(width);
    if (!fits && column > continued.size()) {
      out += Cat(" \\\n", continued, unit);
      column = continued.size() + unit.size();
    } else {
      out += Cat(" ", unit);
      column += 1 + unit.size();
    }
  }
  return out + "\n";
}

RunScreen::RunScreen(const LaunchConfig& launch, TextStyle style)
    : launch_(launch), style_(style), home_(HomeDirectory()) {}

std::string RunScreen::Line(std::string_view text) const {
  return ForCharset(style_, Cat(Painted(style_, Tone::kDim, "regroup:"), " ", text, "\n"));
}

std::string RunScreen::Lines(const std::vector<std::string>& texts) const {
  std::string out;
  if (launch_.quiet) return out;
  for (const std::string& text : texts) out += Line(text);
  return out;
}

ReasonContext RunScreen::Context() const {
  return {start_ ? start_->job : JobId(), Generation(), JobOrigin::kLaunched};
}

void RunScreen::HoldUntil(Duration when) {
  held_until_ = held_until_ ? std::min(*held_until_, when) : when;
}

// ---- the coordinator

std::string RunScreen::CoordinatorAway(Duration now, std::string_view why) {
  away_why_ = EscapeControls(why);
  if (away_since_) return "";
  away_since_ = now;
  away_shown_ = false;
  next_reminder_ = start_ ? now + kAwayShown : now;
  return Tick(now);
}

std::string RunScreen::Warning(std::string_view text) const {
  return Lines({Cat("warning: ", EscapeControls(text))});
}

std::string RunScreen::OutputTrouble(std::string_view stream, std::string_view why,
                                     std::string_view log_path) const {
  const std::string_view what = launch_.output.errors_fail
                                    ? "this node leaves the job (--stdout-errors fail)"
                                    : "the job goes on (--stdout-errors fail ends it)";
  return Line(Cat(stream, " cannot be written: ", why, " · ", what, " · all output is in ",
                  WithTilde(log_path, home_)));
}

std::string RunScreen::OutputGap(std::string_view stream, std::string_view what,
                                 std::string_view directory) const {
  const std::string_view rank = directory.substr(directory.rfind('/') + 1);
  return Line(Cat("not all ", stream, " of rank ", rank, " is shown: ", EscapeControls(what),
                  " · what is kept of it is in ", WithTilde(directory, home_)));
}

std::string RunScreen::CoordinatorBack(Duration now) {
  if (!away_since_) return "";
  Duration away = now - *away_since_;
  bool shown = away_shown_;
  away_since_.reset();
  next_reminder_.reset();
  if (waits_) next_reminder_ = now + kReminder;
  if (!shown || !start_) return "";
  return Lines({Cat("the coordinator answers again after ", ShortText(away))});
}

std::string RunScreen::AwayText(Duration now) const {
  std::string where = start_ && start_->coordinator
                          ? FormatEndpoint(start_->coordinator->host, start_->coordinator->port)
                      : launch_.endpoint
                          ? FormatEndpoint(launch_.endpoint->host, launch_.endpoint->port)
                          : std::string("of this host");
  const Duration away = now - *away_since_;
  const std::string silent =
      away >= 1s ? Cat("has not answered for ", ShortText(away)) : std::string("does not answer");
  return Cat("the coordinator ", where, " ", silent, " (", away_why_, ")");
}

std::string RunScreen::Reminder(Duration now) const {
  if (away_since_) {
    std::string text = AwayText(now);
    if (!start_) return Cat(text, "; trying again");
    text += "; waiting for it, workers are left alone";
    if (now - *away_since_ >= kReminder) text += " · if its host died: start it there again";
    return text;
  }
  if (!waits_) return "";
  if (const auto* below = std::get_if<BelowMinimum>(&*waits_)) {
    int need = below->need - below->have;
    std::string who = below->missing.empty() ? Cat(need, " more") : JoinWords(below->missing);
    return Cat(below->have, " of ", Count(below->need, "node"), " for ",
               SpanText(now - waits_since_ + below->since), " · waiting for ", who);
  }
  WaitReason reason = *waits_;
  std::visit(
      [&](auto& r) {
        if constexpr (requires { r.left; })
          r.left = std::max(r.left - (now - waits_told_), Duration::zero());
      },
      reason);
  return Cat("waiting for ", SpanText(now - waits_since_), ": ", Explain(reason, Context()).brief);
}

std::optional<Duration> RunScreen::NextTick() const {
  if (!held_until_) return next_reminder_;
  return next_reminder_ ? std::min(*held_until_, *next_reminder_) : *held_until_;
}

std::string RunScreen::Tick(Duration now) {
  std::vector<std::string> lines;
  if (held_until_ && now >= *held_until_) lines = FlushHeld();
  if (next_reminder_ && now >= *next_reminder_) {
    std::string text = Reminder(now);
    if (!text.empty()) lines.push_back(std::move(text));
    if (away_since_) away_shown_ = true;
    next_reminder_ = now + kReminder;
    if (!away_since_ && !waits_) next_reminder_.reset();
  }
  return Lines(lines);
}

// ---- the job's life

std::string RunScreen::Started(Duration now, const RunStart& start) {
  bool again = start_.has_value();
  start_ = start;
  std::string back = CoordinatorBack(now);
  if (again) return back;
  std::vector<std::string> lines;
  bool plaintext = launch_.insecure && launch_.endpoint && !IsLoopback(launch_.endpoint->host);
  if (plaintext)
    lines.push_back(
        Cat("warning: ",
            launch_.insecure_implied ? "regroup-torchrun implies --insecure" : "--insecure",
            ": whoever reaches the endpoint may take part; nothing is encrypted"));
  std::string text = start.job.value();
  if (start.coordinator)
    text +=
        Cat(" · coordinator ", FormatEndpoint(start.coordinator->host, start.coordinator->port));
  lines.push_back(Cat(text, " · logs ", WithTilde(start.log_path, home_)));
  return back + Lines(lines);
}

std::vector<std::string> RunScreen::FlushHeld() {
  std::vector<std::string> lines = FlushJoined();
  if (held_) lines.insert(lines.begin(), *held_);
  held_.reset();
  held_until_.reset();
  return lines;
}

std::vector<std::string> RunScreen::FlushJoined() {
  std::vector<std::string> lines;
  for (const NodeJoined& joined : joined_) {
    lines.push_back(Cat(joined.node,
                        joined.have > joined.max ? " joined as a spare · " : " joined · ",
                        joined.have, " of ", FormatNnodes(joined.min, joined.max), " nodes"));
  }
  joined_.clear();
  if (spare_) {
    lines.push_back(Cat("this node waits as a spare · ", spare_->have, " of ",
                        FormatNnodes(spare_->min, spare_->max), " nodes"));
  }
  spare_.reset();
  return lines;
}

bool RunScreen::IsMe(const std::string& node) const { return start_ && node == start_->node_name; }

std::string RunScreen::Arrivals() {
  std::vector<std::string> names;
  for (const NodeJoined& joined : joined_) names.push_back(joined.node);
  joined_.clear();
  return names.empty() ? "" : Cat(JoinWords(names), " joined · ");
}

std::string RunScreen::OnEvent(Duration now, const JobEvent& event) {
  if (event.number <= last_event_) return "";
  last_event_ = event.number;
  return Lines(On(now, event.body));
}

std::vector<std::string> RunScreen::On(Duration now, const JobEventBody& body) {
  if (const auto* joined = std::get_if<NodeJoined>(&body)) return OnJoined(now, *joined);
  if (const auto* formed = std::get_if<GenerationFormed>(&body)) return OnFormed(now, *formed);
  if (const auto* running = std::get_if<GenerationRunning>(&body)) return OnRunning(*running);
  if (const auto* ended = std::get_if<GenerationEnded>(&body))
    return OnGenerationEnded(now, *ended);
  if (const auto* waits = std::get_if<Waits>(&body)) return OnWaits(now, waits->reason);
  if (const auto* left = std::get_if<NodeLeft>(&body)) {
    const std::string why = left->why.empty() ? "" : Cat(": ", EscapeControls(left->why));
    return {Cat(left->node, left->stays ? " cannot prepare" : " left", why)};
  }
  if (const auto* leaving = std::get_if<NodeWillLeave>(&body)) {
    if (IsMe(leaving->node)) return {};  // Leaving() has said so.
    std::string why = leaving->notice.signal == 0 ? "notice" : SignalName(leaving->notice.signal);
    return {
        Cat(leaving->node, " will leave (", why, ") · ", ShortText(leaving->notice.left), " left")};
  }
  if (std::holds_alternative<JobEnded>(body)) {  // Ended() tells how: it has the whole view.
    held_.reset();
    joined_.clear();
    spare_.reset();
    held_until_.reset();
  }
  return {};  // Commits are no news for a launch command.
}

std::vector<std::string> RunScreen::OnJoined(Duration now, const NodeJoined& joined) {
  if (IsMe(joined.node)) {
    if (joined.have <= joined.max) return {};
    spare_ = joined;
  } else {
    joined_.push_back(joined);
  }
  if (joined.have < joined.min) return FlushJoined();
  HoldUntil(now + kHold);
  return {};
}

std::vector<std::string> RunScreen::OnFormed(Duration now, const GenerationFormed& formed) {
  waits_.reset();
  if (!away_since_) next_reminder_.reset();
  std::vector<std::string> lines;
  if (held_) lines.push_back(*std::exchange(held_, std::nullopt));
  held_until_.reset();
  if (std::any_of(formed.members.begin(), formed.members.end(),
                  [this](const std::string& name) { return IsMe(name); })) {
    spare_.reset();
  } else if (spare_) {
    HoldUntil(now + kHold);
  }
  if (formed.generation.value() > 1) {
    formed_ = formed;
    return lines;
  }
  std::string nodes = formed.nodes > 1 ? Cat(Count(formed.nodes, "node"), ", ") : "";
  lines.push_back(Cat(Arrivals(), "generation ", formed.generation.value(), " · ", nodes, "world ",
                      formed.world, " · formed in ", ShortText(formed.took)));
  return lines;
}

std::vector<std::string> RunScreen::OnRunning(const GenerationRunning& running) {
  if (!formed_ || formed_->generation != running.generation) return {};
  GenerationFormed formed = *std::exchange(formed_, std::nullopt);
  std::string arrivals = Arrivals();
  std::string nodes = arrivals.empty() ? "" : Cat(Count(formed.nodes, "node"), ", ");
  std::string text =
      Cat(arrivals, "generation ", formed.generation.value(), " · ", nodes, "world ", formed.world);
  if (running.kept > 0) text += Cat(" · ", Count(running.kept, "rank"), " kept");
  if (running.phases.down > Duration::zero()) {
    return {Cat(text, " · down ", ShortText(running.phases.down), PhasesText(running.phases))};
  }
  return {Cat(text, " · formed in ", ShortText(formed.took))};
}

std::vector<std::string> RunScreen::OnGenerationEnded(Duration now, const GenerationEnded& ended) {
  formed_.reset();
  bool tells = !std::holds_alternative<Resized>(ended.reason) &&
               !std::holds_alternative<Finished>(ended.reason) &&
               !std::holds_alternative<Cancelled>(ended.reason);
  if (!tells) return {};  // A resize is told by its arrivals, the others by the job's end.
  std::string text = Explain(ended.reason, Context()).brief;
  bool may_be_last = ended.charged && ended.restarts >= ended.max_restarts;
  bool last = ended.charged && ended.restarts > ended.max_restarts;
  if (ended.charged && !last && ended.max_restarts > 0) {
    text += Cat(" · restart ", ended.restarts, " of ", ended.max_restarts);
  }
  if (!may_be_last) return {text};
  held_ = text;
  HoldUntil(now + kHold);
  return {};
}

std::vector<std::string> RunScreen::OnWaits(Duration now, const WaitReason& reason) {
  bool same_kind = waits_ && waits_->index() == reason.index();
  waits_ = reason;
  waits_told_ = now;
  if (!same_kind) waits_since_ = now;
  if (!next_reminder_) next_reminder_ = now + kReminder;
  const auto* below = std::get_if<BelowMinimum>(&reason);
  if (below != nullptr) {
    waits_since_ = now - below->since;
    std::get<BelowMinimum>(*waits_).since = Duration::zero();  // Counted on from here.
    bool first = start_ && start_->coordinator && (start_->hosts_coordinator || below->have == 1);
    if (first && !taught_) {
      taught_ = true;
      const Address& at = *start_->coordinator;
      const std::string where =
          IsLoopback(at.host) ? Cat(". On this host again (others cannot reach ", at.host,
                                    ": give --rdzv-endpoint an address of this host for those):\n")
                              : std::string(". On the others:\n");
      std::string line = Cat(below->have, " of ", Count(below->need, "node"), where,
                             CommandForOthers(launch_, at, start_->token, style_.width));
      line.pop_back();
      return {line};
    }
  }
  if (same_kind || !TellsAtOnce(reason)) return {};
  if (below != nullptr) {
    std::string who = below->missing.empty() ? Cat(below->need - below->have, " more")
                                             : JoinWords(below->missing);
    return {Cat(below->have, " of ", Count(below->need, "node"), " · waiting for ", who)};
  }
  return {Cat("waiting: ", Explain(reason, Context()).brief)};
}

// ---- the end

std::string RunScreen::Leaving(Duration, int signal, Duration left, bool again) {
  if (again) return Lines({Cat(SignalName(signal), " again · killing this node's workers now")});
  return Lines({Cat(SignalName(signal), " · this node leaves, its workers have ", ShortText(left),
                    " · once more to kill them now")});
}

std::string RunScreen::LeftJob(Duration) {
  if (!start_) return Lines({"this node has left before it had a job"});
  return Lines({Cat("this node has left ", start_->job.value(), " · regroup explain ",
                    start_->job.value())});
}

std::string RunScreen::Ended(Duration, const JobView& view, int code) {
  std::string out;
  if (view.state == "failed") {
    out = FailureReport(view, style_);
  } else {
    std::string text = EndLine(view);
    std::string_view state = view.state;
    std::size_t at = text.find(state, view.id.value().size());
    if (view.state == "succeeded" && at != std::string::npos) {
      text.replace(at, state.size(), Painted(style_, Tone::kGood, state));
    }
    out = Lines({text});
  }
  std::optional<int> ambiguous = AmbiguousWorkerExit(view);
  if (ambiguous && *ambiguous == code) out += Line(Cat("worker exit ", *ambiguous));
  return out;
}

std::string RunScreen::JoinTimedOut(Duration now) {
  std::string limit = launch_.join_timeout ? FormatDuration(*launch_.join_timeout) : "";
  std::string have = away_since_ ? AwayText(now) : waits_ ? Reminder(now) : "";
  return RenderUserError(
      UserError(absl::StatusCode::kDeadlineExceeded,
                Cat("not enough nodes within --join-timeout ", limit), ForCharset(style_, have),
                "start the same command on the other nodes, or leave --join-timeout out to wait"));
}

}  // namespace regroup
