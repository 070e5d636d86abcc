#include "common/config/launch_config.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "common/base/status_macros.h"
#include "common/config/job_fields.h"
#include "common/config/text.h"
#include "common/config/values.h"

namespace regroup {
namespace {

using nlohmann::json;
constexpr std::size_t kMaxBytes = 8u << 20;  // Twice what the kernel allows for a command line.

// JSON holds code points, arguments hold bytes: every byte travels as the code point of its value.
std::string Widened(std::string_view bytes) {
  std::string out;
  for (unsigned char c : bytes) {
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else {
      out += static_cast<char>(0xC0 | (c >> 6));
      out += static_cast<char>(0x80 | (c & 0x3F));
    }
  }
  return out;
}

std::string Narrowed(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80 || i + 1 == text.size()) {
      out += static_cast<char>(c);
    } else {
      out += static_cast<char>(((c & 0x03) << 6) | (static_cast<unsigned char>(text[++i]) & 0x3F));
    }
  }
  return out;
}

json Texts(const std::vector<std::string>& texts) {
  json out = json::array();
  for (const std::string& text : texts) out.push_back(Widened(text));
  return out;
}

// Reads fields of one object; the first missing or mistyped one is kept as the error.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {}

  void Text(const char* name, std::string& out) {
    const json* value = Find(name, json::value_t::string);
    if (value != nullptr) out = Narrowed(value->get_ref<const std::string&>());
  }
  void Bool(const char* name, bool& out) {
    const json* value = Find(name, json::value_t::boolean);
    if (value != nullptr) out = value->get<bool>();
  }
  template <class Number>
  void Integer(const char* name, Number& out) {
    auto found = object_.find(name);
    if (found == object_.end() || !found->is_number_integer()) return Fail(name);
    out = static_cast<Number>(found->get<std::int64_t>());
  }
  void Time(const char* name, Duration& out) {
    std::int64_t count = 0;
    Integer(name, count);
    out = Duration(count);
  }
  void Time(const char* name, std::optional<Duration>& out) {
    if (!object_.contains(name)) return;
    Time(name, out.emplace());
  }
  void List(const char* name, std::vector<int>& out) {
    const json* value = Find(name, json::value_t::array);
    if (value == nullptr) return;
    out.clear();
    for (const json& item : *value) {
      if (!item.is_number_integer()) return Fail(name);
      out.push_back(item.get<int>());
    }
  }
  void List(const char* name, std::vector<std::string>& out) {
    const json* value = Find(name, json::value_t::array);
    if (value == nullptr) return;
    out.clear();
    for (const json& item : *value) {
      if (!item.is_string()) return Fail(name);
      out.push_back(Narrowed(item.get_ref<const std::string&>()));
    }
  }
  absl::Status status() const { return status_; }

 private:
  const json* Find(const char* name, json::value_t type) {
    auto found = object_.find(name);
    if (found != object_.end() && found->type() == type) return &*found;
    Fail(name);
    return nullptr;
  }
  void Fail(const char* name) {
    if (status_.ok())
      status_ =
          absl::InvalidArgumentError(Cat("launch config: field ", name, " is missing or wrong"));
  }

  const json& object_;
  absl::Status status_;
};

json JobToJson(const JobSpec& spec) {
  json job = {{"name", Widened(spec.name)},
              {"min_nodes", spec.min_nodes},
              {"max_nodes", spec.max_nodes},
              {"command", Texts(spec.command)}};
  for (const JobField& field : JobFields())
    if (const std::optional<std::string> text = WriteJobField(field, spec))
      job[std::string(field.name)] = Widened(*text);
  return job;
}

absl::Status JobFromJson(const json& job, JobSpec& spec) {
  Fields fields(job);
  fields.Text("name", spec.name);
  fields.Integer("min_nodes", spec.min_nodes);
  fields.Integer("max_nodes", spec.max_nodes);
  fields.List("command", spec.command);
  spec.origin = JobOrigin::kLaunched;
  for (const JobField& field : JobFields()) {
    const std::string name(field.name);
    if (!job.contains(name)) continue;  // It is not set.
    std::string text;
    fields.Text(name.c_str(), text);
    RETURN_IF_ERROR(fields.status());
    const absl::Status read = ReadJobField(field, text, spec);
    if (!read.ok()) return AtField(Cat("launch config: field ", name), read);
  }
  return fields.status();
}

