#include "common/config/job_file.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <variant>
#include <vector>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/hardware.h"
#include "common/config/job_fields.h"
#include "common/config/job_limits.h"
#include "common/config/text.h"
#include "common/config/values.h"

namespace regroup {
namespace {

constexpr int kDefaultMaxRestarts = 3;  // PROTOCOL §3.

std::string_view KindOf(const YAML::Node& node) {
  if (node.IsMap()) return "a map";
  if (node.IsSequence()) return "a list";
  if (node.IsScalar()) return "text";
  return "empty";
}

// Options of a launch command that say nothing about a submitted job, and what takes their place.
struct NotInAJob {
  std::string_view name;  // A * stands for whatever follows.
  std::string_view because, try_this;
};
constexpr NotInAJob kNotInAJob[] = {
    {"rdzv_*",
     "nodes of a submitted job do not look for each other: the coordinator brings them together",
     "leave it out"},
    {"master_*",
     "nodes of a submitted job do not look for each other: the coordinator brings them together",
     "leave it out"},
    {"node_rank", "the coordinator gives ranks, in natural order of nodes' names", "leave it out"},
    {"standalone", "a job of one node says so by its number of nodes", "nnodes: 1"},
    {"local_addr", "an address belongs to a node: each agent finds its own", "leave it out"},
    {"log_dir", "where logs lie is each agent's own", "regroup agent --log-dir DIRECTORY"},
    {"logs_specs", "there are no plug-ins for logs: everything is kept", "regroup logs JOB"},
    {"redirects", "nothing is shown where an agent runs a job: all output is kept",
     "regroup logs JOB"},
    {"tee", "nothing is shown where an agent runs a job: all output is kept",
     "regroup logs -f JOB"},
    {"local_ranks_filter", "nothing is shown where an agent runs a job: whoever reads chooses",
     "regroup logs JOB --rank R,R"},
    {"log_line_prefix_template", "logs know time, node and rank of each line",
     "regroup logs JOB, or regroup logs JOB --raw"},
    {"duplicate_stdout_filters", "whoever reads chooses lines",
     "regroup logs JOB --stdout --grep RE"},
    {"duplicate_stderr_filters", "whoever reads chooses lines",
     "regroup logs JOB --stderr --grep RE"},
    {"signals_to_handle", "nobody sends signals to a submitted job: `regroup cancel` ends it",
     "leave it out"},
    {"monitor_interval", "exits of workers are events, nothing is polled", "leave it out"},
    {"start_method", "workers are programs of their own", "leave it out"},
    {"event_log_handler", "the coordinator keeps every event", "regroup explain JOB --json"},
    {"join_timeout", "a job waits in the queue for as long as it takes", "regroup cancel JOB"},
    {"module", "run is the whole command", "run: [python, -m, MODULE]"},
    {"no_python", "run is the whole command", "run: [PROGRAM, ARGS]"},
    {"run_path", "run is the whole command", "run: [python, FILE]"},
};

const NotInAJob* WhyNotInAJob(std::string_view field) {
  std::string name(field);
  std::replace(name.begin(), name.end(), '-', '_');
  for (const NotInAJob& row : kNotInAJob) {
    const bool family = row.name.back() == '*';
    const std::string_view stem = row.name.substr(0, row.name.size() - (family ? 1 : 0));
    if (family ? name.rfind(stem, 0) == 0 : name == stem) return &row;
  }
  return nullptr;
}

// What a message asks for where a field's value is no scalar.
struct ExpectedText {
  static constexpr std::string_view kNumber = "a whole number";
  static constexpr std::string_view kDuration = "a duration, as in 60s,";
  std::string_view operator()(const JobField::Number&) const { return kNumber; }
  std::string_view operator()(const JobField::OptionalNumber&) const { return kNumber; }
  std::string_view operator()(const JobField::Time&) const { return kDuration; }
  std::string_view operator()(const JobField::OptionalTime&) const { return kDuration; }
  std::string_view operator()(const JobField::Switch&) const { return "true or false"; }
  std::string_view operator()(const JobField::Text&) const { return "text"; }
  std::string_view operator()(const JobField::Written& field) const { return field.expected; }
};
std::string_view Expected(const JobField& field) { return std::visit(ExpectedText{}, field.value); }

// "retry." of "retry.max"; empty for a field that lies in no map.
std::string_view Folder(std::string_view file) {
  const std::size_t dot = file.find('.');
  return file.substr(0, dot == std::string_view::npos ? 0 : dot + 1);
}

// Walks a parsed file; every error says source:line and the field.
class JobFileReader {
 public:
  JobFileReader(std::string_view source, std::string_view directory) : source_(source) {
    spec_.origin = JobOrigin::kSubmitted;
    spec_.directory = std::string(directory);
    spec_.max_restarts = kDefaultMaxRestarts;
  }

