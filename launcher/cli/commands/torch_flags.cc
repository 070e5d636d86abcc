#include "launcher/cli/commands/torch_flags.h"

#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <optional>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/env.h"
#include "common/config/flags.h"
#include "common/config/hardware.h"
#include "common/config/job_limits.h"
#include "common/config/text.h"
#include "common/config/values.h"

namespace regroup::cli {
namespace {

absl::Status ParseBackend(std::string_view text, std::string& backend) {
  if (text != "c10d" && text != "static") {
    return BadInput(Cat(ShellQuote(text), " is not served"),
                    "the coordinator is the rendezvous, it takes the place of etcd and of plug-ins",
                    "c10d");
  }
  backend = std::string(text);
  return absl::OkStatus();
}

absl::Status ParseOneOf(std::string_view text, const std::vector<std::string>& known,
                        std::string& value) {
  if (std::find(known.begin(), known.end(), text) != known.end()) {
    value = std::string(text);
    return absl::OkStatus();
  }
  std::string list;
  for (const std::string& word : known) list += Cat(list.empty() ? "" : ", ", word);
  const std::string nearest = DidYouMean(text, known);
  return BadInput(Cat(ShellQuote(text), " is not known"), Cat(list, " are"),
                  nearest.empty() ? known.front() : nearest);
}

struct NamedSignal {
  std::string_view name;
  int number;
  bool ends;  // A launch command leaves its job on it.
};
constexpr std::array<NamedSignal, 14> kSignals = {{{"SIGTERM", SIGTERM, true},
                                                   {"SIGINT", SIGINT, true},
                                                   {"SIGHUP", SIGHUP, true},
                                                   {"SIGQUIT", SIGQUIT, true},
                                                   {"SIGUSR1", SIGUSR1, false},
                                                   {"SIGUSR2", SIGUSR2, false},
                                                   {"SIGCONT", SIGCONT, false},
                                                   {"SIGWINCH", SIGWINCH, false},
                                                   {"SIGALRM", SIGALRM, false},
                                                   {"SIGURG", SIGURG, false},
                                                   {"SIGIO", SIGIO, false},
                                                   {"SIGPWR", SIGPWR, false},
                                                   {"SIGXCPU", SIGXCPU, false},
                                                   {"SIGVTALRM", SIGVTALRM, false}}};

absl::Status ParseSignals(std::string_view text, TorchFlags& flags) {
  flags.ending_signals.emplace();
  flags.forwarded_signals.emplace();
  flags.signal_names.clear();
  for (const std::string& word : Split(text, ',')) {
    std::string name = Stripped(word);
    if (name.empty()) continue;
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    if (name.rfind("SIG", 0) != 0) name.insert(0, "SIG");
    auto found = std::find_if(kSignals.begin(), kSignals.end(),
                              [&](const NamedSignal& s) { return s.name == name; });
    if (found == kSignals.end()) {
      return BadInput(
          Cat(ShellQuote(word), " cannot be handled"),
          "SIGTERM SIGINT SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGCONT SIGWINCH SIGALRM SIGURG "
          "SIGIO SIGPWR SIGXCPU SIGVTALRM can",
          "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
    }
    (found->ends ? *flags.ending_signals : *flags.forwarded_signals).push_back(found->number);
    flags.signal_names += Cat(flags.signal_names.empty() ? "" : ",", name);
  }
  return absl::OkStatus();
}

absl::Status ParseRanks(std::string_view text, std::vector<int>& ranks) {
  ranks.clear();
  for (const std::string& word : Split(text, ',')) {
    ASSIGN_OR_RETURN(std::int64_t rank,
                     ParseNumber(Stripped(word), 0, limits::kWorkersPerNode - 1));
    ranks.push_back(static_cast<int>(rank));
  }
  return absl::OkStatus();
}

absl::Status ParseSeconds(std::string_view text) {
  std::string copy(text);
  char* end = nullptr;
  const double seconds = std::strtod(copy.c_str(), &end);
  if (*end == '\0' && end != copy.c_str() && seconds >= 0) return absl::OkStatus();
  return BadInput(Cat(ShellQuote(text), " is not a number of seconds"), "0 or more is needed",
                  "0.1");
}

// Every way of describing a flag that only has to be understood.
void AddIgnored(CLI::App& app, std::string_view names, std::string_view placeholder,
                std::string_view default_text, std::string_view help,
                std::function<absl::Status(std::string_view)> parse) {
  AddParsed(app, names, placeholder, default_text, Cat("no effect: ", help), std::move(parse));
}

void DescribeMeeting(CLI::App& app, TorchFlags& flags) {
  AddSwitch(
      app, "--standalone", flags.standalone,
      "one node that meets nobody: --rdzv-backend, --rdzv-endpoint and --rdzv-id are ignored");
  AddParsed(app, "--rdzv-backend", "BACKEND", "",
            "c10d: nodes come and go; static: --nnodes nodes in the order of --node-rank; the "
            "coordinator serves both",
            [&flags](std::string_view text) { return ParseBackend(text, flags.backend); });
  AddText(app, "--rdzv-conf", flags.rdzv_conf,
          "join_timeout (c10d) or timeout (static) in seconds; the others have no effect",
          "KEY=VALUE,...");
  AddInt(app, "--node-rank", flags.node_rank, 0, limits::kNodes - 1,
         "this node's place among those of a static group");
  AddText(app, "--master-addr", flags.master_addr,
          "host where a static group meets, without --rdzv-endpoint", "HOST");
  AddInt(app, "--master-port", flags.master_port, 1, 65'535,
         "its port; none: 29500, as torchrun has it");
  AddText(app, "--local-addr", flags.local_addr,
          "address of this node that the others are told; none: the one that it reaches the "
          "coordinator from",
          "HOST");
}

void DescribeOutput(CLI::App& app, TorchFlags& flags) {
  auto add = [&app](std::string_view names, StreamChoice& choice, std::string_view help) {
    AddParsed(app, names, "STREAMS", "", help, [&choice](std::string_view text) {
      ASSIGN_OR_RETURN(choice, ParseStreamChoice(text));
      return absl::OkStatus();
    });
  };
  add("-r,--redirects", flags.redirects,
      "streams that are kept but not shown: 0 none, 1 stdout, 2 stderr, 3 both, or 0:3,1:1 by "
      "local rank");
  add("-t,--tee", flags.tee,
      "streams that are kept and shown behind torchrun's prefix; everything is kept and shown in "
      "any case");
  AddSwitch(app, "--no-prefix", flags.no_prefix,
            "show lines as workers wrote them; regroup-torchrun does so without --tee");
  AddParsed(app, "--stdout-errors", "ACTION", "tell",
            "when stdout or stderr of this command cannot be written (disk full, reader gone): "
            "tell, and the job goes on; fail, and this node leaves it with exit code 1",
            [&flags](std::string_view text) {
              std::string chosen;
              RETURN_IF_ERROR(ParseOneOf(text, {"tell", "fail"}, chosen));
              flags.output_errors_fail = chosen == "fail";
              return absl::OkStatus();
            });
  AddParsed(app, "--local-ranks-filter", "RANKS", "",
            "show only these local ranks; logs have all of them",
            [&flags](std::string_view text) { return ParseRanks(text, flags.local_ranks); });
  auto filters = [&app](std::string_view name, std::vector<std::string>& texts,
                        std::string_view stream) {
    AddParsed(app, name, "TEXTS", "",
              Cat("also keep lines of ", stream, " with one of these texts in filtered_", stream,
                  ".log beside the logs; ,, is a comma"),
              [&texts](std::string_view text) {
                texts = SplitFilters(text);
                return absl::OkStatus();
              });
  };
  filters("--duplicate-stdout-filters", flags.stdout_filters, "stdout");
  filters("--duplicate-stderr-filters", flags.stderr_filters, "stderr");
  AddText(app, "--log-line-prefix-template", flags.prefix_template,
          "prefix of lines, with ${role_name} ${rank} ${local_rank} ${hostname}; none: "
          "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
          "TEXT");
  AddParsed(app, "--logs-specs", "NAME", "", "only default: there are no plug-ins for logs",
            [](std::string_view text) {
              if (text == "default") return absl::OkStatus();
              return BadInput(
                  Cat("there is no plug-in ", ShellQuote(text)),
                  "logs are always kept: --log-dir, --redirects and --tee say where and what is "
                  "shown",
                  "regroup logs --help");
            });
}

}  // namespace

bool StreamChoice::any() const {
  return all.value_or(0) != 0 ||
         std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.second != 0; });
}