json WorkerToJson(const WorkerOptions& worker) {
  return {{"role", Widened(worker.role)},
          {"run_id", Widened(worker.run_id)},
          {"substitute_local_rank", worker.substitute_local_rank},
          {"virtual_local_rank", worker.virtual_local_rank},
          {"numa_binding", worker.numa_binding},
          {"ending_signals", worker.ending_signals},
          {"forwarded_signals", worker.forwarded_signals},
          {"handled_signals", worker.handled_signals},
          {"master_name", Widened(worker.master_name)},
          {"leave_children", worker.leave_children},
          {"sets_master_port", worker.sets_master_port}};
}

void WorkerFromJson(Fields& fields, WorkerOptions& worker) {
  fields.Text("role", worker.role);
  fields.Text("run_id", worker.run_id);
  fields.Bool("substitute_local_rank", worker.substitute_local_rank);
  fields.Bool("virtual_local_rank", worker.virtual_local_rank);
  fields.Text("numa_binding", worker.numa_binding);
  fields.List("ending_signals", worker.ending_signals);
  fields.List("forwarded_signals", worker.forwarded_signals);
  fields.Text("handled_signals", worker.handled_signals);
  fields.Text("master_name", worker.master_name);
  fields.Bool("leave_children", worker.leave_children);
  fields.Bool("sets_master_port", worker.sets_master_port);
}

json OutputToJson(const OutputOptions& output) {
  return {{"redirects", output.redirects},
          {"tee", output.tee},
          {"shown_ranks", output.shown_ranks},
          {"prefix_template", Widened(output.prefix_template)},
          {"stdout_filters", Texts(output.stdout_filters)},
          {"stderr_filters", Texts(output.stderr_filters)},
          {"prefixes", static_cast<int>(output.prefixes)},
          {"errors_fail", output.errors_fail},
          {"notes_dir", Widened(output.notes_dir)},
          {"events", Widened(output.events)},
          {"attempts", output.attempts}};
}

void OutputFromJson(Fields& fields, OutputOptions& output) {
  fields.List("redirects", output.redirects);
  fields.List("tee", output.tee);
  fields.List("shown_ranks", output.shown_ranks);
  fields.Text("prefix_template", output.prefix_template);
  fields.List("stdout_filters", output.stdout_filters);
  fields.List("stderr_filters", output.stderr_filters);
  int prefixes = 0;
  fields.Integer("prefixes", prefixes);
  output.prefixes = static_cast<OutputOptions::Prefixes>(prefixes);
  fields.Bool("errors_fail", output.errors_fail);
  fields.Text("notes_dir", output.notes_dir);
  fields.Text("events", output.events);
  fields.Bool("attempts", output.attempts);
}

absl::Status Errno(std::string_view what) {
  return absl::InternalError(Cat("launch config: ", what, ": ", std::strerror(errno)));
}

}  // namespace

std::string LaunchConfigToJson(const LaunchConfig& config) {
  json out = {{"given", Texts(config.given)},
              {"executable", Widened(config.executable)},
              {"argv", Texts(config.argv)},
              {"python", config.python},
              {"job", JobToJson(config.spec)},
              {"workers", config.workers},
              {"node_name", Widened(config.node_name)},
              {"node_name_explicit", config.node_name_explicit},
              {"state_dir", Widened(config.state_dir)},
              {"log_dir", Widened(config.log_dir)},
              {"log_dir_explicit", config.log_dir_explicit},
              {"first_port", config.ports.first},
              {"last_port", config.ports.last},
              {"insecure", config.insecure},
              {"token", config.token},
              {"token_file", Widened(config.token_file)},
              {"insecure_implied", config.insecure_implied},
              {"quiet", config.quiet},
              {"local_address", Widened(config.local_address)},
              {"worker", WorkerToJson(config.worker)},
              {"output", OutputToJson(config.output)},
              {"others_command", Texts(config.others_command)},
              {"started_boottime_ns", config.started_boottime_ns},
              {"others_options", Texts(config.others_options)},
              {"others_program", Texts(config.others_program)}};
  if (config.endpoint) {
    out["endpoint_host"] = Widened(config.endpoint->host);
    out["endpoint_port"] = config.endpoint->port;
  }
  if (config.join_timeout) out["join_timeout_ns"] = config.join_timeout->count();
  return out.dump();
}