  absl::StatusOr<JobSpec> Read(const YAML::Node& root) {
    if (!root.IsMap()) {
      return UserError(absl::StatusCode::kInvalidArgument, Cat(source_, ": not a job file"),
                       Cat("a map of fields is expected, this is ", KindOf(root)),
                       "regroup submit --help");
    }
    std::map<std::string, Reader> readers = FieldsOf("");
    readers.insert({{"name", [&](auto& n) { return Text(n, spec_.name); }},
                    {"nnodes", [&](auto& n) { return Nodes(n); }},
                    {"nproc_per_node", [&](auto& n) { return Workers(n); }},
                    {"run", [&](auto& n) { return Command(n); }},
                    {"workdir", [&](auto& n) { return Text(n, spec_.directory); }},
                    {"env", [&](auto& n) { return Environment(n); }},
                    {"retry", [&](auto& n) { return Retry(n); }},
                    // As torchrun calls them.
                    {"max_restarts", FieldsOf("retry.").at("max")},
                    {"shutdown_timeout", [&](auto& n) { return Seconds(n, spec_.grace); }}});
    RETURN_IF_ERROR(Each(root, "", readers));
    for (const char* required : {"name", "run"}) {
      if (lines_.count(required) == 0) {
        return UserError(absl::StatusCode::kInvalidArgument,
                         Cat(source_, ": the field ", required, " is missing"),
                         "a job has a name and a command", "regroup submit --help");
      }
    }
    absl::Status valid = ValidateJobSpec(spec_);
    if (!valid.ok()) return AtLine(valid);
    return spec_;
  }

 private:
  using Reader = std::function<absl::Status(const YAML::Node&)>;

  static std::string NamesOf(const std::map<std::string, Reader>& readers) {
    std::string list;
    for (const auto& [name, unused] : readers) list += Cat(list.empty() ? "" : " ", name);
    return list;
  }

  absl::Status Bad(const YAML::Node& node, std::string_view what, std::string_view because,
                   std::string_view try_this = "") const {
    return UserError(absl::StatusCode::kInvalidArgument,
                     Cat(source_, ":", node.Mark().line + 1, ": ", what), because, try_this);
  }
  absl::Status WrongType(const YAML::Node& node, std::string_view expected) const {
    return Bad(node, Cat(field_, ": ", expected, " is expected"), Cat("this is ", KindOf(node)));
  }
  // A value's own error, with line and field.
  absl::Status Within(const YAML::Node& node, const absl::Status& status) const {
    return AtField(Cat(source_, ":", node.Mark().line + 1, ": ", field_), status);
  }
  // ValidateJobSpec knows fields, not lines.
  absl::Status AtLine(const absl::Status& status) const {
    std::string field(status.message());
    field = field.substr(0, field.find_first_of(": ."));
    auto line = lines_.find(field);
    return AtField(line == lines_.end() ? source_ : Cat(source_, ":", line->second), status);
  }

