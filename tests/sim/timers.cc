#include "tests/sim/timers.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <span>
#include <type_traits>
#include <utility>

#include "tests/sim/fields.h"
#include "tests/sim/text.h"

namespace regroup::sim {

namespace {

using Names = std::span<const char* const>;

template <class T, std::size_t n>
constexpr Names AllOf(const char* const (&names)[n]) {
  static_assert(n == kFieldsOf<T>, "each field has a name, in the order of their declaration");
  return names;
}

constexpr const char* kLeases[] = {"heartbeat",      "lease",          "first_probe_interval",
                                   "probe_interval", "agent_restart",  "launched_restart_margin",
                                   "redial",         "awaited_leases", "awaited_per_node"};
constexpr const char* kBrake[] = {"lasts", "nodes", "share"};
constexpr const char* kForming[] = {
    "last_call_quiet", "last_call_limit",      "join_batch",          "ack", "warm_up", "settle",
    "newcomer_trial",  "member_backoff_first", "member_backoff_limit"};
constexpr const char* kEnding[] = {"failure_grace", "stop_margin", "notice_margin",
                                   "verdict_limit"};
constexpr const char* kHolds[] = {"finish", "unreachable", "nodes", "orphan"};
constexpr const char* kRetries[] = {"backoff_first", "backoff_limit", "free_backoff_limit",
                                    "crash_loop", "silent_progress"};
constexpr const char* kLimits[] = {"ended_jobs",     "lost_nodes",          "away_nodes",
                                   "events_per_job", "generations_per_job", "pending_submits",
                                   "waiting_reads",  "min_free_bytes"};
constexpr const char* kRetention[] = {"ended_jobs", "lost_nodes", "sweep"};
constexpr const char* kAdHoc[] = {"on", "exit_delay", "idle_exit"};
constexpr const char* kCoordinator[] = {"version", "check_indices", "journal",   "leases",
                                        "brake",   "forming",       "ending",    "holds",
                                        "retries", "limits",        "retention", "ad_hoc"};
constexpr const char* kWaits[] = {"progress",   "welcome",     "coordinator_restart",
                                  "warm_up",    "nursery",     "shim_silence",
                                  "words",      "output",      "kill_again",
                                  "kill_limit", "stuck",       "redial",
                                  "adopt",      "same_signal", "result",
                                  "refusal",    "slack",       "kill"};
constexpr const char* kAgent[] = {"node",
                                  "incarnation",
                                  "boot",
                                  "name",
                                  "name_explicit",
                                  "slots",
                                  "gpu_slots",
                                  "version",
                                  "no_cgroup",
                                  "launched",
                                  "sigterm_is_notice",
                                  "starts_coordinator",
                                  "grace",
                                  "join_timeout",
                                  "cluster",
                                  "highest_epoch",
                                  "waits"};

// Structs whose fields are looked at.
template <class T>
constexpr Names kNames;
template <>
constexpr Names kNames<coordinator::LeaseConfig> = AllOf<coordinator::LeaseConfig>(kLeases);
template <>
constexpr Names kNames<coordinator::BrakeConfig> = AllOf<coordinator::BrakeConfig>(kBrake);
template <>
constexpr Names kNames<coordinator::FormingConfig> = AllOf<coordinator::FormingConfig>(kForming);
template <>
constexpr Names kNames<coordinator::EndingConfig> = AllOf<coordinator::EndingConfig>(kEnding);
template <>
constexpr Names kNames<coordinator::HoldConfig> = AllOf<coordinator::HoldConfig>(kHolds);
template <>
constexpr Names kNames<coordinator::RetryConfig> = AllOf<coordinator::RetryConfig>(kRetries);
template <>
constexpr Names kNames<coordinator::LimitConfig> = AllOf<coordinator::LimitConfig>(kLimits);
template <>
constexpr Names kNames<coordinator::RetentionConfig> =
    AllOf<coordinator::RetentionConfig>(kRetention);
template <>
constexpr Names kNames<coordinator::AdHocConfig> = AllOf<coordinator::AdHocConfig>(kAdHoc);
template <>
constexpr Names kNames<coordinator::Config> = AllOf<coordinator::Config>(kCoordinator);
template <>
constexpr Names kNames<agent::Waits> = AllOf<agent::Waits>(kWaits);
template <>
constexpr Names kNames<agent::Config> = AllOf<agent::Config>(kAgent);

// What is said with a name, not by how much: no timer and no limit.
template <class T>
inline constexpr bool kIsOther = std::is_same_v<T, bool> || std::is_same_v<T, std::string> ||
                                 std::is_same_v<T, Version> ||
                                 std::is_same_v<T, coordinator::JournalConfig> ||
                                 requires(const T& id) {
  id.value();
};

struct Number {
  std::string name;
  std::function<void()> double_it;
};

// A field of a type that is neither a number nor looked into does not compile.
template <class T>
void AddNumbers(std::vector<Number>& numbers, const std::string& name, T& value) {
  if constexpr (std::is_same_v<T, std::optional<Duration>>) {
    numbers.push_back({name, [&value] {
                         if (value) *value *= 2;
                       }});
  } else if constexpr (kIsOther<T>) {
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, Duration>) {
    numbers.push_back({name, [&value] { value *= 2; }});
  } else {
    static_assert(!kNames<T>.empty(), "a configuration's part has names");
    std::size_t field = 0;
    ForEachField(value, [&](const auto& part) {
      using Part = std::remove_cvref_t<decltype(part)>;
      AddNumbers(numbers, name + " " + kNames<T>[field++], const_cast<Part&>(part));
    });
  }
}

std::vector<Number> NumbersOf(ChaosOptions& options) {
  std::vector<Number> numbers;
  AddNumbers(numbers, "coordinator", options.config);
  AddNumbers(numbers, "agent", options.agent);
  return numbers;
}

// What no life can reach, and why.
constexpr std::pair<const char*, const char*> kNotReached[] = {
    {"agent waits output", "a modelled host has written all output by then; core tests show it"},
    {"agent waits words", "a modelled host has read all words by then; core tests show it"},
    {"agent waits refusal", "no coordinator of a life takes another's place; core tests show it"},
    {"agent slots", "each node of a life has its own"},
    {"agent gpu_slots", "every other node of some lives has them"},
    {"agent waits coordinator_restart", "no host of a life hosts its coordinator"},
};

constexpr int kLooks = 10;  // In so many lives whether they are reached after all.

bool IsNotReached(const std::string& name) {
  return std::any_of(std::begin(kNotReached), std::end(kNotReached),
                     [&](const auto& entry) { return name == entry.first; });
}

template <class T>
bool Has(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Calls `decided` with each hash of a life's course.
void Live(std::uint64_t seed, ChaosOptions options,
          const std::function<void(World&, std::uint64_t)>& decided) {
  options.plant = [&decided, plant = options.plant](World& world) {
    if (plant) plant(world);
    const auto when = [&world] { return std::to_string(world.SinceStart().count()); };
    world.tamper = [&, when, before = world.tamper](coordinator::Effects& effects) {
      if (before) before(effects);
      if (effects.rows.empty() && effects.actions.empty()) return;
      std::string text = when();
      for (const coordinator::Row& row : effects.rows) text += " " + row.key;
      for (const coordinator::Action& action : effects.actions)
        text += " " + std::to_string(action.index());
      decided(world, Fold(kNothingFolded, text));
    };
    world.on_agent = [&, when](const Node& node, const agent::Effects& effects) {
      if (effects.actions.empty()) return;
      std::string text = when() + " " + node.name();
      for (const agent::Action& action : effects.actions)
        text += " " + std::to_string(action.index());
      decided(world, Fold(kNothingFolded, text));
    };
  };
  RunChaos(seed, options);
}

}  // namespace

std::vector<std::string> TimerNames() {
  ChaosOptions options;
  std::vector<std::string> names;
  for (Number& number : NumbersOf(options)) names.push_back(std::move(number.name));
  return names;
}

void DoubleTimer(std::size_t timer, ChaosOptions& options) {
  NumbersOf(options).at(timer).double_it();
}

Course CourseOf(std::uint64_t seed, const ChaosOptions& options) {
  Course course;
  Live(seed, options, [&](World&, std::uint64_t hash) { course.push_back(hash); });
  return course;
}

bool Leaves(const Course& course, std::uint64_t seed, const ChaosOptions& options) {
  std::size_t at = 0;
  bool leaves = false;
  Live(seed, options, [&](World& world, std::uint64_t hash) {
    leaves |= at == course.size() || course[at] != hash;
    world.enough = leaves;
    if (!leaves) ++at;
  });
  return leaves || at != course.size();
}

TimerCoverage::TimerCoverage() {
  for (std::string& name : TimerNames()) timers_.push_back({std::move(name), {}});
}

void TimerCoverage::Add(std::uint64_t seed, const ChaosOptions& options, std::size_t enough,
                        const std::vector<std::string>& only) {
  ++lives_;
  const Course course = CourseOf(seed, options);
  for (std::size_t i = 0; i < timers_.size(); ++i) {
    Timer& timer = timers_[i];
    if (timer.seeds.size() >= enough || Has(timer.seeds, seed)) continue;
    // A list of what cannot be must not outlive what it says; a look now and then tells.
    const bool named = only.empty() || Has(only, timer.name);
    if (!(IsNotReached(timer.name) ? lives_ <= kLooks : named)) continue;
    ChaosOptions changed = options;
    DoubleTimer(i, changed);
    if (!Leaves(course, seed, changed)) continue;
    timer.seeds.push_back(seed);
  }
}

bool TimerCoverage::AllReached(std::size_t enough) const {
  return std::all_of(timers_.begin(), timers_.end(), [&](const Timer& timer) {
    return timer.seeds.size() >= enough || IsNotReached(timer.name);
  });
}

std::string TimerCoverage::Table() const {
  std::string table;
  for (const Timer& timer : timers_) {
    const std::string count = std::to_string(timer.seeds.size());
    table += std::string(std::max<int>(10 - static_cast<int>(count.size()), 1), ' ') + count +
             "  " + timer.name;
    if (!timer.seeds.empty()) table += ", first in " + std::to_string(timer.seeds.front());
    table += "\n";
  }
  for (const auto& [name, why] : kNotReached)
    table += std::string("         -  ") + name + ": " + why + "\n";
  return table + "in " + std::to_string(lives_) + " lives\n";
}

std::vector<std::string> TimerCoverage::Missing() const {
  std::vector<std::string> missing;
  for (const Timer& timer : timers_) {
    const bool reached = !timer.seeds.empty();
    if (!reached && !IsNotReached(timer.name)) missing.push_back(timer.name);
    if (reached && IsNotReached(timer.name)) missing.push_back(timer.name + ", which is reached");
  }
  return missing;
}

}  // namespace regroup::sim
