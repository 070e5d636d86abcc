#pragma once

// A command of `regroup`: flags declared in its constructor, carried out by Run. Knows no exit():
// it returns its code.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/flags.h"
#include "common/report/text_style.h"

namespace regroup::cli {

// CLI.md, Exit codes. A worker's own code goes through.
enum ExitCode : int {
  kDone = 0,
  kNo = 1,
  kUsage = 2,
  kTimeout = 124,
  kUnreachable = 125,  // And, for `run`, `submit --wait` and `wait`: Regroup itself.
  kNotExecutableCode = 126,
  kNotFoundCode = 127,
};

// Standard output and error, each as its reader wants it.
class Terminal {
 public:
  Terminal();
  const TextStyle& out() const { return out_; }
  const TextStyle& err() const { return err_; }
  // Whole, or an error (disk full, closed): standard output is the product of a command.
  absl::Status Print(std::string_view text) const;
  void Say(std::string_view text) const;  // To standard error, as well as it goes.

 private:
  TextStyle out_, err_;
};

class Command {
 public:
  virtual ~Command() = default;

  CommandLine& line() { return line_; }
  // The words that follow flags are a program with its own flags.
  virtual bool program_follows() const { return false; }
  // Another program reads its words, --help among them: they are not parsed, and Run gets them all
  // as `rest`. Flags are declared for completion and the manual only.
  virtual bool hands_words_on() const { return false; }
  virtual std::vector<std::pair<std::string, std::string>> hints() const { return {}; }
  virtual ParseRules rules() const { return {}; }
  // Its codes are those of the first column of the table. Asked after Parse, also when that failed.
  virtual bool speaks_for_job() const { return false; }
  // An error is rendered by the caller; ExitCodeOf gives its code.
  virtual absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) = 0;
  // Unset: signals have their default effect. Else it is called on a thread of its own at the first
  // SIGINT, SIGTERM or SIGHUP, says what is to be said, and the process ends with the code it
  // returns.
  virtual std::function<int(int signal)> on_signal(const Terminal&) { return nullptr; }

 protected:
  explicit Command(CommandDescription description) : line_(std::move(description)) {}

 private:
  CommandLine line_;
};

struct CommandEntry {
  std::string_view name;
  std::unique_ptr<Command> (*make)();
  bool hidden = false;
};
// In the order of help.
std::span<const CommandEntry> AllCommands();

// The description of `regroup` itself.
CommandDescription DescribeProgram();

// error: / because: / try: on standard error.
void TellError(const absl::Status& error, const Terminal& terminal);
int ExitCodeOf(const absl::Status& status, bool speaks_for_job);

// What `regroup ARGS…` does: finds the command, parses, runs, renders its error. `watch` is told a
// command's signal handler before it runs; main does what no library should (threads, _exit).
int Dispatch(const std::vector<std::string>& args,
             const std::function<void(std::function<int(int)>)>& watch);

// "usage: …" on one line, as errors say it.
std::string UsageLine(const CommandDescription& description);

// At most `most` words, at least `least`; the error shows the usage.
absl::Status CheckWords(Command& command, const ParsedLine& words, std::size_t least,
                        std::size_t most);

}  // namespace regroup::cli