std::vector<int> StreamChoice::For(int workers) const {
  if (!any()) return {};
  std::vector<int> bits(static_cast<std::size_t>(workers), all.value_or(0));
  for (const auto& [rank, choice] : ranks) {
    if (rank < workers) bits[static_cast<std::size_t>(rank)] = choice;
  }
  return bits;
}

absl::StatusOr<StreamChoice> ParseStreamChoice(std::string_view text) {
  StreamChoice choice;
  for (const std::string& part : Split(text, ',')) {
    const std::size_t colon = part.find(':');
    const std::string value = colon == std::string::npos ? part : part.substr(colon + 1);
    absl::StatusOr<std::int64_t> bits = ParseNumber(value, 0, 3);
    absl::StatusOr<std::int64_t> rank = 0;
    if (colon != std::string::npos)
      rank = ParseNumber(part.substr(0, colon), 0, limits::kWorkersPerNode - 1);
    const bool alone = colon == std::string::npos && part != text;
    if (!bits.ok() || !rank.ok() || alone) {
      return BadInput(Cat(ShellQuote(text), " names no streams"),
                      "0 none, 1 stdout, 2 stderr, 3 both; for all, or as LOCAL_RANK:STREAMS,...",
                      "3");
    }
    if (colon == std::string::npos) {
      choice.all = static_cast<int>(*bits);
    } else {
      choice.ranks.emplace_back(static_cast<int>(*rank), static_cast<int>(*bits));
    }
  }
  return choice;
}

