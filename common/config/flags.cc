#include "common/config/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/config/values.h"

namespace regroup {
namespace {

// A refusal travels through CLI11 as its own exception, with our three parts in the message.
constexpr char kPart = '\x1f';

std::string EnvironmentName(std::string_view prefix, const CLI::Option& option) {
  std::string name(prefix);
  for (char c : option.get_lnames().front()) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

void Finish(CLI::Option* option, std::string_view placeholder, std::string_view default_text) {
  option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  option->type_name(std::string(placeholder));
  option->default_str(std::string(default_text));
  option->envname(EnvironmentName("REGROUP_", *option));
}

absl::Status Misuse(std::string_view what, std::string_view because, std::string_view try_this) {
  return UserError(absl::StatusCode::kInvalidArgument, what, because, try_this);
}

std::string LongName(const CLI::Option& option) { return "--" + option.get_lnames().front(); }
bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }
// Of one whose value may be left out the default text is what stands for it then.
bool IsOptionalValue(const CLI::Option& option) {
  return TakesValue(option) && option.get_type_name().starts_with("[=");
}
bool NeedsValue(const CLI::Option& option) {
  return TakesValue(option) && !IsOptionalValue(option);
}

CLI::Option* Find(CLI::App& app, const std::string& name) { return app.get_option_no_throw(name); }

std::vector<std::string> LongNames(const CLI::App& app) {
  std::vector<std::string> names = {"--help"};
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// Cuts a command line into flags, each with its value, and the words after them. CLI11 then sees
// "--name=value" only, so that no value is taken for a flag and no word for a value.
class Scanner {
 public:
  Scanner(CLI::App& app, const std::vector<std::string>& args, bool program_follows,
          const std::vector<std::pair<std::string, std::string>>& hints, const ParseRules& rules)
      : app_(app), args_(args), program_follows_(program_follows), hints_(hints), rules_(rules) {}

  absl::Status Run() {
    for (at_ = 0; at_ < args_.size(); ++at_) {
      const std::string& word = args_[at_];
      if (word == "--") {
        line_.dashes = true;
        line_.words_before_dashes = line_.rest.size();
        line_.rest.insert(line_.rest.end(), args_.begin() + static_cast<std::ptrdiff_t>(at_) + 1,
                          args_.end());
        break;
      }
      bool flag = word.size() > 1 && word[0] == '-';
      if (!flag && program_follows_) {
        line_.rest.assign(args_.begin() + static_cast<std::ptrdiff_t>(at_), args_.end());
        break;
      }
      if (!flag) {
        line_.rest.push_back(word);
        continue;
      }
      RETURN_IF_ERROR(word[1] == '-' ? Long(word) : Short(word));
    }
    return absl::OkStatus();
  }

  ParsedLine line() && { return std::move(line_); }
  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  absl::Status Long(const std::string& word) {
    std::size_t equals = word.find('=');
    std::string name = word.substr(0, equals);
    std::replace(name.begin(), name.end(), '_', '-');
    if (name == "--help") return line_.help = true, absl::OkStatus();
    CLI::Option* option = Find(app_, name);
    if (option == nullptr && rules_.abbreviations) option = Abbreviated(name);
    if (option == nullptr) return Unknown(name);
    if (equals != std::string::npos) return Take(*option, word.substr(equals + 1));
    if (!NeedsValue(*option)) return Take(*option, std::nullopt);
    return TakeNext(*option);
  }

  absl::Status Short(const std::string& word) {
    for (std::size_t i = 1; i < word.size(); ++i) {
      std::string name = {'-', word[i]};
      if (name == "-h") return line_.help = true, absl::OkStatus();
      CLI::Option* option = Find(app_, name);
      if (option == nullptr) return Unknown(i == 1 ? word : name);
      if (!NeedsValue(*option)) {
        RETURN_IF_ERROR(Take(*option, std::nullopt));
      } else if (i + 1 < word.size()) {
        return Take(*option, word.substr(word[i + 1] == '=' ? i + 2 : i + 1));
      } else {
        return TakeNext(*option);
      }
    }
    return absl::OkStatus();
  }

  // Null where none begins like that, or several do.
  CLI::Option* Abbreviated(const std::string& name) const {
    std::set<CLI::Option*> first, all;
    for (CLI::Option* option : app_.get_options()) {
      for (const std::string& candidate : option->get_lnames()) {
        if (("--" + candidate).rfind(name, 0) != 0) continue;
        all.insert(option);
        const std::vector<std::string>& before = rules_.abbreviated_first;
        if (std::find(before.begin(), before.end(), candidate) != before.end())
          first.insert(option);
      }
    }
    const std::set<CLI::Option*>& meant = first.empty() ? all : first;
    return meant.size() == 1 ? *meant.begin() : nullptr;
  }

  absl::Status TakeNext(const CLI::Option& option) {
    if (at_ + 1 >= args_.size()) return NoValue(option);
    return Take(option, args_[++at_]);
  }

  absl::Status Take(const CLI::Option& option, std::optional<std::string> value) {
    if (value && value->empty() && rules_.empty_is_absent) return absl::OkStatus();
    if (value && value->empty()) return NoValue(option);
    std::string name = LongName(option);
    if (NeedsValue(option)) {
      line_.given.push_back({name, *value});
    } else {
      line_.given.push_back({value ? Cat(name, "=", *value) : name});
    }
    if (!value && IsOptionalValue(option)) value = option.get_default_str();
    tokens_.push_back(value ? Cat(name, "=", *value) : name);
    return absl::OkStatus();
  }

  absl::Status NoValue(const CLI::Option& option) const {
    return Misuse(Cat(LongName(option), " needs a value"), "none was given",
                  Cat(LongName(option), " ", option.get_type_name()));
  }

  absl::Status Unknown(const std::string& name) const {
    for (const auto& [foreign, advice] : hints_) {
      if (name == foreign) return Misuse(Cat("unknown flag ", name), advice, "");
    }
    std::string nearest = DidYouMean(name, LongNames(app_));
    return Misuse(Cat("unknown flag ", name),
                  nearest.empty() ? Cat(app_.get_name(), " has no such flag")
                                  : Cat("did you mean ", nearest, "?"),
                  Help());
  }

  std::string Help() const { return Cat(app_.get_name(), " --help"); }

  CLI::App& app_;
  const std::vector<std::string>& args_;
  const bool program_follows_;
  const std::vector<std::pair<std::string, std::string>>& hints_;
  const ParseRules rules_;
  std::size_t at_ = 0;
  ParsedLine line_;
  std::vector<std::string> tokens_;
};

// "--nnodes: what" + our parts, or what CLI11 itself says.
absl::Status FromException(const CLI::App& app, const ParsedLine& line,
                           const CLI::ParseError& error) {
  std::string text = error.what();
  std::size_t name_end = text.find(kPart);
  const std::size_t dashes = text.find("--");
  if (name_end == std::string::npos && dashes != std::string::npos) {
    const CLI::Option* option =
        app.get_option_no_throw(text.substr(dashes, text.find(' ', dashes) - dashes));
    if (option != nullptr &&
        !TakesValue(*option)) {  // A switch: typed with "=", or by its variable.
      return Misuse(text, "1 or 0 is expected", Cat("unset ", option->get_envname()));
    }
  }
  if (name_end == std::string::npos) return Misuse(text, "", Cat(app.get_name(), " --help"));
  std::size_t what_end = text.find(kPart, name_end + 1);
  std::size_t because_end = text.find(kPart, what_end + 1);
  // CLI11 puts "NAME: " before the message: ours says the name itself.
  std::string name = text.substr(text.rfind("--", name_end), name_end - text.rfind("--", name_end));
  bool typed = std::any_of(line.given.begin(), line.given.end(), [&](const auto& words) {
    return words[0].substr(0, words[0].find('=')) == name;
  });
  std::string try_this = text.substr(because_end + 1);
  std::string where = name;
  const CLI::Option* option = app.get_option_no_throw(name);
  if (!typed && option != nullptr) where = option->get_envname();
  bool is_value = !try_this.empty() && try_this.find(' ') == std::string::npos;
  const bool joined = !typed || (option != nullptr && IsOptionalValue(*option));
  if (is_value) try_this = Cat(where, joined ? "=" : " ", try_this);
  return Misuse(Cat(where, ": ", text.substr(name_end + 1, what_end - name_end - 1)),
                text.substr(what_end + 1, because_end - what_end - 1), try_this);
}

}  // namespace

namespace {

CLI::Option* AddCallback(CLI::App& app, std::string_view names, std::string_view help,
                         std::function<absl::Status(std::string_view)> parse) {
  std::string all(names);
  std::size_t begin = all.find("--");
  std::string long_name = all.substr(begin, all.find(',', begin) - begin);
  CLI::callback_t callback = [parse = std::move(parse), long_name](const CLI::results_t& results) {
    for (const std::string& result : results) {
      absl::Status status = parse(result);
      if (status.ok()) continue;
      UserErrorParts parts = PartsOf(status);
      std::string part(1, kPart);
      throw CLI::ValidationError(
          "", Cat(long_name, part, parts.what, part, parts.because, part, parts.try_this));
    }
    return true;
  };
  return app.add_option(all, std::move(callback), std::string(help));
}

}  // namespace

void AddParsed(CLI::App& app, std::string_view names, std::string_view placeholder,
               std::string_view default_text, std::string_view help,
               std::function<absl::Status(std::string_view)> parse) {
  Finish(AddCallback(app, names, help, std::move(parse)), placeholder, default_text);
}

void AddRepeated(CLI::App& app, std::string_view names, std::string_view placeholder,
                 std::string_view help, std::function<absl::Status(std::string_view)> parse) {
  CLI::Option* option = AddCallback(app, names, help, std::move(parse));
  Finish(option, placeholder, "");
  option->expected(1, 1 << 16)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void AddOptionalText(CLI::App& app, std::string_view names, std::string_view placeholder,
                     std::string_view left_out, std::string_view help,
                     std::function<absl::Status(std::string_view)> parse) {
  CHECK(placeholder.starts_with("[="));
  Finish(AddCallback(app, names, help, std::move(parse)), placeholder, left_out);
}

void AddText(CLI::App& app, std::string_view names, std::string& value, std::string_view help,
             std::string_view placeholder) {
  AddParsed(app, names, placeholder, value, help, [&value](std::string_view text) {
    value = std::string(text);
    return absl::OkStatus();
  });
}

void AddSwitch(CLI::App& app, std::string_view names, bool& value, std::string_view help) {
  Finish(app.add_flag(std::string(names), value, std::string(help)), "", "");
}

void AddInt(CLI::App& app, std::string_view names, int& value, int min, int max,
            std::string_view help, std::string_view placeholder) {
  AddParsed(app, names, placeholder, std::to_string(value), help,
            [&value, min, max](std::string_view text) {
              ASSIGN_OR_RETURN(std::int64_t number, ParseNumber(text, min, max));
              value = static_cast<int>(number);
              return absl::OkStatus();
            });
}

void AddInt(CLI::App& app, std::string_view names, std::optional<int>& value, int min, int max,
            std::string_view help, std::string_view placeholder) {
  AddParsed(app, names, placeholder, value ? std::to_string(*value) : "", help,
            [&value, min, max](std::string_view text) {
              ASSIGN_OR_RETURN(std::int64_t number, ParseNumber(text, min, max));
              value = static_cast<int>(number);
              return absl::OkStatus();
            });
}

void AddDuration(CLI::App& app, std::string_view names, Duration& value, std::string_view help) {
  AddParsed(app, names, "DURATION", FormatDuration(value), help, [&value](std::string_view text) {
    ASSIGN_OR_RETURN(value, ParseDuration(text));
    return absl::OkStatus();
  });
}

void AddDuration(CLI::App& app, std::string_view names, std::optional<Duration>& value,
                 std::string_view help) {
  AddParsed(app, names, "DURATION", value ? FormatDuration(*value) : "", help,
            [&value](std::string_view text) {
              ASSIGN_OR_RETURN(value, ParseDuration(text));
              return absl::OkStatus();
            });
}

void AddBytes(CLI::App& app, std::string_view names, std::uint64_t& value, std::string_view help) {
  AddParsed(app, names, "SIZE", FormatBytes(value), help, [&value](std::string_view text) {
    ASSIGN_OR_RETURN(value, ParseBytes(text));
    return absl::OkStatus();
  });
}

std::string CommandDescription::Title() const {
  return name.empty() ? program : Cat(program, " ", name);
}

std::string CommandDescription::Page() const {
  return name.empty() ? program : Cat(program, "-", name);
}

struct CommandLine::State {
  CommandDescription description;
  CLI::App app;
};

CommandLine::CommandLine(CommandDescription description) : state_(std::make_unique<State>()) {
  state_->app.name(description.Title());
  state_->app.description(description.summary);
  state_->app.set_help_flag();
  state_->description = std::move(description);
}
CommandLine::~CommandLine() = default;
CommandLine::CommandLine(CommandLine&&) noexcept = default;

CLI::App& CommandLine::app() { return state_->app; }

CommandDescription CommandLine::Describe() const {
  CommandDescription all = state_->description;
  for (const CLI::Option* option : state_->app.get_options()) {
    FlagDescription flag;
    for (const std::string& name : option->get_snames()) flag.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) flag.names.push_back("--" + name);
    if (TakesValue(*option)) flag.placeholder = option->get_type_name();
    flag.help = option->get_description();
    flag.environment = option->get_envname();
    if (!IsOptionalValue(*option)) flag.default_text = option->get_default_str();
    all.flags.push_back(std::move(flag));
  }
  return all;
}

absl::StatusOr<ParsedLine> CommandLine::Parse(
    const std::vector<std::string>& args, bool program_follows,
    const std::vector<std::pair<std::string, std::string>>& hints, const ParseRules& rules) {
  Scanner scanner(state_->app, args, program_follows, hints, rules);
  RETURN_IF_ERROR(scanner.Run());
  std::vector<std::string> tokens = scanner.tokens();
  ParsedLine line = std::move(scanner).line();
  if (line.help) return line;
  std::reverse(tokens.begin(), tokens.end());  // CLI11 wants the last one first.
  try {
    state_->app.parse(std::move(tokens));
  } catch (const CLI::ParseError& error) {
    return FromException(state_->app, line, error);
  }
  return line;
}

void ScopeEnvironment(CLI::App& app, std::string_view command) {
  static const std::set<std::string> shared = {"coordinator", "state-dir", "json", "insecure",
                                               "token-file"};
  std::string prefix = "REGROUP_";
  for (char c : command) prefix += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  prefix += '_';
  for (CLI::Option* option : app.get_options()) {
    if (shared.count(option->get_lnames().front()) == 0)
      option->envname(EnvironmentName(prefix, *option));
  }
}

void RenameEnvironment(CLI::App& app, std::string_view flag, std::string_view prefix) {
  CLI::Option* option = app.get_option(std::string(flag));
  option->envname(prefix.empty() ? std::string() : EnvironmentName(prefix, *option));
}

}  // namespace regroup
