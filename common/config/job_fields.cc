#include "common/config/job_fields.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/job_limits.h"
#include "common/config/names.h"
#include "common/config/text.h"
#include "common/config/values.h"

namespace regroup {
namespace {

using std::chrono::milliseconds;

// The member of the lambda's argument, of a job that may change or not.
#define REGROUP_MEMBER(path) [](auto& spec) -> decltype((spec.path)) { return spec.path; }

absl::Status DurationInRange(std::string_view field, Duration value, Duration min, Duration max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return BadInput(
      Cat(field, ": ", value < Duration::zero() ? Cat(value.count(), "ns") : FormatDuration(value),
          " is out of range"),
      Cat(FormatDuration(min), " to ", FormatDuration(max), " are allowed"));
}

absl::Status CheckRole(const std::string& role) { return ValidateRole("role", role); }

absl::Status CheckNumaBinding(const std::string& how) {
  const std::vector<std::string>& known = NumaBindings();
  if (how.empty() || std::find(known.begin(), known.end(), how) != known.end())
    return absl::OkStatus();
  const std::string nearest = DidYouMean(how, known);
  return BadInput(Cat("numa_binding: ", ShellQuote(how.substr(0, 60)), " is not known"),
                  "use node, socket, exclusive or core-complex",
                  Cat("numa_binding: ", nearest.empty() ? known.front() : nearest));
}

absl::Status CheckNodeCheck(const std::string& command) {
  const bool has_nul = command.find('\0') != std::string::npos;
  if (command.size() <= limits::kNodeCheckBytes && !has_nul) return absl::OkStatus();
  return BadInput(
      Cat("node_check: ", command.size(), " bytes", has_nul ? " with a NUL among them" : ""),
      Cat("a line of up to ", limits::kNodeCheckBytes, " bytes for sh is allowed"),
      "a script that is there on each node");
}

absl::Status ReadScaleUp(std::string_view text, JobSpec& spec) {
  ASSIGN_OR_RETURN(spec.scale_up, ParseScaleUp(text));
  return absl::OkStatus();
}
std::optional<std::string> WriteScaleUp(const JobSpec& spec) {
  return std::string(NameOf(spec.scale_up));
}
absl::Status CheckNothing(const JobSpec&) { return absl::OkStatus(); }

bool IsOneOf(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

bool IsModuleName(std::string_view name) {
  for (const std::string& part : Split(name, '.')) {
    if (part.empty() || (part[0] >= '0' && part[0] <= '9')) return false;
    for (const char c : part) {
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      if (!letter && c != '_' && !(c >= '0' && c <= '9')) return false;
    }
  }
  return true;
}
absl::Status CheckModules(const std::vector<std::string>& modules) {
  for (const std::string& name : modules) {
    if (IsModuleName(name)) continue;
    return BadInput(Cat(ShellQuote(name.substr(0, 60)), " is no name of a module"),
                    "true, false or names as in an import are allowed, with commas between them",
                    "torch,numpy");
  }
  return absl::OkStatus();
}

// What a switch takes, or names of modules.
absl::Status ReadWarm(std::string_view text, JobSpec& spec) {
  if (IsOneOf(text, {"0", "false", "no", "off"})) {
    spec.warm.reset();
    return absl::OkStatus();
  }
  std::vector<std::string> modules;
  if (!IsOneOf(text, {"1", "true", "yes", "on"}))
    for (const std::string& name : Split(text, ',')) modules.emplace_back(Stripped(name));
  RETURN_IF_ERROR(CheckModules(modules));
  spec.warm = std::move(modules);
  return absl::OkStatus();
}
std::optional<std::string> WriteWarm(const JobSpec& spec) {
  if (!spec.warm) return std::nullopt;
  if (spec.warm->empty()) return "true";
  std::string list;
  for (const std::string& name : *spec.warm) list += Cat(list.empty() ? "" : ",", name);
  return list;
}
absl::Status CheckWarm(const JobSpec& spec) {
  const std::string list = WriteWarm(spec).value_or("");
  if (list.size() > limits::kWarmBytes)
    return BadInput(Cat("warm: the names of the modules have ", list.size(), " bytes"),
                    Cat("up to ", limits::kWarmBytes, " are allowed"));
  const absl::Status checked = CheckModules(spec.warm.value_or(std::vector<std::string>()));
  return checked.ok() ? checked : AtField("warm", checked);
}

absl::Status ReadInPlace(std::string_view text, JobSpec& spec) {
  const bool on = IsOneOf(text, {"1", "true", "yes", "on"});
  if (!on && !IsOneOf(text, {"0", "false", "no", "off"}))
    return BadInput("true or false is expected", "this is text");
  spec.in_place = on;
  return absl::OkStatus();
}
std::optional<std::string> WriteInPlace(const JobSpec& spec) {
  if (!spec.in_place) return std::nullopt;
  return *spec.in_place ? "true" : "false";
}

absl::Status ReadLogKeep(std::string_view text, JobSpec& spec) {
  ASSIGN_OR_RETURN(spec.log_keep_bytes, ParseLogKeep(text));
  return absl::OkStatus();
}
std::optional<std::string> WriteLogKeep(const JobSpec& spec) {
  if (!spec.log_keep_bytes) return std::nullopt;
  return FormatLogKeep(*spec.log_keep_bytes);
}
absl::Status CheckLogKeep(const JobSpec& spec) {
  const std::uint64_t bytes = spec.log_keep_bytes.value_or(kKeepAllLogs);
  if (bytes == kKeepAllLogs) return absl::OkStatus();
  if (bytes >= limits::kLeastLogKeepBytes && bytes <= limits::kMostLogKeepBytes)
    return absl::OkStatus();
  return BadInput(Cat("log_keep: ", FormatBytes(bytes), " is out of range"),
                  Cat(FormatBytes(limits::kLeastLogKeepBytes), " to ",
                      FormatBytes(limits::kMostLogKeepBytes), " are allowed, or all"));
}

absl::Status ReadPrice(std::string_view text, JobSpec& spec) {
  ASSIGN_OR_RETURN(spec.price_per_node_hour, ParseReal(text));
  return absl::OkStatus();
}
std::optional<std::string> WritePrice(const JobSpec& spec) {
  if (!spec.price_per_node_hour) return std::nullopt;
  return FormatReal(*spec.price_per_node_hour);
}
absl::Status CheckPrice(const JobSpec& spec) {
  const double price = spec.price_per_node_hour.value_or(0);
  if (price >= 0 && price <= limits::kPrice) return absl::OkStatus();  // No NaN passes.
  return BadInput(
      Cat("price_per_node_hour: ", FormatReal(price), " is out of range"),
      Cat("0 to ", static_cast<std::int64_t>(limits::kPrice), " are allowed, without a currency"));
}

constexpr JobField kFields[] = {
    {.name = "max_restarts",
     .file = "retry.max",
     .always_rendered = true,  // A file without it means another number than a flag.
     .flag = "--max-restarts",
     .help = "restarts of the whole group after a fault of its own; losing nodes is free",
     .value = JobField::Number{REGROUP_MEMBER(max_restarts), 0, limits::kRestarts}},
    {.name = "restart_window",
     .file = "retry.window",
     .value = JobField::OptionalTime{REGROUP_MEMBER(restart_window), milliseconds(1),
                                     limits::kDuration}},
    {.name = "max_preemptions",
     .file = "retry.max_preemptions",
     .flag = "--max-preemptions",
     .help = "generations that a notice to leave may end; one more fails the job with 143; none: "
             "any number",
     .value = JobField::OptionalNumber{REGROUP_MEMBER(max_preemptions), 0, limits::kPreemptions}},
    {.name = "grace",
     .file = "grace",
     .always_rendered = true,
     .flag = "--grace",
     .help = "time that workers get to stop when they are asked to",
     .value = JobField::Time{REGROUP_MEMBER(grace), Duration::zero(), limits::kDuration}},
    {.name = "start_timeout",
     .value = JobField::Time{REGROUP_MEMBER(start_timeout), milliseconds(1), limits::kDuration}},
    {.name = "scale_up",
     .file = "scale_up",
     .always_rendered = true,
     .flag = "--scale-up",
     .placeholder = "WHEN",
     .help = "when a further node joins a running job: settle (at once, then at most every 30 s), "
             "now, next (with the next restart), never",
     .value =
         JobField::Written{"settle, now, next or never", ReadScaleUp, WriteScaleUp, CheckNothing}},
    {.name = "node_check",
     .file = "node_check",
     .flag = "--node-check",
     .placeholder = "COMMAND",
     .help = "a line for sh, run on each node before each generation, which waits for it; a node "
             "that fails its check stays out and is checked again. gpu: are its GPUs there, idle, "
             "without errors, and do they compute (regroup-worker check-gpu)",
     .value = JobField::Text{REGROUP_MEMBER(node_check.command), CheckNodeCheck}},
    {.name = "node_check_timeout",
     .file = "node_check_timeout",
     .flag = "--node-check-timeout",
     .help = "a node check that takes longer has failed",
     .value = JobField::Time{REGROUP_MEMBER(node_check.timeout), milliseconds(1),
                             limits::kNodeCheckTimeout}},
    {.name = "warm",
     .file = "warm",
     .file_note = " (true, or modules as in torch,numpy)",
     .flag = "--warm",
     .placeholder = "[=MODULES]",
     .help = "fork ranks from a process that has imported these modules, so that a restart waits "
             "for no import; without MODULES those that the script imports at its top",
     .value = JobField::Written{"true, false or names of modules", ReadWarm, WriteWarm, CheckWarm}},
    {.name = "in_place",
     .file = "in_place",
     .file_note =
         " (true: ranks that import regroup.inplace keep their process when another fails)",
     .flag = "--in-place",
     .placeholder = "[=false]",
     .help = "ranks that import regroup.inplace keep their process, model and optimizer when their "
             "group changes; others start again, as without it; none: where the script seems to "
             "import it",
     .value = JobField::Written{"true or false", ReadInPlace, WriteInPlace,
                                [](const JobSpec&) { return absl::OkStatus(); }}},
    {.name = "log_keep",
     .file = "log_keep",
     .file_note = " (a size, or all)",
     .flag = "--log-keep",
     .placeholder = "SIZE|all",
     .help = "how much of the output of each rank is kept, of stdout and of stderr, the newest; "
             "none: 100M",
     .launched_help = ", all with --log-dir",
     .value =
         JobField::Written{"a size such as 1G, or all", ReadLogKeep, WriteLogKeep, CheckLogKeep}},
    {.name = "role", .file = "role", .value = JobField::Text{REGROUP_MEMBER(role), CheckRole}},
    {.name = "numa_binding",
     .file = "numa_binding",
     .value = JobField::Text{REGROUP_MEMBER(numa_binding), CheckNumaBinding}},
    {.name = "virtual_local_rank",
     .file = "virtual_local_rank",
     .value = JobField::Switch{REGROUP_MEMBER(virtual_local_rank)}},
    {.name = "price_per_node_hour",
     .file = "price_per_node_hour",
     .file_note = " (a number: `explain` and `ps --json` then tell what the job costs; a node "
                  "counts whole)",
     .value = JobField::Written{"a number without a currency", ReadPrice, WritePrice, CheckPrice}},
};

struct Reading {
  std::string_view text;
  JobSpec& spec;

  absl::Status operator()(const JobField::Number& field) const {
    ASSIGN_OR_RETURN(const std::int64_t number, ParseNumber(text, field.min, field.max));
    field.member.of(spec) = static_cast<int>(number);
    return absl::OkStatus();
  }
  absl::Status operator()(const JobField::OptionalNumber& field) const {
    ASSIGN_OR_RETURN(const std::int64_t number, ParseNumber(text, field.min, field.max));
    field.member.of(spec) = static_cast<int>(number);
    return absl::OkStatus();
  }
  absl::Status operator()(const JobField::Time& field) const {
    ASSIGN_OR_RETURN(field.member.of(spec), ParseDuration(text));
    return absl::OkStatus();
  }
  absl::Status operator()(const JobField::OptionalTime& field) const {
    ASSIGN_OR_RETURN(field.member.of(spec), ParseDuration(text));
    return absl::OkStatus();
  }
  absl::Status operator()(const JobField::Switch& field) const {
    if (text != "true" && text != "false")
      return BadInput("true or false is expected", "this is text");
    field.member.of(spec) = text == "true";
    return absl::OkStatus();
  }
  absl::Status operator()(const JobField::Text& field) const {
    field.member.of(spec) = std::string(text);
    return absl::OkStatus();
  }
  absl::Status operator()(const JobField::Written& field) const { return field.read(text, spec); }
};

struct Writing {
  const JobSpec& spec;
  using Text = std::optional<std::string>;

  Text operator()(const JobField::Number& field) const {
    return std::to_string(field.member.in(spec));
  }
  Text operator()(const JobField::OptionalNumber& field) const {
    const std::optional<int>& value = field.member.in(spec);
    return value ? Text(std::to_string(*value)) : std::nullopt;
  }
  Text operator()(const JobField::Time& field) const {
    return FormatDuration(field.member.in(spec));
  }
  Text operator()(const JobField::OptionalTime& field) const {
    const std::optional<Duration>& value = field.member.in(spec);
    return value ? Text(FormatDuration(*value)) : std::nullopt;
  }
  Text operator()(const JobField::Switch& field) const {
    return field.member.in(spec) ? "true" : "false";
  }
  Text operator()(const JobField::Text& field) const { return field.member.in(spec); }
  Text operator()(const JobField::Written& field) const { return field.write(spec); }
};

struct Checking {
  std::string_view name;
  const JobSpec& spec;

  absl::Status operator()(const JobField::Number& field) const {
    return CheckRange(name, field.member.in(spec), field.min, field.max);
  }
  absl::Status operator()(const JobField::OptionalNumber& field) const {
    return CheckRange(name, field.member.in(spec).value_or(field.min), field.min, field.max);
  }
  absl::Status operator()(const JobField::Time& field) const {
    return DurationInRange(name, field.member.in(spec), field.min, field.max);
  }
  absl::Status operator()(const JobField::OptionalTime& field) const {
    return DurationInRange(name, field.member.in(spec).value_or(field.min), field.min, field.max);
  }
  absl::Status operator()(const JobField::Switch&) const { return absl::OkStatus(); }
  absl::Status operator()(const JobField::Text& field) const {
    return field.check(field.member.in(spec));
  }
  absl::Status operator()(const JobField::Written& field) const { return field.check(spec); }
};

}  // namespace

std::span<const JobField> JobFields() { return kFields; }

absl::Status ReadJobField(const JobField& field, std::string_view text, JobSpec& spec) {
  return std::visit(Reading{text, spec}, field.value);
}

std::optional<std::string> WriteJobField(const JobField& field, const JobSpec& spec) {
  return std::visit(Writing{spec}, field.value);
}

absl::Status CheckJobField(const JobField& field, const JobSpec& spec) {
  return std::visit(Checking{field.name, spec}, field.value);
}

std::string ListOfJobFileFields() {
  constexpr std::string_view kRetry = "retry.";
  std::string list, retry;
  for (const JobField& field : JobFields()) {
    if (field.file.starts_with(kRetry)) {
      retry += Cat(field.file.substr(kRetry.size()), field.file_note, ", ");
    } else if (!field.file.empty()) {
      list += Cat(field.file, field.file_note, ", ");
    }
  }
  return Cat(list, "retry: {", retry, "exit_codes}");
}

}  // namespace regroup