  // Every entry of a map by its reader; unknown and repeated fields are refused.
  absl::Status Each(const YAML::Node& map, const std::string& prefix,
                    const std::map<std::string, Reader>& readers) {
    std::set<std::string> seen;
    for (const auto& entry : map) {
      if (!entry.first.IsScalar())
        return Bad(entry.first, "a field's name is expected", Cat("this is ", KindOf(entry.first)));
      const std::string& name = entry.first.Scalar();
      auto reader = readers.find(name);
      const NotInAJob* why_not =
          reader == readers.end() && prefix.empty() ? WhyNotInAJob(name) : nullptr;
      if (why_not != nullptr) {
        return Bad(entry.first, Cat("a job file has no ", ShellQuote(name.substr(0, 60))),
                   why_not->because, why_not->try_this);
      }
      if (reader == readers.end()) {
        std::vector<std::string> known;
        for (const auto& [field, unused] : readers) known.push_back(field);
        const std::string nearest = DidYouMean(name, known);
        return Bad(entry.first, Cat("unknown field ", prefix, ShellQuote(name.substr(0, 60))),
                   nearest.empty() ? Cat("known are: ", NamesOf(readers))
                                   : Cat("did you mean ", nearest, "?"));
      }
      if (!seen.insert(name).second)
        return Bad(entry.first, Cat("`", prefix, name, "` is given twice"), "one is allowed");
      if (prefix.empty()) lines_[name] = entry.first.Mark().line + 1;
      field_ = prefix + name;
      RETURN_IF_ERROR(reader->second(entry.second));
    }
    return absl::OkStatus();
  }

  // The table's fields whose names in a job file are `prefix` and one word.
  std::map<std::string, Reader> FieldsOf(std::string_view prefix) {
    std::map<std::string, Reader> readers;
    for (const JobField& field : JobFields()) {
      if (field.file.empty() || Folder(field.file) != prefix) continue;
      readers.emplace(field.file.substr(prefix.size()),
                      [this, &field](const YAML::Node& n) { return Value(n, field); });
    }
    return readers;
  }

  absl::Status Value(const YAML::Node& node, const JobField& field) {
    if (!node.IsScalar()) return WrongType(node, Expected(field));
    const absl::Status read = ReadJobField(field, node.Scalar(), spec_);
    return read.ok() ? read : Within(node, read);
  }

  absl::Status Text(const YAML::Node& node, std::string& out) const {
    if (!node.IsScalar()) return WrongType(node, "text");
    out = node.Scalar();
    return absl::OkStatus();
  }

  absl::Status Number(const YAML::Node& node, int min, int max, int& out) const {
    if (!node.IsScalar()) return WrongType(node, "a whole number");
    absl::StatusOr<std::int64_t> number = ParseNumber(node.Scalar(), min, max);
    if (!number.ok()) return Within(node, number.status());
    out = static_cast<int>(*number);
    return absl::OkStatus();
  }

  absl::Status Workers(const YAML::Node& node) {
    if (!node.IsScalar()) return WrongType(node, "a whole number or gpu");
    absl::StatusOr<int> workers = ParseWorkersPerNode(node.Scalar());
    if (!workers.ok()) {
      const UserErrorParts parts = PartsOf(workers.status());
      return Bad(node, Cat(field_, ": ", parts.what), parts.because,
                 Cat(field_, ": ", parts.try_this));
    }
    spec_.workers_per_node = *workers;
    return absl::OkStatus();
  }

  absl::Status Seconds(const YAML::Node& node, Duration& out) const {
    int seconds = 0;
    RETURN_IF_ERROR(Number(node, 0, 365 * 24 * 3600, seconds));
    out = std::chrono::seconds(seconds);
    return absl::OkStatus();
  }

  absl::Status Nodes(const YAML::Node& node) {
    if (node.IsMap()) {
      bool has_max = static_cast<bool>(node["max"]);
      RETURN_IF_ERROR(
          Each(node, "nnodes.",
               {{"min", [&](auto& n) { return Number(n, 1, limits::kNodes, spec_.min_nodes); }},
                {"max", [&](auto& n) { return Number(n, 1, limits::kNodes, spec_.max_nodes); }},
                {"unit", [&](auto& n) { return Number(n, 1, limits::kNodes, spec_.unit); }}}));
      if (!has_max) spec_.max_nodes = spec_.min_nodes;
      return absl::OkStatus();
    }
    if (!node.IsScalar()) return WrongType(node, "a number, MIN:MAX or {min, max, unit}");
    absl::StatusOr<NodeBounds> bounds = ParseNnodes(node.Scalar());
    if (!bounds.ok()) return Within(node, bounds.status());
    spec_.min_nodes = bounds->min;
    spec_.max_nodes = bounds->max;
    return absl::OkStatus();
  }

