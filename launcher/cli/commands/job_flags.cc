#include "launcher/cli/commands/job_flags.h"

#include <optional>
#include <variant>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/flags.h"
#include "common/config/hardware.h"
#include "common/config/job_fields.h"
#include "common/config/text.h"

namespace regroup::cli {
namespace {

// Declares the flag of one field.
struct AddField {
  CLI::App& app;
  const JobField& field;
  const std::string& help;
  JobSpec& spec;

  void operator()(const JobField::Number& value) const {
    AddInt(app, field.flag, value.member.of(spec), value.min, value.max, help);
  }
  void operator()(const JobField::OptionalNumber& value) const {
    AddInt(app, field.flag, value.member.of(spec), value.min, value.max, help);
  }
  void operator()(const JobField::Time& value) const {
    AddDuration(app, field.flag, value.member.of(spec), help);
  }
  void operator()(const JobField::OptionalTime& value) const {
    AddDuration(app, field.flag, value.member.of(spec), help);
  }
  void operator()(const JobField::Switch& value) const {
    AddSwitch(app, field.flag, value.member.of(spec), help);
  }
  void operator()(const JobField::Text& value) const {
    AddText(app, field.flag, value.member.of(spec), help, field.placeholder);
  }
  void operator()(const JobField::Written& value) const {
    const auto parse = [&spec = spec, &field = field](std::string_view text) {
      RETURN_IF_ERROR(ReadJobField(field, text, spec));
      return absl::OkStatus();
    };
    if (field.placeholder.starts_with("[=")) {
      AddOptionalText(app, field.flag, field.placeholder, "true", help, parse);
    } else {
      AddParsed(app, field.flag, field.placeholder, value.write(spec).value_or(""), help, parse);
    }
  }
};

}  // namespace

void DescribeFlags(CLI::App& app, JobFlags& flags) {
  AddParsed(app, "-N,--nnodes", "MIN[:MAX]", FormatNnodes(flags.nodes.min, flags.nodes.max),
            "nodes that the job needs, and may use", [&flags](std::string_view text) {
              ASSIGN_OR_RETURN(flags.nodes, ParseNnodes(text));
              return absl::OkStatus();
            });
  AddText(app, "--nproc-per-node,--ppn", flags.workers,
          flags.origin == JobOrigin::kSubmitted
              ? "workers on each node: a number, or gpu (one for each slot of whole nodes whose "
                "slots are GPUs)"
              : "workers on this node: a number, gpu, cpu, or auto (GPUs, else CPUs)",
          "N");
  for (const JobField& field : JobFields()) {
    if (field.flag.empty()) continue;
    const std::string help =
        Cat(field.help, flags.origin == JobOrigin::kLaunched ? field.launched_help : "");
    std::visit(AddField{app, field, help, flags.fields}, field.value);
  }
}

absl::Status Apply(const JobFlags& flags, JobSpec& spec) {
  absl::StatusOr<int> workers = flags.origin == JobOrigin::kSubmitted
                                    ? ParseWorkersPerNode(flags.workers)
                                    : ResolveWorkersPerNode(flags.workers);
  if (!workers.ok()) {
    const UserErrorParts parts = PartsOf(workers.status());
    return UserError(workers.status().code(), Cat("--nproc-per-node: ", parts.what), parts.because,
                     Cat("--nproc-per-node ", parts.try_this));
  }
  spec.origin = flags.origin;
  spec.workers_per_node = *workers;
  spec.min_nodes = flags.nodes.min;
  spec.max_nodes = flags.nodes.max;
  for (const JobField& field : JobFields()) {
    if (field.flag.empty()) continue;
    const std::optional<std::string> text = WriteJobField(field, flags.fields);
    if (!text) continue;
    const absl::Status read = ReadJobField(field, *text, spec);
    if (!read.ok()) return AtField(field.flag, read);
  }
  return absl::OkStatus();
}

}  // namespace regroup::cli
