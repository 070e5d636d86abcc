#include "tests/sim/coverage.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "launcher/coordinator/core/node.h"

namespace regroup::sim {
using namespace coordinator;  // NOLINT: rows are all this file is about.

namespace {

constexpr const char* kEndReasons[] = {
    "WorkerFailed", "NodeLost",  "NodeRebooted", "SupervisorLost", "StoreLost", "StartTimedOut",
    "ExecFailed",   "Preempted", "Resized",      "Cancelled",      "Finished"};
constexpr const char* kFailReasons[] = {"BudgetSpent",     "CrashLoop",   "ExitCodeSaysFail",
                                        "NotExecutable",   "CancelledBy", "PreemptedAll",
                                        "PreemptionsSpent"};
constexpr const char* kWaitReasons[] = {"BelowMinimum",     "LastCall",          "BackingOff",
                                        "SlotsStopping",    "AwaitReattach",     "FinishHold",
                                        "UnreachableHold",  "BudgetVerdictOpen", "BehindJob",
                                        "MembersPreparing", "SavingBeforeLeave", "CannotFit"};
constexpr const char* kJobEvents[] = {"NodeJoined",        "NodeLeft",        "GenerationFormed",
                                      "GenerationRunning", "GenerationEnded", "CommitAccepted",
                                      "NodeWillLeave",     "Waits",           "JobEnded"};
constexpr const char* kEvents[] = {
    "SessionOpened", "SessionBroken", "HeartbeatReceived", "Reported",        "Progressed",
    "CommitAsked",   "Probed",        "Noticed",           "LaunchAsked",     "LeaveAsked",
    "SubmitAsked",   "CancelAsked",   "ReadAsked",         "ForgetNodeAsked", "CallDropped",
    "Stalled",       "Tick"};
constexpr const char* kActions[] = {"SendWelcome",  "SendOrder", "AckReport",  "AnswerCommit",
                                    "AnswerLaunch", "SendNews",  "SendResult", "CloseSession",
                                    "Probe",        "Answer",    "StepDown",   "Finished"};
constexpr const char* kAgentEvents[] = {"Scanned",
                                        "CoordinatorFound",
                                        "Welcomed",
                                        "CoordinatorRefused",
                                        "CoordinatorAway",
                                        "CoordinatorSpoke",
                                        "Ordered",
                                        "ReportAcked",
                                        "CommitAnswered",
                                        "LaunchAccepted",
                                        "EnoughJoined",
                                        "JobOver",
                                        "RunDirectoryWritten",
                                        "PrepareFailed",
                                        "WarmedUp",
                                        "GroupSeen",
                                        "RankErrorRead",
                                        "LeftoversKilled",
                                        "WorkerSaid",
                                        "WorkerHungUp",
                                        "SignalCaught",
                                        "Tick"};
constexpr const char* kAgentActions[] = {"WriteRunDirectory",  "WarmUp",
                                         "SpawnShim",          "HandOver",
                                         "SpawnStore",         "StartRanks",
                                         "StopRanks",          "SignalRank",
                                         "KillRank",           "KillGroup",
                                         "MarkKilled",         "KillShim",
                                         "ReleaseShim",        "CloseStore",
                                         "RemoveRunDirectory", "EndNursery",
                                         "SendHello",          "RememberCoordinator",
                                         "RefuseCoordinator",  "BreakSession",
                                         "SendLaunch",         "SendReport",
                                         "SendProgress",       "SendCommit",
                                         "SendNotice",         "SendLeave",
                                         "ShowLeaving",        "ShowLateOutput",
                                         "SendHeartbeat",      "TellNotice",
                                         "TellRetire",         "TellCommit",
                                         "StartCoordinator",   "Leave"};
constexpr const char* kJobPhases[] = {"queued",     "gathering", "forming", "running",
                                      "regrouping", "preempted", "ending",  "ended"};
constexpr const char* kGenerationPhases[] = {"proposed", "formed", "over"};
constexpr const char* kGroupPhases[] = {"preparing", "prepared", "starting",   "running",
                                        "stopping",  "free",     "unkillable", "retired"};
constexpr const char* kLosses[] = {kHowSilent,  kHowCrowded, kHowOver,
                                   kHowRefused, kHowAway,    kHowForgotten};
static_assert(std::size(kEndReasons) == std::variant_size_v<EndReason>);
static_assert(std::size(kFailReasons) == std::variant_size_v<FailReason>);
static_assert(std::size(kWaitReasons) == std::variant_size_v<WaitReason>);
static_assert(std::size(kJobEvents) == std::variant_size_v<JobEventBody>);
static_assert(std::size(kEvents) == std::variant_size_v<coordinator::Event>);
static_assert(std::size(kActions) == std::variant_size_v<coordinator::Action>);
static_assert(std::size(kAgentEvents) == std::variant_size_v<agent::Event>);
static_assert(std::size(kAgentActions) == std::variant_size_v<agent::Action>);
static_assert(std::size(kLosses) == Coverage::kLosses);

// What no life can show, and why.
constexpr std::pair<const char*, const char*> kNotHere[] = {
    {"job failed: PreemptedAll", "shown to people only, never a row"},
    {"coordinator ordered: StepDown", "no life goes on after it; scenarios restore old journals"},
    {"agent ordered: RefuseCoordinator",
     "a coordinator of the same version refuses such a Hello first"},
    {"agent ordered: ShowLateOutput", "nobody watches a life"},
    {"agent ordered: StartCoordinator", "no host of a life hosts its coordinator"},
};

struct Line {
  std::string name;
  Coverage::Count count;
};

void AddLines(std::vector<Line>& lines, const char* kind, std::span<const char* const> names,
              std::span<const Coverage::Count> counts) {
  for (std::size_t i = 0; i < names.size(); ++i)
    lines.push_back({std::string(kind) + " " + names[i], counts[i]});
}

template <std::size_t n>
void AddSquare(std::vector<Line>& lines, const char* kind, std::span<const char* const> names,
               const Coverage::Square<n>& counts) {
  for (std::size_t from = 0; from < n; ++from)
    for (std::size_t to = 0; to < n; ++to)
      if (from != to)
        lines.push_back(
            {std::string(kind) + " " + names[from] + " > " + names[to], counts[from][to]});
}

std::vector<Line> LinesOf(const Coverage& coverage) {
  std::vector<Line> lines;
  AddLines(lines, "generation ended:", kEndReasons, coverage.end_reasons);
  AddLines(lines, "job failed:", kFailReasons, coverage.fail_reasons);
  AddLines(lines, "job waits:", kWaitReasons, coverage.wait_reasons);
  AddLines(lines, "job told:", kJobEvents, coverage.job_events);
  AddLines(lines, "node lost:", kLosses, coverage.losses);
  AddLines(lines, "coordinator heard:", kEvents, coverage.events);
  AddLines(lines, "coordinator ordered:", kActions, coverage.actions);
  AddLines(lines, "agent heard:", kAgentEvents, coverage.agent_events);
  AddLines(lines, "agent ordered:", kAgentActions, coverage.agent_actions);
  AddSquare(lines, "job:", kJobPhases, coverage.job_phases);
  AddSquare(lines, "generation:", kGenerationPhases, coverage.generation_phases);
  AddSquare(lines, "group:", kGroupPhases, coverage.group_phases);
  return lines;
}

bool IsNotHere(const std::string& name) {
  return std::any_of(std::begin(kNotHere), std::end(kNotHere),
                     [&](const auto& entry) { return name == entry.first; });
}

// Counted and shown; which of them can be is for Checker's 3 and 27 to say.
bool IsTransition(const std::string& name) { return name.find(" > ") != std::string::npos; }

template <class T>
void AddTo(T& sum, const T& other) {
  if constexpr (std::is_arithmetic_v<T>) {
    sum += other;
  } else {
    for (std::size_t i = 0; i < sum.size(); ++i) AddTo(sum[i], other[i]);
  }
}

}  // namespace

void Coverage::OnState(const JobStateRow& before, const JobStateRow& after) {
  ++job_phases[static_cast<int>(before.phase)][static_cast<int>(after.phase)];
  if (!before.verdict && after.verdict && after.verdict->failed)
    ++fail_reasons[after.verdict->failed->index()];
}

void Coverage::OnGeneration(const GenerationRow* before, const GenerationRow& after) {
  if (before == nullptr) return;
  ++generation_phases[static_cast<int>(before->phase)][static_cast<int>(after.phase)];
  const bool was_open = before->phase != GenerationPhase::kOver || before->verdict_open;
  if (was_open && after.ended && !after.verdict_open) ++end_reasons[after.ended->index()];
}

void Coverage::OnLost(const std::string& how) {
  for (std::size_t i = 0; i < kLosses; ++i)
    if (how == ::regroup::sim::kLosses[i]) ++losses[i];
}

void Coverage::OnGroup(Phase before, Phase after) {
  ++group_phases[static_cast<int>(before)][static_cast<int>(after)];
}

void Coverage::Add(const Coverage& other) {
  AddTo(end_reasons, other.end_reasons);
  AddTo(fail_reasons, other.fail_reasons);
  AddTo(wait_reasons, other.wait_reasons);
  AddTo(job_events, other.job_events);
  AddTo(events, other.events);
  AddTo(actions, other.actions);
  AddTo(agent_events, other.agent_events);
  AddTo(agent_actions, other.agent_actions);
  AddTo(job_phases, other.job_phases);
  AddTo(generation_phases, other.generation_phases);
  AddTo(group_phases, other.group_phases);
  AddTo(losses, other.losses);
}

std::string Coverage::Table() const {
  std::string table;
  for (const Line& line : LinesOf(*this)) {
    if (line.count == 0 && (IsNotHere(line.name) || IsTransition(line.name))) continue;
    const std::string count = std::to_string(line.count);
    table += std::string(std::max<int>(10 - static_cast<int>(count.size()), 1), ' ') + count +
             "  " + line.name + "\n";
  }
  for (const auto& [name, why] : kNotHere)
    table += std::string("         -  ") + name + ": " + why + "\n";
  return table;
}

std::vector<std::string> Coverage::Missing() const {
  std::vector<std::string> missing;
  for (const Line& line : LinesOf(*this)) {
    if (line.count == 0 && !IsNotHere(line.name) && !IsTransition(line.name))
      missing.push_back(line.name);
    // A list of what cannot be must not outlive what it says.
    if (line.count > 0 && IsNotHere(line.name)) missing.push_back(line.name + ", which is there");
  }
  return missing;
}

const char* NameOf(const coordinator::Event& event) { return kEvents[event.index()]; }
const char* NameOf(const agent::Event& event) { return kAgentEvents[event.index()]; }
const char* NameOf(const agent::Action& action) { return kAgentActions[action.index()]; }

}  // namespace regroup::sim