  absl::Status Command(const YAML::Node& node) {
    if (node.IsScalar()) {
      spec_.command = {"/bin/sh", "-c", node.Scalar()};
      return absl::OkStatus();
    }
    if (!node.IsSequence()) return WrongType(node, "a list of words, or a line for the shell,");
    for (const YAML::Node& word : node) {
      if (!word.IsScalar()) return WrongType(word, "a list of words");
      spec_.command.push_back(word.Scalar());
    }
    return absl::OkStatus();
  }

  absl::Status Environment(const YAML::Node& node) {
    if (!node.IsMap()) return WrongType(node, "a map NAME: value");
    for (const auto& entry : node) {
      if (!entry.first.IsScalar() || !entry.second.IsScalar())
        return WrongType(entry.second, "a map NAME: value");
      auto [at, added] = spec_.environment.emplace(entry.first.Scalar(), entry.second.Scalar());
      if (!added)
        return Bad(entry.first,
                   Cat("env: ", ShellQuote(at->first.substr(0, 60)), " is given twice"),
                   "one is allowed");
    }
    return absl::OkStatus();
  }

  absl::Status Retry(const YAML::Node& node) {
    std::map<std::string, Reader> readers = FieldsOf("retry.");
    readers.emplace("exit_codes", [&](auto& n) { return ExitCodes(n); });
    if (!node.IsMap()) return WrongType(node, Cat("a map of ", NamesOf(readers)));
    return Each(node, "retry.", readers);
  }

  absl::Status ExitCodes(const YAML::Node& node) {
    if (!node.IsMap()) return WrongType(node, "a map CODE: retry|fail");
    for (const auto& entry : node) {
      int code = 0;
      RETURN_IF_ERROR(Number(entry.first, 1, 255, code));
      std::string action;
      RETURN_IF_ERROR(Text(entry.second, action));
      if (action != "retry" && action != "fail") {
        std::string nearest = DidYouMean(action, {"retry", "fail"});
        return Bad(entry.second, Cat(field_, ": unknown action ", ShellQuote(action.substr(0, 60))),
                   nearest.empty() ? "use retry or fail" : Cat("did you mean ", nearest, "?"));
      }
      bool added =
          spec_.exit_codes.emplace(code, action == "fail" ? ExitAction::kFail : ExitAction::kRetry)
              .second;
      if (!added)
        return Bad(entry.first, Cat(field_, ": ", code, " is given twice"), "one is allowed");
    }
    return absl::OkStatus();
  }