absl::StatusOr<LaunchConfig> LaunchConfigFromJson(std::string_view text) {
  json object = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  for (const char* part : {"job", "worker", "output"}) {
    if (!object.is_object() || !object.contains(part) || !object[part].is_object()) {
      return absl::InvalidArgumentError(Cat("launch config: not a JSON object with a ", part));
    }
  }
  LaunchConfig config;
  Fields fields(object);
  fields.List("given", config.given);
  fields.Text("executable", config.executable);
  fields.List("argv", config.argv);
  fields.Bool("python", config.python);
  fields.Integer("workers", config.workers);
  fields.Text("node_name", config.node_name);
  fields.Bool("node_name_explicit", config.node_name_explicit);
  fields.Text("state_dir", config.state_dir);
  fields.Text("log_dir", config.log_dir);
  fields.Bool("log_dir_explicit", config.log_dir_explicit);
  fields.Integer("first_port", config.ports.first);
  fields.Integer("last_port", config.ports.last);
  fields.Bool("insecure", config.insecure);
  fields.Text("token", config.token);
  fields.Text("token_file", config.token_file);
  fields.Bool("insecure_implied", config.insecure_implied);
  fields.Bool("quiet", config.quiet);
  fields.Text("local_address", config.local_address);
  fields.List("others_command", config.others_command);
  fields.Integer("started_boottime_ns", config.started_boottime_ns);
  fields.List("others_options", config.others_options);
  fields.List("others_program", config.others_program);
  fields.Time("join_timeout_ns", config.join_timeout);
  if (object.contains("endpoint_host")) {
    config.endpoint.emplace();
    fields.Text("endpoint_host", config.endpoint->host);
    fields.Integer("endpoint_port", config.endpoint->port);
  }
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(JobFromJson(object["job"], config.spec));
  Fields worker(object["worker"]), output(object["output"]);
  WorkerFromJson(worker, config.worker);
  OutputFromJson(output, config.output);
  RETURN_IF_ERROR(worker.status());
  RETURN_IF_ERROR(output.status());
  return config;
}

absl::StatusOr<int> WriteLaunchConfig(const LaunchConfig& config) {
  std::string text = LaunchConfigToJson(config);
  int fd = ::memfd_create("regroup-launch", MFD_ALLOW_SEALING);
  if (fd < 0) return Errno("memfd_create");
  for (std::size_t done = 0; done < text.size();) {
    ssize_t wrote = ::write(fd, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      absl::Status status = Errno("write");
      ::close(fd);
      return status;
    }
    done += static_cast<std::size_t>(wrote);
  }
  ::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return fd;
}

absl::StatusOr<LaunchConfig> ReadLaunchConfig(int fd) {
  std::string text;
  char buffer[16384];
  for (off_t offset = 0;;) {
    ssize_t got = ::pread(fd, buffer, sizeof buffer, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      absl::Status status = Errno("read");
      ::close(fd);
      return status;
    }
    if (got == 0) break;
    text.append(buffer, static_cast<std::size_t>(got));
    offset += got;
    if (text.size() > kMaxBytes) break;
  }
  ::close(fd);
  if (text.size() > kMaxBytes)
    return absl::InvalidArgumentError(Cat("launch config: more than ", kMaxBytes, " bytes"));
  return LaunchConfigFromJson(text);
}

std::int64_t BoottimeNanoseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace regroup
