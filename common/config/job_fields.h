#pragma once

// The fields of a job that are one value each, declared once. Job files and what `--dry-run`
// prints, flags of `run` and `submit` with their variables, man pages and completion, what a launch
// command hands to its agent, limits, and the list of fields that `submit --help` shows: all of
// them read this table.
//
// A new field is a row here, a member of JobSpec, and its number on the wire (proto/job.proto and
// common/rpc/convert_job.cc). Two more places know single fields: CheckSameBounds
// (launcher/coordinator/core/admission.cc) names those that every launch command of a job has to
// give alike, and launcher/cli/render/json.cc those that scripts read. What is not one value
// (nnodes, run, env, retry.exit_codes) is read and printed by job_file.cc.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "absl/status/status.h"
#include "common/base/job_spec.h"
#include "common/base/time.h"

namespace regroup {

// Where in a job the value is.
template <class T>
struct Member {
  template <class Path>
  requires std::is_convertible_v<Path, T& (*)(JobSpec&)>
  constexpr Member(Path path) : of(path), in(path) {}  // NOLINT(google-explicit-constructor)
  T& (*of)(JobSpec&);
  const T& (*in)(const JobSpec&);
};

struct JobField {
  struct Number {
    Member<int> member;
    int min, max;
  };
  struct OptionalNumber {
    Member<std::optional<int>> member;
    int min, max;
  };
  struct Time {
    Member<Duration> member;
    Duration min, max;
  };
  struct OptionalTime {
    Member<std::optional<Duration>> member;
    Duration min, max;
  };
  struct Switch {
    Member<bool> member;
  };
  struct Text {
    Member<std::string> member;
    absl::Status (*check)(const std::string&);  // Its error names the field.
  };
  struct Written {  // Text of a grammar of its own.
    std::string_view expected;
    absl::Status (*read)(std::string_view, JobSpec&);
    std::optional<std::string> (*write)(const JobSpec&);  // Nullopt: not set.
    absl::Status (*check)(const JobSpec&);                // Its error names the field.
  };

  std::string_view name{};  // In messages, and from a launch command to its agent.
  // In a job file; "retry.max" is `max` in the map `retry`. Empty: no field of a job file.
  std::string_view file{};
  std::string_view file_note{};      // What `submit --help` says of it behind its name.
  bool always_rendered = false;      // `--dry-run` prints it, though it has its default.
  std::string_view flag{};           // Of `run` and `submit`; empty: none.
  std::string_view placeholder{};    // Where the flag's value is text; "[=TEXT]": may be left out.
  std::string_view help{};           // Of the flag.
  std::string_view launched_help{};  // What `run` says behind it.
  std::variant<Number, OptionalNumber, Time, OptionalTime, Switch, Text, Written> value;
};

// In the order of flags and of what `--dry-run` prints.
std::span<const JobField> JobFields();

// Sets the field to what a person or WriteJobField wrote. The error does not name the field. Of
// times and texts only the grammar is judged: CheckJobField knows their limits.
absl::Status ReadJobField(const JobField& field, std::string_view text, JobSpec& spec);
// What ReadJobField reads back as the same value. Nullopt: it is not set.
std::optional<std::string> WriteJobField(const JobField& field, const JobSpec& spec);
// Never trusts `spec`. The error names field, value and limit.
absl::Status CheckJobField(const JobField& field, const JobSpec& spec);

// "grace, scale_up, …, retry: {max, …, exit_codes}": what the table adds to a job file.
std::string ListOfJobFileFields();

}  // namespace regroup