std::vector<std::string> SplitFilters(std::string_view text) {
  std::vector<std::string> filters(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      filters.back() += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == ',') {
      filters.back() += text[++i];
    } else {
      filters.emplace_back();
    }
  }
  std::erase(filters, "");
  return filters;
}

void DescribeFlags(CLI::App& app, TorchFlags& flags) {
  DescribeMeeting(app, flags);
  AddIgnored(app, "--monitor-interval", "SECONDS", "0.1",
             "exits of workers are events, nothing is polled", ParseSeconds);
  AddIgnored(app, "--start-method", "METHOD", "spawn",
             "workers are programs of their own; spawn, fork and forkserver are accepted",
             [](std::string_view text) {
               std::string ignored;
               return ParseOneOf(text, {"spawn", "fork", "forkserver"}, ignored);
             });
  AddParsed(
      app, "--event-log-handler", "NAME", "null",
      "console: events of this node go to standard error as JSON, as PyTorch writes them; the "
      "coordinator keeps all: regroup explain",
      [&flags](std::string_view text) {
        return ParseOneOf(text, {"null", "console", "dynamic_rendezvous"}, flags.event_handler);
      });
  AddText(app, "--role", flags.role, "ROLE_NAME of every worker, the same on all nodes", "NAME");
  AddSwitch(app, "--run-path", flags.run_path,
            "PROGRAM is a Python file, run by runpy.run_path; before --no-python");
  DescribeOutput(app, flags);
  AddParsed(app, "--numa-binding", "HOW", "",
            "bind each worker to CPUs near the GPU of its local rank: node, socket, exclusive, "
            "core-complex",
            [&flags](std::string_view text) {
              return ParseOneOf(text, NumaBindings(), flags.numa_binding);
            });
  AddParsed(app, "--signals-to-handle", "SIGNALS", "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
            "any of these four makes this node leave its job, others are passed on to workers and "
            "end nothing; what is not named kills this command, and its workers are ended. Without "
            "this flag SIGUSR1 and SIGUSR2 are passed on",
            [&flags](std::string_view text) { return ParseSignals(text, flags); });
  AddInt(app, "--shutdown-timeout", flags.shutdown_timeout_s, 0, 365 * 24 * 3600,
         "the same as --grace, in seconds", "SECONDS");
  AddSwitch(app, "--virtual-local-rank", flags.virtual_local_rank,
            "LOCAL_RANK is 0 for every worker, which sees its own device only");
  AddParsed(app, "--print-completion", "SHELL", "",
            "print the completion script of bash, zsh or tcsh, and end",
            [&flags](std::string_view text) {
              return ParseOneOf(text, {"bash", "zsh", "tcsh"}, flags.print_completion);
            });
}

