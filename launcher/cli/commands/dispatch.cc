#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/command.h"

namespace regroup::cli {
namespace {

using Words = std::vector<std::string>;

absl::Status WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0)
      return absl::InternalError(Cat("cannot write to standard output: ", std::strerror(errno)));
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return absl::OkStatus();
}

bool IsFile(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

// A program in place of a command, or a flag of `run`: then `run` is what is missing.
bool IsForRun(const std::string& word) {
  const auto ends_with = [&word](std::string_view end) {
    return word.size() > end.size() && word.substr(word.size() - end.size()) == end;
  };
  if (word.substr(0, 1) != "-")
    return ends_with(".py") || word.find('/') != std::string::npos || IsFile(word);
  const std::string name = word.substr(0, word.find('='));
  const std::unique_ptr<Command> run = MakeRun();
  for (const FlagDescription& flag : run->line().Describe().flags) {
    if (std::find(flag.names.begin(), flag.names.end(), name) != flag.names.end()) return true;
  }
  return false;
}

int UnknownCommand(const Words& args, const Terminal& terminal) {
  const std::string& word = args[0];
  if (IsForRun(word)) {
    const bool flag = word[0] == '-';
    TellError(UserError(absl::StatusCode::kInvalidArgument,
                        Cat(flag ? "unknown flag " : "unknown command ", ShellQuote(word)),
                        flag ? "it is one of regroup run"
                             : Cat(ShellQuote(word), " looks like a program"),
                        Cat("regroup run ", ShellJoin(args))),
              terminal);
    return kUsage;
  }
  std::vector<std::string> names;
  for (const CommandEntry& entry : AllCommands()) {
    if (!entry.hidden) names.emplace_back(entry.name);
  }
  std::string nearest = DidYouMean(word, names);
  bool flag = word.substr(0, 1) == "-";
  TellError(UserError(absl::StatusCode::kInvalidArgument,
                      Cat(flag ? "unknown flag " : "unknown command ", ShellQuote(word)),
                      nearest.empty() ? "regroup has no such command"
                                      : Cat("did you mean ", nearest, "?"),
                      nearest.empty() ? "regroup --help" : Cat("regroup ", nearest, " --help")),
            terminal);
  return kUsage;
}

std::string ProgramHelp() {
  std::string text = RenderHelp(DescribeProgram()), list = "commands:\n";
  for (const CommandEntry& entry : AllCommands()) {
    if (entry.hidden) continue;
    std::string name = Cat("  ", entry.name);
    name.resize(14, ' ');
    list += Cat(name, entry.make()->line().Describe().summary, "\n");
  }
  std::size_t at = text.find("example:");
  return Cat(text.substr(0, at), list, "\n", text.substr(at));
}

// What was misused may not know whose flag or field it is: the command's help does.
absl::Status WithHelp(const absl::Status& error, std::string_view command) {
  const UserErrorParts parts = PartsOf(error);
  if (error.code() != absl::StatusCode::kInvalidArgument || !parts.try_this.empty()) return error;
  return UserError(error.code(), parts.what, parts.because, Cat("regroup ", command, " --help"));
}

int Ended(const absl::StatusOr<int>& result, Command& command, const Terminal& terminal) {
  if (result.ok()) return *result;
  TellError(WithHelp(result.status(), command.line().Describe().name), terminal);
  return ExitCodeOf(result.status(), command.speaks_for_job());
}

}  // namespace

Terminal::Terminal() : out_(StyleOf(STDOUT_FILENO)), err_(StyleOf(STDERR_FILENO)) {}
absl::Status Terminal::Print(std::string_view text) const { return WriteAll(STDOUT_FILENO, text); }
void Terminal::Say(std::string_view text) const { WriteAll(STDERR_FILENO, text).IgnoreError(); }

