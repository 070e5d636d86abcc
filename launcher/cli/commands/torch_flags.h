#pragma once

// torchrun's options beyond those that `regroup run` has of its own: declared for `regroup run` and
// `regroup-torchrun` alike. Each means what it means under torchrun, or is refused with what to use
// instead.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "common/config/launch_config.h"

namespace CLI {
class App;
}

namespace regroup::cli {

// --redirects, --tee: the same for all local ranks, or one by one.
struct StreamChoice {
  std::optional<int> all;  // Bits of OutputOptions.
  std::vector<std::pair<int, int>> ranks;
  bool any() const;
  std::vector<int> For(int workers) const;  // One per local rank; empty when nothing was chosen.
};
// "3", "0:3,1:1".
absl::StatusOr<StreamChoice> ParseStreamChoice(std::string_view text);

// "a,b,,c" is {"a", "b,c"}.
std::vector<std::string> SplitFilters(std::string_view text);

struct TorchFlags {
  bool standalone = false;
  std::string backend;  // c10d, static; empty: not given.
  std::string rdzv_conf;
  std::optional<int> node_rank, master_port;
  std::string master_addr;
  std::string local_addr;
  std::string role = "default";
  bool run_path = false;
  StreamChoice redirects, tee;
  std::vector<int> local_ranks;
  std::vector<std::string> stdout_filters, stderr_filters;
  std::string prefix_template;
  bool no_prefix = false, output_errors_fail = false;  // Ours.
  // --signals-to-handle: those that end a launch command, and those that it passes on. Unset: all
  // of the first, SIGUSR1 and SIGUSR2 of the second.
  std::optional<std::vector<int>> ending_signals, forwarded_signals;
  std::string signal_names;
  std::optional<int> shutdown_timeout_s;
  std::string event_handler;
  std::string numa_binding;
  bool virtual_local_rank = false;
  std::string print_completion;  // bash, zsh, tcsh.
};
void DescribeFlags(CLI::App& app, TorchFlags& flags);

// The long names of all that torchrun 2.15 knows, without dashes; `environment`: it looks for
// PET_NAME.
struct TorchrunOption {
  std::string_view name;
  bool environment;
};
const std::vector<TorchrunOption>& TorchrunOptions();

// What --rdzv-conf means here.
struct RendezvousConf {
  std::optional<Duration> join_timeout;
  std::vector<std::string> without_effect;  // Sentences, each about one key.
};
absl::StatusOr<RendezvousConf> ParseRendezvousConf(std::string_view text, bool is_static);

// An IP literal of this host; the error names the flag. Looks the name up.
absl::StatusOr<std::string> ResolveLocalAddress(const std::string& text);

// What workers and their output get. `workers`: local ranks.
absl::Status Apply(const TorchFlags& flags, int workers, LaunchConfig& config);

}  // namespace regroup::cli
