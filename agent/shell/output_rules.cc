#include "agent/shell/output_rules.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "absl/strings/str_cat.h"

namespace regroup::agent {
namespace {

constexpr char kTorchrunPrefix[] = "[${role_name}${local_rank}]:";

int BitsOf(const std::vector<int>& choice, int local_rank) {
  const auto at = static_cast<std::size_t>(local_rank);
  return at < choice.size() ? choice[at] : 0;
}

bool IsNameCharacter(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

}  // namespace

std::string RenderPrefix(const std::string& prefix, const std::string& role,
                         const OutputOf& output) {
  const std::array<std::pair<std::string, std::string>, 4> known = {
      {{"role_name", role},
       {"rank", absl::StrCat(output.rank)},
       {"local_rank", absl::StrCat(output.local_rank)},
       {"hostname", output.host}}};
  std::string text;
  for (std::size_t i = 0; i < prefix.size(); ++i) {
    const bool braces = prefix.compare(i, 2, "${") == 0;
    std::size_t from = i + (braces ? 2 : 1), to = from;
    while (to < prefix.size() && IsNameCharacter(prefix[to])) ++to;
    const std::string name = prefix.substr(std::min(from, prefix.size()), to - from);
    const auto found =
        std::find_if(known.begin(), known.end(), [&](const auto& k) { return k.first == name; });
    const bool closed = !braces || (to < prefix.size() && prefix[to] == '}');
    if (prefix[i] == '$' && found != known.end() && closed) {
      text += found->second;
      i = braces ? to : to - 1;
    } else if (prefix.compare(i, 2, "$$") == 0) {
      text += '$';
      ++i;
    } else {
      text += prefix[i];
    }
  }
  return text;
}

Relay::Rules RulesFor(const LaunchConfig& launch, const OutputOf& output) {
  const OutputOptions& options = launch.output;
  const std::string attempt = absl::StrCat(launch.log_dir, "/", output.job, "_", output.node,
                                           "/attempt_", output.generation - 1);
  const std::string folder =
      options.attempts ? attempt
                       : absl::StrCat(launch.log_dir, "/", output.job, "/", output.generation);
  const bool rank_shown =
      options.shown_ranks.empty() ||
      std::count(options.shown_ranks.begin(), options.shown_ranks.end(), output.local_rank) > 0;
  auto rule = [&](int bit, const std::vector<std::string>& filters, const std::string& file) {
    Relay::Rule rule;
    const bool tee = (BitsOf(options.tee, output.local_rank) & bit) != 0;
    const bool redirected = (BitsOf(options.redirects, output.local_rank) & bit) != 0;
    rule.shown = rank_shown && (tee || !redirected);
    const std::string& chosen = options.prefix_template;
    const std::string torchruns =
        RenderPrefix(chosen.empty() ? kTorchrunPrefix : chosen, launch.worker.role, output);
    rule.raw = !tee && launch.workers == 1;
    if (tee && options.prefixes != OutputOptions::Prefixes::kNone) {
      rule.prefix = torchruns;
    } else if (!rule.raw && options.prefixes == OutputOptions::Prefixes::kAll) {
      rule.prefix =
          chosen.empty() ? absl::StrCat("[", output.node, ":", output.rank, "] ") : torchruns;
    }
    rule.filters = filters;
    rule.filtered_prefix = torchruns;
    if (!filters.empty()) rule.filtered_file = absl::StrCat(folder, "/", file);
    return rule;
  };
  Relay::Rules rules;
  rules.generation = output.generation;
  rules.out = rule(OutputOptions::kStdout, options.stdout_filters, "filtered_stdout.log");
  rules.err = rule(OutputOptions::kStderr, options.stderr_filters, "filtered_stderr.log");
  const std::string& prefix = rules.err.prefix.empty() ? rules.out.prefix : rules.err.prefix;
  rules.label = prefix.empty() ? absl::StrCat("rank ", output.rank, " ") : prefix;
  if (options.attempts) {
    rules.link = absl::StrCat(attempt, "/", output.local_rank);
    rules.link_target =
        absl::StrCat("../../", output.job, "/", output.generation, "/", output.rank);
  }
  return rules;
}

}  // namespace regroup::agent