void TellError(const absl::Status& error, const Terminal& terminal) {
  UserErrorParts parts = PartsOf(error);
  for (std::string* part : {&parts.what, &parts.because, &parts.try_this})
    *part = EscapeControls(*part);
  std::string text =
      RenderUserError(UserError(error.code(), parts.what, parts.because, parts.try_this));
  constexpr std::string_view kLabel = "error:";
  terminal.Say(ForCharset(terminal.err(), Cat(Painted(terminal.err(), Tone::kBad, kLabel),
                                              text.substr(kLabel.size()))));
}

int ExitCodeOf(const absl::Status& status, bool speaks_for_job) {
  switch (status.code()) {
    case absl::StatusCode::kOk: return kDone;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kPermissionDenied: return kUnreachable;
    case absl::StatusCode::kDeadlineExceeded: return kTimeout;
    case absl::StatusCode::kInvalidArgument: return speaks_for_job ? kUnreachable : kUsage;
    default: return speaks_for_job ? kUnreachable : kNo;
  }
}

std::string UsageLine(const CommandDescription& description) {
  const std::vector<std::string> words =
      absl::StrSplit(description.usage, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  return Cat("usage: ", absl::StrJoin(words, " "));
}

absl::Status CheckWords(Command& command, const ParsedLine& words, std::size_t least,
                        std::size_t most) {
  if (words.rest.size() >= least && words.rest.size() <= most) return absl::OkStatus();
  CommandDescription description = command.line().Describe();
  const std::string usage = UsageLine(description), name = description.name;
  if (words.rest.size() > most) {
    return UserError(absl::StatusCode::kInvalidArgument,
                     Cat("too many words: ", ShellQuote(words.rest[most])), usage,
                     Cat("regroup ", name, " --help"));
  }
  const bool a_job = !description.positionals.empty() && description.positionals[0].first == "JOB";
  if (!a_job) {
    return UserError(absl::StatusCode::kInvalidArgument, Cat("regroup ", name, " needs more words"),
                     usage, Cat("regroup ", name, " --help"));
  }
  // What looks at the youngest job does no harm; what ends one should be meant.
  return UserError(absl::StatusCode::kInvalidArgument, Cat("regroup ", name, " needs a job"), usage,
                   name == "cancel" ? "regroup ps" : Cat("regroup ", name, " last"));
}

int Dispatch(const std::vector<std::string>& args,
             const std::function<void(std::function<int(int)>)>& watch) {
  Terminal terminal;
  bool asks_help = args.empty() || args[0] == "--help" || args[0] == "-h" || args[0] == "help";
  if (asks_help && args.size() < 2) {
    if (!terminal.Print(ProgramHelp()).ok()) return kNo;
    return args.empty() ? kUsage : kDone;
  }
  std::string name = asks_help ? args[1] : args[0];
  if (name == "--version" || name == "-V") name = "version";
  auto entries = AllCommands();
  auto entry = std::find_if(entries.begin(), entries.end(),
                            [&](const CommandEntry& e) { return e.name == name; });
  if (entry == entries.end()) return UnknownCommand(asks_help ? Words{name} : args, terminal);
  std::unique_ptr<Command> command = entry->make();
  std::vector<std::string> words(args.begin() + 1, args.end());
  if (asks_help) words = {"--help"};
  if (command->hands_words_on()) {
    ParsedLine all;
    all.rest = words;
    return Ended(command->Run(all, terminal), *command, terminal);
  }
  absl::StatusOr<ParsedLine> line =
      command->line().Parse(words, command->program_follows(), command->hints(), command->rules());
  if (!line.ok()) return Ended(line.status(), *command, terminal);
  if (line->help) {
    absl::Status printed = terminal.Print(RenderHelp(command->line().Describe()));
    if (printed.ok()) return kDone;
    TellError(printed, terminal);
    return ExitCodeOf(printed, false);
  }
  if (auto handler = command->on_signal(terminal)) watch(std::move(handler));
  return Ended(command->Run(*line, terminal), *command, terminal);
}

}  // namespace regroup::cli