  const std::string source_;
  std::string field_;
  std::map<std::string, int> lines_;  // Where each top-level field is.
  JobSpec spec_;
};

// Takes note of where a document begins, and of nothing else.
class FirstMark : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { line = mark.line + 1; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
  int line = 0;
};

// Not by YAML::LoadAll: of a text like ",a: b" it makes documents without end, all of them empty.
std::optional<int> LineOfSecondDocument(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  FirstMark mark;
  if (!parser.HandleNextDocument(mark) || !parser.HandleNextDocument(mark)) return std::nullopt;
  return mark.line;
}

// yaml-cpp takes bytes that are no UTF-8, and writes U+FFFD in their place.
std::optional<int> LineThatIsNotUtf8(std::string_view text) {
  int line = 1;
  try {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
      nlohmann::json(std::string(text.substr(0, end))).dump();  // Strict.
      text.remove_prefix(end);
      ++line;
    }
  } catch (const nlohmann::json::type_error&) {
    return line;
  }
  return std::nullopt;
}

// The table's fields of one map of the file, where they say something.
void RenderFields(YAML::Emitter& out, const JobSpec& spec, std::string_view folder) {
  const JobSpec plain;
  for (const JobField& field : JobFields()) {
    if (field.file.empty() || Folder(field.file) != folder) continue;
    const std::optional<std::string> text = WriteJobField(field, spec);
    if (!text || (!field.always_rendered && text == WriteJobField(field, plain))) continue;
    out << YAML::Key << std::string(field.file.substr(folder.size())) << YAML::Value;
    if (std::holds_alternative<JobField::Text>(field.value)) out << YAML::DoubleQuoted;
    out << *text;
  }
}

struct FileCloser {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

}  // namespace

absl::StatusOr<JobSpec> ParseJobFile(std::string_view text, std::string_view source,
                                     std::string_view directory) {
  if (text.size() > kMaxJobFileBytes) {
    return UserError(absl::StatusCode::kInvalidArgument,
                     Cat(source, " has ", text.size(), " bytes"),
                     Cat("a job file has at most ", kMaxJobFileBytes), "");
  }
  if (const std::optional<int> line = LineThatIsNotUtf8(text)) {
    return UserError(absl::StatusCode::kInvalidArgument, Cat(source, ":", *line, ": not UTF-8"),
                     "a job file is YAML in UTF-8",
                     "regroup submit -- PROGRAM ARGS... takes any bytes");
  }
  // The only place where yaml-cpp's exceptions appear. Its own depth guard bounds nesting.
  try {
    const YAML::Node document = YAML::Load(std::string(text));
    if (const std::optional<int> line = LineOfSecondDocument(std::string(text))) {
      return UserError(absl::StatusCode::kInvalidArgument,
                       Cat(source, ":", *line, ": a second document"), "one file is one job",
                       "a file for each job");
    }
    return JobFileReader(source, directory).Read(document);
  } catch (const YAML::Exception& error) {
    return UserError(absl::StatusCode::kInvalidArgument,
                     Cat(source, ":", error.mark.line + 1, ": not YAML"), error.msg, "");
  }
}

absl::StatusOr<JobSpec> ReadJobFile(const std::string& path, std::string_view directory) {
  std::unique_ptr<std::FILE, FileCloser> file(path == "-" ? stdin : std::fopen(path.c_str(), "re"));
  std::string source = path == "-" ? "standard input" : path;
  auto unreadable = [&] {
    return UserError(absl::StatusCode::kNotFound, Cat("cannot read the job file ", source),
                     std::strerror(errno),
                     "regroup submit FILE, or regroup submit -- PROGRAM ARGS...");
  };
  if (file == nullptr) return unreadable();
  std::string text(kMaxJobFileBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return unreadable();
  return ParseJobFile(text, source, directory);
}

std::string RenderJobFile(const JobSpec& spec) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  out << YAML::Key << "name" << YAML::Value << spec.name;
  out << YAML::Key << "nnodes" << YAML::Value;
  if (spec.unit == 1) {
    out << FormatNnodes(spec.min_nodes, spec.max_nodes);
  } else {
    out << YAML::Flow << YAML::BeginMap << YAML::Key << "min" << YAML::Value << spec.min_nodes
        << YAML::Key << "max" << YAML::Value << spec.max_nodes << YAML::Key << "unit" << YAML::Value
        << spec.unit << YAML::EndMap;
  }
  out << YAML::Key << "nproc_per_node" << YAML::Value;
  if (spec.workers_per_node == kWorkerPerGpu) out << "gpu";
  if (spec.workers_per_node != kWorkerPerGpu) out << spec.workers_per_node;
  out << YAML::Key << "run" << YAML::Value << YAML::Flow << YAML::BeginSeq;
  for (const std::string& word : spec.command) out << YAML::DoubleQuoted << word;
  out << YAML::EndSeq;
  out << YAML::Key << "workdir" << YAML::Value << YAML::DoubleQuoted << spec.directory;
  if (!spec.environment.empty()) {
    out << YAML::Key << "env" << YAML::Value << YAML::BeginMap;
    for (const auto& [name, value] : spec.environment) {
      out << YAML::Key << name << YAML::Value << YAML::DoubleQuoted << value;
    }
    out << YAML::EndMap;
  }
  RenderFields(out, spec, "");
  out << YAML::Key << "retry" << YAML::Value << YAML::BeginMap;
  RenderFields(out, spec, "retry.");
  if (!spec.exit_codes.empty()) {
    out << YAML::Key << "exit_codes" << YAML::Value << YAML::Flow << YAML::BeginMap;
    for (const auto& [code, action] : spec.exit_codes) {
      out << YAML::Key << code << YAML::Value << (action == ExitAction::kFail ? "fail" : "retry");
    }
    out << YAML::EndMap;
  }
  out << YAML::EndMap << YAML::EndMap;
  return Cat(out.c_str(), "\n");
}

}  // namespace regroup
