#include "launcher/cli/render/completion.h"

#include <array>
#include <utility>

#include "common/config/text.h"

namespace regroup::cli {
namespace {

std::string Words(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += Cat(out.empty() ? "" : " ", word);
  return out;
}

std::vector<std::string> FlagNames(const CommandDescription& command, bool with_value_only) {
  std::vector<std::string> names;
  for (const FlagDescription& flag : command.flags) {
    if (with_value_only && !flag.needs_value()) continue;
    names.insert(names.end(), flag.names.begin(), flag.names.end());
  }
  if (!with_value_only) names.push_back("--help");
  return names;
}

// What `regroup __complete` is asked for.
std::string LiveWords(WordKind kind) {
  return kind == WordKind::kJob ? "jobs" : kind == WordKind::kNode ? "nodes" : "";
}

std::string Quoted(std::string_view text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string Bash(const std::vector<CommandDescription>& commands) {
  std::vector<std::string> names;
  std::string cases;
  for (const CommandDescription& command : commands) {
    names.push_back(command.name);
    WordKind kind = WordKindOf(command.name);
    std::string words;
    if (!LiveWords(kind).empty())
      words = Cat("$(command regroup __complete ", LiveWords(kind), " 2>/dev/null)");
    if (kind == WordKind::kShell) words = "bash zsh fish";
    if (kind == WordKind::kCommand) words = "$commands";
    bool files = kind == WordKind::kFile || kind == WordKind::kProgram;
    cases += Cat("    ", command.name, ") flags=\"", Words(FlagNames(command, false)),
                 "\"; values=\" ", Words(FlagNames(command, true)), " \"; words=\"", words,
                 "\"; files=", files ? "1" : "", " ;;\n");
  }
  return Cat(
      "# bash completion of regroup; written by `regroup completion bash`\n"
      "_regroup() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} flags='' values='' "
      "words='' files=''\n"
      "  local commands=\"",
      Words(names),
      "\"\n"
      "  COMPREPLY=()\n"
      "  if ((COMP_CWORD == 1)); then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"$commands --help\" -- \"$cur\")\n"
      "    return\n"
      "  fi\n"
      "  case ${COMP_WORDS[1]} in\n",
      cases,
      "    *) return ;;\n"
      "  esac\n"
      "  if [[ $cur == -* ]]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$cur\")\n"
      "  elif [[ $prev == -* && $values == *\" $prev \"* ]]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
      "  elif [[ -n $files ]]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
      "  else\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
      "  fi\n"
      "}\n"
      "complete -o filenames -F _regroup regroup\n");
}

std::string ZshFlags(const CommandDescription& command) {
  std::string out;
  for (const FlagDescription& flag : command.flags) {
    std::string help;
    for (char c : flag.help) help += c == '[' || c == ']' || c == ':' ? '.' : c;
    for (const std::string& name : flag.names) {
      std::string value =
          !flag.needs_value()
              ? ""
              : Cat(":", flag.placeholder.substr(0, flag.placeholder.find_first_of("[:|")),
                    ":_files");
      out += Cat(" \\\n        ", Quoted(Cat("*", name, "[", help, "]", value)));
    }
  }
  return out;
}

std::string Zsh(const std::vector<CommandDescription>& commands) {
  std::string list, cases;
  for (const CommandDescription& command : commands) {
    list += Cat("    ", Quoted(Cat(command.name, ":", command.summary)), "\n");
    WordKind kind = WordKindOf(command.name);
    std::string words = "";
    if (!LiveWords(kind).empty())
      words = Cat("'*:", LiveWords(kind), ":_regroup_live ", LiveWords(kind), "'");
    if (kind == WordKind::kShell) words = "'1:shell:(bash zsh fish)'";
    if (kind == WordKind::kCommand) words = "'1:command:_regroup_commands'";
    if (kind == WordKind::kFile) words = "'*:file:_files'";
    if (kind == WordKind::kProgram) words = "'*::program:_normal'";
    cases += Cat("    ", command.name, ")\n      _arguments -s '--help[explain this command]'",
                 ZshFlags(command), words.empty() ? "" : Cat(" \\\n        ", words), " ;;\n");
  }
  return Cat(
      "#compdef regroup\n# zsh completion of regroup; written by `regroup completion zsh`\n"
      "_regroup_live() {\n  local -a live\n  live=(${(f)\"$(command regroup __complete $1 "
      "2>/dev/null)\"})\n"
      "  compadd -a live\n}\n"
      "_regroup_commands() {\n  local -a commands\n  commands=(\n",
      list,
      "  )\n  _describe command commands\n}\n"
      "_regroup() {\n  if ((CURRENT == 2)); then\n    _regroup_commands\n    return\n  fi\n"
      "  local command=$words[2]\n  shift words\n  ((CURRENT--))\n  case $command in\n",
      cases,
      "  esac\n}\nif [ \"$funcstack[1]\" = _regroup ]; then\n  _regroup \"$@\"\nelse\n  compdef "
      "_regroup regroup\nfi\n");
}

std::string Fish(const std::vector<CommandDescription>& commands) {
  std::string out =
      "# fish completion of regroup; written by `regroup completion fish`\ncomplete -c regroup "
      "-f\n";
  for (const CommandDescription& command : commands) {
    std::string here = Cat("-n '__fish_seen_subcommand_from ", command.name, "'");
    out += Cat("complete -c regroup -n __fish_use_subcommand -a ", command.name, " -d ",
               Quoted(command.summary), "\n");
    for (const FlagDescription& flag : command.flags) {
      std::string names;
      for (const std::string& name : flag.names) {
        bool is_long = name.substr(0, 2) == "--";
        names += Cat(is_long ? " -l " : " -s ", name.substr(is_long ? 2 : 1));
      }
      out += Cat("complete -c regroup ", here, names, flag.needs_value() ? " -r -F" : "", " -d ",
                 Quoted(flag.help), "\n");
    }
    WordKind kind = WordKindOf(command.name);
    std::string words;
    if (!LiveWords(kind).empty())
      words = Cat(" -a '(regroup __complete ", LiveWords(kind), " 2>/dev/null)'");
    if (kind == WordKind::kShell) words = " -a 'bash zsh fish'";
    if (kind == WordKind::kFile || kind == WordKind::kProgram) words = " -F";
    if (!words.empty()) out += Cat("complete -c regroup ", here, words, "\n");
  }
  return out;
}

}  // namespace

WordKind WordKindOf(std::string_view command) {
  constexpr std::array<std::pair<std::string_view, WordKind>, 10> kKinds = {
      {{"run", WordKind::kProgram},
       {"submit", WordKind::kFile},
       {"ps", WordKind::kJob},
       {"wait", WordKind::kJob},
       {"logs", WordKind::kJob},
       {"explain", WordKind::kJob},
       {"cancel", WordKind::kJob},
       {"nodes", WordKind::kNode},
       {"completion", WordKind::kShell},
       {"man", WordKind::kCommand}}};
  for (const auto& [name, kind] : kKinds) {
    if (name == command) return kind;
  }
  return WordKind::kNone;
}

std::string RenderCompletion(std::string_view shell,
                             const std::vector<CommandDescription>& commands) {
  if (shell == "bash") return Bash(commands);
  return shell == "zsh" ? Zsh(commands) : Fish(commands);
}

}  // namespace regroup::cli
