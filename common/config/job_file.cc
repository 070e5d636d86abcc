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
#include <vector>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/hardware.h"
#include "common/config/job_limits.h"
#include "common/config/names.h"
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
    RETURN_IF_ERROR(
        Each(root, "",
             {{"name", [&](auto& n) { return Text(n, spec_.name); }},
              {"nnodes", [&](auto& n) { return Nodes(n); }},
              {"nproc_per_node", [&](auto& n) { return Workers(n); }},
              {"run", [&](auto& n) { return Command(n); }},
              {"workdir", [&](auto& n) { return Text(n, spec_.directory); }},
              {"env", [&](auto& n) { return Environment(n); }},
              {"grace", [&](auto& n) { return Time(n, spec_.grace); }},
              // As torchrun calls them.
              {"max_restarts",
               [&](auto& n) { return Number(n, 0, limits::kRestarts, spec_.max_restarts); }},
              {"shutdown_timeout", [&](auto& n) { return Seconds(n, spec_.grace); }},
              {"scale_up", [&](auto& n) { return Scale(n); }},
              {"role", [&](auto& n) { return Text(n, spec_.role); }},
              {"numa_binding", [&](auto& n) { return Text(n, spec_.numa_binding); }},
              {"virtual_local_rank", [&](auto& n) { return Switch(n, spec_.virtual_local_rank); }},
              {"node_check", [&](auto& n) { return Text(n, spec_.node_check.command); }},
              {"node_check_timeout", [&](auto& n) { return Time(n, spec_.node_check.timeout); }},
              {"log_keep", [&](auto& n) { return LogKeep(n); }},
              {"price_per_node_hour", [&](auto& n) { return Price(n); }},
              {"retry", [&](auto& n) { return Retry(n); }}}));
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
        std::string nearest = DidYouMean(name, known), list;
        for (const std::string& field : known) list += Cat(list.empty() ? "" : " ", field);
        return Bad(entry.first, Cat("unknown field ", prefix, ShellQuote(name.substr(0, 60))),
                   nearest.empty() ? Cat("known are: ", list) : Cat("did you mean ", nearest, "?"));
      }
      if (!seen.insert(name).second)
        return Bad(entry.first, Cat("`", prefix, name, "` is given twice"), "one is allowed");
      if (prefix.empty()) lines_[name] = entry.first.Mark().line + 1;
      field_ = prefix + name;
      RETURN_IF_ERROR(reader->second(entry.second));
    }
    return absl::OkStatus();
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
    if (!node.IsScalar()) return WrongType(node, "a whole number");
    absl::StatusOr<int> workers = ParseWorkersPerNode(node.Scalar());
    if (!workers.ok()) {
      const UserErrorParts parts = PartsOf(workers.status());
      return Bad(node, Cat(field_, ": ", parts.what), parts.because,
                 Cat(field_, ": ", parts.try_this));
    }
    spec_.workers_per_node = *workers;
    return absl::OkStatus();
  }

  absl::Status Time(const YAML::Node& node, Duration& out) const {
    if (!node.IsScalar()) return WrongType(node, "a duration, as in 60s,");
    absl::StatusOr<Duration> time = ParseDuration(node.Scalar());
    if (!time.ok()) return Within(node, time.status());
    out = *time;
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

  absl::Status Scale(const YAML::Node& node) {
    if (!node.IsScalar()) return WrongType(node, "settle, now, next or never");
    absl::StatusOr<ScaleUp> scale = ParseScaleUp(node.Scalar());
    if (!scale.ok()) return Within(node, scale.status());
    spec_.scale_up = *scale;
    return absl::OkStatus();
  }

  absl::Status Switch(const YAML::Node& node, bool& out) const {
    const std::string text = node.IsScalar() ? node.Scalar() : std::string();
    if (text != "true" && text != "false") return WrongType(node, "true or false");
    out = text == "true";
    return absl::OkStatus();
  }

  absl::Status LogKeep(const YAML::Node& node) {
    if (!node.IsScalar()) return WrongType(node, "a size such as 1G, or all");
    absl::StatusOr<std::uint64_t> bytes = ParseLogKeep(node.Scalar());
    if (!bytes.ok()) return Within(node, bytes.status());
    spec_.log_keep_bytes = *bytes;
    return absl::OkStatus();
  }

  absl::Status Price(const YAML::Node& node) {
    if (!node.IsScalar()) return WrongType(node, "a number without a currency");
    absl::StatusOr<double> price = ParseReal(node.Scalar());
    if (!price.ok()) return Within(node, price.status());
    spec_.price_per_node_hour = *price;
    return absl::OkStatus();
  }

  absl::Status Retry(const YAML::Node& node) {
    if (!node.IsMap()) return WrongType(node, "a map with max, window and exit_codes");
    return Each(
        node, "retry.",
        {{"max", [&](auto& n) { return Number(n, 0, limits::kRestarts, spec_.max_restarts); }},
         {"window", [&](auto& n) { return Time(n, spec_.restart_window.emplace()); }},
         {"exit_codes", [&](auto& n) { return ExitCodes(n); }}});
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
  out << YAML::Key << "nproc_per_node" << YAML::Value << spec.workers_per_node;
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
  out << YAML::Key << "grace" << YAML::Value << FormatDuration(spec.grace);
  out << YAML::Key << "scale_up" << YAML::Value << std::string(NameOf(spec.scale_up));
  if (spec.role != JobSpec().role)
    out << YAML::Key << "role" << YAML::Value << YAML::DoubleQuoted << spec.role;
  if (!spec.numa_binding.empty())
    out << YAML::Key << "numa_binding" << YAML::Value << spec.numa_binding;
  if (spec.virtual_local_rank) out << YAML::Key << "virtual_local_rank" << YAML::Value << true;
  if (spec.node_check.wanted()) {
    out << YAML::Key << "node_check" << YAML::Value << YAML::DoubleQuoted
        << spec.node_check.command;
    out << YAML::Key << "node_check_timeout" << YAML::Value
        << FormatDuration(spec.node_check.timeout);
  }
  if (spec.log_keep_bytes)
    out << YAML::Key << "log_keep" << YAML::Value << FormatLogKeep(*spec.log_keep_bytes);
  if (spec.price_per_node_hour)
    out << YAML::Key << "price_per_node_hour" << YAML::Value
        << FormatReal(*spec.price_per_node_hour);
  out << YAML::Key << "retry" << YAML::Value << YAML::BeginMap;
  out << YAML::Key << "max" << YAML::Value << spec.max_restarts;
  if (spec.restart_window)
    out << YAML::Key << "window" << YAML::Value << FormatDuration(*spec.restart_window);
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