const std::vector<TorchrunOption>& TorchrunOptions() {
  static const std::vector<TorchrunOption> kOptions = {{"nnodes", true},
                                                       {"nproc-per-node", true},
                                                       {"rdzv-backend", true},
                                                       {"rdzv-endpoint", true},
                                                       {"rdzv-id", true},
                                                       {"rdzv-conf", true},
                                                       {"standalone", true},
                                                       {"max-restarts", true},
                                                       {"monitor-interval", true},
                                                       {"start-method", true},
                                                       {"event-log-handler", true},
                                                       {"role", true},
                                                       {"module", true},
                                                       {"no-python", true},
                                                       {"run-path", true},
                                                       {"log-dir", true},
                                                       {"redirects", true},
                                                       {"tee", true},
                                                       {"log-line-prefix-template", true},
                                                       {"local-ranks-filter", true},
                                                       {"duplicate-stdout-filters", true},
                                                       {"duplicate-stderr-filters", true},
                                                       {"node-rank", true},
                                                       {"master-addr", true},
                                                       {"master-port", true},
                                                       {"local-addr", true},
                                                       {"logs-specs", false},
                                                       {"numa-binding", false},
                                                       {"signals-to-handle", true},
                                                       {"shutdown-timeout", true},
                                                       {"virtual-local-rank", true},
                                                       {"print-completion", false}};
  return kOptions;
}

absl::StatusOr<RendezvousConf> ParseRendezvousConf(std::string_view text, bool is_static) {
  struct Known {
    std::string_view key, why;
  };
  static constexpr std::array<Known, 9> kIgnored = {
      {{"last_call_timeout", "a late node joins whenever it comes: --scale-up"},
       {"close_timeout", "a job is never closed to nodes"},
       {"heartbeat_timeout", "the coordinator's lease decides"},
       {"keep_alive_interval", "the coordinator's lease decides"},
       {"keep_alive_max_attempt", "the coordinator's lease decides"},
       {"read_timeout", "a coordinator that is away is waited for"},
       {"is_host", "the host is where the endpoint's address is"},
       {"use_libuv", "the store is Regroup's own"},
       {"rank", "it is --node-rank"}}};
  RendezvousConf conf;
  if (Stripped(text).empty()) return conf;
  for (const std::string& pair : Split(text, ',')) {
    const std::size_t equals = pair.find('=');
    const std::string key = Stripped(pair.substr(0, equals));
    const std::string value =
        equals == std::string::npos ? std::string() : Stripped(pair.substr(equals + 1));
    if (key.empty() || value.empty()) {
      return BadInput(Cat("--rdzv-conf: ", ShellQuote(pair), " is not KEY=VALUE"),
                      key.empty() ? "a key is missing" : "a value is missing",
                      "--rdzv-conf join_timeout=900,...");
    }
    if (key == (is_static ? "timeout" : "join_timeout")) {
      absl::StatusOr<std::int64_t> seconds = ParseNumber(value, 1, 365 * 24 * 3600);
      if (!seconds.ok()) return AtField(Cat("--rdzv-conf ", key), seconds.status());
      conf.join_timeout = std::chrono::seconds(*seconds);
      continue;
    }
    if (key == "store_type" && value != "tcp") {
      return BadInput(Cat("--rdzv-conf: store_type=", value, " is not served"),
                      "nodes meet at a coordinator, by TCP", "leave store_type out");
    }
    if (key == "store_type") continue;
    auto known = std::find_if(kIgnored.begin(), kIgnored.end(),
                              [&](const Known& k) { return k.key == key; });
    std::string why(known != kIgnored.end() ? known->why
                    : key == "timeout"      ? "its name here is join_timeout"
                    : key == "join_timeout" ? "its name under static is timeout"
                                            : "it is not known");
    conf.without_effect.push_back(Cat("--rdzv-conf ", key, " has no effect: ", why));
  }
  return conf;
}

