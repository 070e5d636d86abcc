#pragma once

// Flags, declared once: parser, --help, environment name, man page and completion read the same
// declaration (STYLE 6). Only flags.cc includes CLI11, so that declaring a flag costs no compile
// time.
//
// Every flag --some-name is also REGROUP_SOME_NAME; a boolean one takes 1/true/yes/on and
// 0/false/no/off there. The command line beats the environment. Underscores in flag names are read
// as dashes (torchrun's users type both).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time.h"

namespace CLI {
class App;
}

namespace regroup {

// `names` as in "--nnodes,-N" or "--nproc-per-node,--ppn"; the first long one names the environment
// variable. `help` is a sentence part in lower case without a full stop. The value is untouched
// when the flag is absent: its value at declaration is the default that help shows.
void AddText(CLI::App& app, std::string_view names, std::string& value, std::string_view help,
             std::string_view placeholder = "TEXT");
void AddSwitch(CLI::App& app, std::string_view names, bool& value, std::string_view help);
// A value outside [min, max] or not a number is refused naming flag, value and limit.
void AddInt(CLI::App& app, std::string_view names, int& value, int min, int max,
            std::string_view help, std::string_view placeholder = "N");
void AddInt(CLI::App& app, std::string_view names, std::optional<int>& value, int min, int max,
            std::string_view help, std::string_view placeholder = "N");
// "2h14m", "500ms", "1.5s"; 0 to a year.
void AddDuration(CLI::App& app, std::string_view names, Duration& value, std::string_view help);
void AddDuration(CLI::App& app, std::string_view names, std::optional<Duration>& value,
                 std::string_view help);
// "10GiB", "500MB", "4096".
void AddBytes(CLI::App& app, std::string_view names, std::uint64_t& value, std::string_view help);
// Anything else. `parse` gets the text and returns a UserError (what, because, try) to refuse it.
void AddParsed(CLI::App& app, std::string_view names, std::string_view placeholder,
               std::string_view default_text, std::string_view help,
               std::function<absl::Status(std::string_view)> parse);
// As AddParsed, but may be given more than once: `parse` gets each, in order.
void AddRepeated(CLI::App& app, std::string_view names, std::string_view placeholder,
                 std::string_view help, std::function<absl::Status(std::string_view)> parse);

// As AddParsed, but the value may be left out, and is only read after "=": then `parse` gets
// `left_out`. The placeholder is written as "[=TEXT]".
void AddOptionalText(CLI::App& app, std::string_view names, std::string_view placeholder,
                     std::string_view left_out, std::string_view help,
                     std::function<absl::Status(std::string_view)> parse);

struct FlagDescription {
  std::vector<std::string> names;  // "-N", "--nnodes".
  std::string placeholder;         // Empty: a switch; "[=TEXT]": the value may be left out.
  std::string help, environment, default_text;

  // The word behind it is its value.
  bool needs_value() const { return !placeholder.empty() && placeholder[0] != '['; }
};

struct CommandDescription {
  std::string name{};     // "run"; empty for the program itself.
  std::string summary{};  // One line, lower case, no full stop.
  std::string usage{};    // "regroup run [OPTIONS] PROGRAM ARGS…"
  std::string text{};     // Paragraphs for --help and man page.
  std::string example{};  // Shell lines.
  std::vector<std::pair<std::string, std::string>> positionals{};  // Name and help.
  std::vector<std::pair<int, std::string>> exit_codes{};           // Where they are its own.
  std::vector<FlagDescription> flags{};
  std::string program{"regroup"};

  std::string Title() const;  // "regroup run"
  std::string Page() const;   // "regroup-run", of the manual.
};

struct ParsedLine {
  bool help = false;                    // --help or -h was given: nothing else was judged.
  std::vector<std::string> rest;        // Positionals, in order; with a program: PROGRAM ARGS…
  bool dashes = false;                  // There was a "--".
  std::size_t words_before_dashes = 0;  // How many of `rest` stood before it.
  // What was typed before `rest`, flag by flag with its value ("--nnodes", "2:3"), names in full
  // with dashes.
  std::vector<std::vector<std::string>> given;
};

// How a line is read that was written for somebody else's parser.
struct ParseRules {
  bool abbreviations = false;  // --stand is --standalone where nothing else begins like that.
  // Long names without dashes: what abbreviates one of them alone means it, whatever else begins
  // like that. They are the parser's for which the line was written.
  std::vector<std::string> abbreviated_first{};
  bool empty_is_absent = false;  // --rdzv-id "" is as good as no --rdzv-id.
};

// The flags of one command.
class CommandLine {
 public:
  // `description` without its flags.
  explicit CommandLine(CommandDescription description);
  ~CommandLine();
  CommandLine(CommandLine&&) noexcept;

  CLI::App& app();
  CommandDescription Describe() const;

  // Reads flags and environment into the declared values. With `program_follows` flags end at the
  // first word that is no flag (or at "--"); else words and flags mix. An unknown flag is refused
  // with the nearest one; `hints` maps a flag that people bring from elsewhere to what they should
  // do.
  absl::StatusOr<ParsedLine> Parse(
      const std::vector<std::string>& args, bool program_follows,
      const std::vector<std::pair<std::string, std::string>>& hints = {},
      const ParseRules& rules = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Flags of a reading command live under REGROUP_<COMMAND>_<FLAG> (a worker's own REGROUP_GENERATION
// must not become `logs --generation`), except those that every command shares.
void ScopeEnvironment(CLI::App& app, std::string_view command);

// Gives flag --some-name the variable PREFIX_SOME_NAME instead; none with an empty prefix.
void RenameEnvironment(CLI::App& app, std::string_view flag, std::string_view prefix);

// 80 columns; usage, text, flags with default and environment name, example.
std::string RenderHelp(const CommandDescription& description);
// roff for `man`; section 1.
std::string RenderManPage(const CommandDescription& description, std::string_view version);

}  // namespace regroup
