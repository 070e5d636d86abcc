#include <algorithm>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/env.h"
#include "common/config/job_limits.h"
#include "common/config/state_dir.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "launcher/cli/commands/launch.h"

namespace regroup::cli {
namespace {

using Names = std::vector<std::string>;

constexpr int kStaticPort = 29'500;  // torchrun's.
constexpr char kStaticHost[] = "127.0.0.1";
constexpr Duration kTorchrunJoinTimeout = std::chrono::minutes(10);
constexpr std::size_t kHostBytes = 56;  // Of a node's name behind its rank.
constexpr char kTimeoutVariable[] = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
constexpr char kFileTimerVariable[] = "TORCHELASTIC_ENABLE_FILE_TIMER";

bool Given(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// -n TOTAL.
absl::Status SettleRanks(const Names& names, LaunchFlags& flags) {
  if (!flags.total_ranks) return absl::OkStatus();
  const NodeBounds& nodes = flags.job.nodes;
  const int total = *flags.total_ranks;
  if (nodes.min != nodes.max) {
    return BadInput(Cat("-n ", total, " needs a fixed number of nodes"),
                    Cat("--nnodes is ", FormatNnodes(nodes.min, nodes.max)),
                    "--nproc-per-node N instead of -n");
  }
  if (total % nodes.max != 0) {
    return BadInput(Cat("-n ", total, " cannot be spread over ", nodes.max, " nodes"),
                    "--nnodes has to divide it", Cat("-n ", (total / nodes.max + 1) * nodes.max));
  }
  const std::string each = std::to_string(total / nodes.max);
  if (Given(names, "--nproc-per-node") && flags.job.workers != each) {
    return BadInput(Cat("-n ", total, " and --nproc-per-node ", flags.job.workers, " differ"),
                    Cat("on ", nodes.max, " nodes it is ", each, " each"),
                    "leave --nproc-per-node out");
  }
  flags.job.workers = each;
  return absl::OkStatus();
}

absl::Status SettleGrace(Manner manner, const Names& names, LaunchFlags& flags) {
  if (flags.torch.shutdown_timeout_s) {
    if (Given(names, "--grace")) {
      return BadInput("--grace and --shutdown-timeout are the same", "both were given",
                      "leave one out");
    }
    flags.job.fields.grace = std::chrono::seconds(*flags.torch.shutdown_timeout_s);
    return absl::OkStatus();
  }
  const std::string variable = GetEnv(kTimeoutVariable).value_or("");
  if (manner != Manner::kTorchrun || Given(names, "--grace") || variable.empty())
    return absl::OkStatus();
  absl::StatusOr<std::int64_t> seconds = ParseNumber(variable, 0, 365 * 24 * 3600);
  if (!seconds.ok()) return AtField(kTimeoutVariable, seconds.status());
  flags.job.fields.grace = std::chrono::seconds(*seconds);
  return absl::OkStatus();
}

// A group of --nnodes nodes, in the order of their ranks. First ranks are given in natural order
// of names, and a node that comes back finds its place by its name.
absl::Status SettleStatic(LaunchFlags& flags, Meeting& meeting) {
  TorchFlags& torch = flags.torch;
  NodeBounds& nodes = flags.job.nodes;
  if (nodes.min != nodes.max) {
    meeting.notices.push_back(Cat("--nnodes ", FormatNnodes(nodes.min, nodes.max),
                                  " under --rdzv-backend static means ", nodes.max,
                                  " nodes, as under torchrun; c10d takes a range"));
    nodes.min = nodes.max;
  }
  const int rank = torch.node_rank.value_or(0);
  if (rank >= nodes.max) {
    return BadInput(Cat("--node-rank ", rank, " is too high"),
                    Cat("--nnodes ", nodes.max, " has the ranks 0 to ", nodes.max - 1),
                    Cat("--nnodes ", rank + 1));
  }
  if (nodes.max == 1) {
    flags.endpoint.reset();
    return absl::OkStatus();
  }
  if (!flags.endpoint) {
    std::string host = torch.master_addr.empty() ? kStaticHost : torch.master_addr;
    if (host.find(':') != std::string::npos && host.front() != '[') host = Cat("[", host, "]");
    absl::StatusOr<Endpoint> endpoint =
        ParseEndpoint(Cat(host, ":", torch.master_port.value_or(kStaticPort)));
    if (!endpoint.ok()) return AtField("--master-addr", endpoint.status());
    flags.endpoint = *endpoint;
  }
  if (flags.node_name.empty()) {
    meeting.node_name = Cat(rank, "-", HostName().substr(0, kHostBytes));
  } else if (torch.node_rank) {
    return BadInput("--node-name and --node-rank exclude each other",
                    "a node's rank comes from its name", "leave --node-name out");
  }
  return absl::OkStatus();
}

// Where torchrun has no endpoint it is localhost:0, save for a static group of its default address.
bool SaysLocalhost(bool torchrun, const LaunchFlags& flags) {
  constexpr std::string_view kName = "localhost";
  const TorchFlags& torch = flags.torch;
  if (torch.standalone) return true;
  if (flags.endpoint) return flags.endpoint->host == kName;
  if (!torch.master_addr.empty()) return torch.master_addr == kName;
  return torchrun && !torch.master_port && (torch.backend == "c10d" || flags.job.nodes.max == 1);
}

// A port that only this host knows is good for this host alone, which needs no endpoint.
absl::Status SettlePort(LaunchFlags& flags) {
  if (!flags.any_port || flags.torch.standalone) return absl::OkStatus();
  if (flags.job.nodes.max > 1) {
    return BadInput(
        Cat("--rdzv-endpoint ", flags.endpoint->host, ":0 means any port"),
        Cat("the nodes of --nnodes ", FormatNnodes(flags.job.nodes.min, flags.job.nodes.max),
            " have to know which one"),
        Cat("--rdzv-endpoint ", flags.endpoint->host, ":", kDefaultPort));
  }
  flags.endpoint.reset();
  return absl::OkStatus();
}

absl::Status SettleStandalone(LaunchFlags& flags, Meeting& meeting) {
  NodeBounds& nodes = flags.job.nodes;
  if (nodes.min > 1) {
    return BadInput(Cat("--standalone and --nnodes ", FormatNnodes(nodes.min, nodes.max),
                        " exclude each other"),
                    "a standalone run has one node", "leave --standalone out");
  }
  nodes.max = 1;
  if (flags.endpoint || !flags.rdzv_id.empty() || flags.torch.backend == "static") {
    meeting.notices.push_back(
        "--standalone: --rdzv-backend, --rdzv-endpoint and --rdzv-id are ignored");
  }
  flags.endpoint.reset();
  flags.rdzv_id.clear();
  return absl::OkStatus();
}

void SettleDynamic(Manner manner, const std::string& backend, LaunchFlags& flags,
                   Meeting& meeting) {
  const TorchFlags& torch = flags.torch;
  if (!backend.empty() &&
      (torch.node_rank.value_or(0) != 0 || !torch.master_addr.empty() || torch.master_port)) {
    meeting.notices.push_back(
        "--node-rank, --master-addr and --master-port have no effect under --rdzv-backend c10d");
  }
  if (manner == Manner::kTorchrun && flags.job.nodes.max > 1 && !flags.endpoint)
    flags.endpoint = Endpoint{.host = "localhost"};
}

}  // namespace

absl::StatusOr<Meeting> Settle(Manner manner, const std::vector<std::string>& names,
                               LaunchFlags& flags) {
  Meeting meeting;
  const TorchFlags& torch = flags.torch;
  const bool torchrun = manner == Manner::kTorchrun;
  const bool names_master = torch.node_rank || !torch.master_addr.empty() || torch.master_port;
  const bool is_static =
      !torch.standalone &&
      (torch.backend == "static" || (torch.backend.empty() && (torchrun || names_master)));
  meeting.says_localhost = SaysLocalhost(torchrun, flags);
  RETURN_IF_ERROR(SettlePort(flags));
  if (torchrun && flags.rdzv_id == "none") flags.rdzv_id.clear();  // What torchrun calls no id.
  if (torch.standalone) {
    RETURN_IF_ERROR(SettleStandalone(flags, meeting));
  } else if (is_static) {
    RETURN_IF_ERROR(SettleStatic(flags, meeting));
  } else {
    SettleDynamic(manner, torch.backend, flags, meeting);
  }
  ASSIGN_OR_RETURN(RendezvousConf conf, ParseRendezvousConf(torch.rdzv_conf, is_static));
  meeting.notices.insert(meeting.notices.end(), conf.without_effect.begin(),
                         conf.without_effect.end());
  if (GetEnv(kFileTimerVariable) == "1") {
    meeting.notices.push_back(
        Cat(kFileTimerVariable,
            "=1 has no effect: timers of torch.distributed.elastic.timer are not watched"));
  }
  if (!flags.join_timeout) flags.join_timeout = conf.join_timeout;
  if (!flags.join_timeout && torchrun && flags.endpoint) flags.join_timeout = kTorchrunJoinTimeout;
  RETURN_IF_ERROR(SettleRanks(names, flags));
  RETURN_IF_ERROR(SettleGrace(manner, names, flags));
  return meeting;
}

std::string JobNameFromId(const std::string& id) {
  std::string plain = id;
  for (char& c : plain) {
    const bool capital = c >= 'A' && c <= 'Z';
    c = capital ? static_cast<char>(c - 'A' + 'a') : c == '_' || c == '.' ? '-' : c;
  }
  const std::string name = JobNameFrom(id);
  if (name == plain) return name;
  std::uint32_t hash = 2'166'136'261u;  // FNV-1a: the same on every node.
  for (unsigned char c : id) hash = (hash ^ c) * 16'777'619u;
  std::string digits;
  for (int shift = 20; shift >= 0; shift -= 4) digits += "0123456789abcdef"[(hash >> shift) & 15];
  constexpr std::size_t kKept = 50;
  return Cat(name.substr(0, name[std::min(name.size(), kKept) - 1] == '-' ? kKept - 1 : kKept), "-",
             digits);
}

}  // namespace regroup::cli