absl::StatusOr<std::string> ResolveLocalAddress(const std::string& text) {
  std::string name = text;
  if (name.size() > 2 && name.front() == '[' && name.back() == ']')
    name = name.substr(1, name.size() - 2);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error = ::getaddrinfo(name.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return BadInput(Cat("--local-addr: ", ShellQuote(text), " has no address"),
                    ::gai_strerror(error), "ip -brief address");
  }
  std::string literal;
  for (const addrinfo* at = found; at != nullptr && literal.empty(); at = at->ai_next) {
    const int fd = ::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char host[NI_MAXHOST] = {};
    if (fd >= 0 && ::bind(fd, at->ai_addr, at->ai_addrlen) == 0 &&
        ::getnameinfo(at->ai_addr, at->ai_addrlen, host, sizeof host, nullptr, 0, NI_NUMERICHOST) ==
            0)
      literal = host;
    if (fd >= 0) ::close(fd);
  }
  ::freeaddrinfo(found);
  if (!literal.empty()) return literal;
  return BadInput(Cat("--local-addr: ", ShellQuote(text), " is not an address of this host"),
                  "no interface here has it", "ip -brief address");
}

absl::Status Apply(const TorchFlags& flags, int workers, LaunchConfig& config) {
  RETURN_IF_ERROR(ValidateRole("--role", flags.role));
  config.worker.role = config.spec.role = flags.role;
  config.worker.virtual_local_rank = flags.virtual_local_rank;
  config.worker.numa_binding = flags.numa_binding;
  if (flags.ending_signals) config.worker.ending_signals = *flags.ending_signals;
  if (flags.forwarded_signals) config.worker.forwarded_signals = *flags.forwarded_signals;
  config.worker.handled_signals = flags.signal_names;
  if (flags.event_handler == "console")
    config.output.events = flags.backend.empty() || flags.standalone ? "c10d" : flags.backend;
  config.output.redirects = flags.redirects.For(workers);
  config.output.tee = flags.tee.For(workers);
  config.output.shown_ranks = flags.local_ranks;
  if (flags.no_prefix) config.output.prefixes = OutputOptions::Prefixes::kNone;
  config.output.errors_fail = flags.output_errors_fail;
  config.output.stdout_filters = flags.stdout_filters;
  config.output.stderr_filters = flags.stderr_filters;
  config.output.prefix_template = flags.prefix_template.empty()
                                      ? GetEnv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or("")
                                      : flags.prefix_template;
  if (!flags.local_addr.empty()) {
    ASSIGN_OR_RETURN(config.local_address, ResolveLocalAddress(flags.local_addr));
  }
  if (!flags.virtual_local_rank) return absl::OkStatus();
  if (const std::optional<VisibleDevices> few = TooFewDevices(workers, AllEnv())) {
    return BadInput(Cat("--virtual-local-rank: ", workers, " workers need ", workers, " devices"),
                    Cat(few->variable, "=", few->value, " names ", few->devices.size()),
                    Cat("--nproc-per-node ", few->devices.size()));
  }
  return absl::OkStatus();
}

}  // namespace regroup::cli
