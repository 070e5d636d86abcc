#include <cctype>
#include <sstream>

#include "common/config/flags.h"
#include "common/config/text.h"

namespace regroup {
namespace {

constexpr std::size_t kWidth = 80, kHelpColumn = 30;

// Words of `text` filled into lines; `first` is already on the line.
std::string Filled(std::string_view text, std::size_t indent, std::size_t first) {
  std::istringstream words{std::string(text)};
  std::string out, word;
  std::size_t column = first;
  while (words >> word) {
    bool starts = out.empty();
    if (!starts && column + 1 + word.size() > kWidth) {
      out += Cat("\n", std::string(indent, ' '));
      column = indent;
    } else if (!starts) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out + "\n";
}

std::string Paragraphs(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    std::size_t end = text.find("\n\n");
    out += Cat(Filled(text.substr(0, end), 0, 0), "\n");
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 2);
  }
  return out;
}

std::string NamesOf(const FlagDescription& flag) {
  std::string names;
  for (const std::string& name : flag.names) names += Cat(names.empty() ? "" : ", ", name);
  return Cat(names, flag.needs_value() ? " " : "", flag.placeholder);
}

std::string HelpOf(const FlagDescription& flag) {
  std::string text = flag.help;
  if (!flag.default_text.empty()) text += Cat(" (default ", flag.default_text, ")");
  return flag.environment.empty() ? text : Cat(text, " [", flag.environment, "]");
}

std::string Entry(std::string_view name, std::string_view help) {
  std::string out = Cat("  ", name);
  if (out.size() + 2 > kHelpColumn) {
    out += Cat("\n", std::string(kHelpColumn, ' '));
  } else {
    out.resize(kHelpColumn, ' ');
  }
  return out + Filled(help, kHelpColumn, kHelpColumn);
}

std::string ExitCode(int code, std::string_view meaning) {
  std::string out = Cat("  ", code);
  out.resize(6, ' ');
  return out + Filled(meaning, 6, 6);
}

std::string Indented(std::string_view lines) {
  std::string out;
  std::istringstream in{std::string(lines)};
  for (std::string line; std::getline(in, line);) out += Cat("  ", line, "\n");
  return out;
}

// Backslashes, dashes and a dot or quote at the start of a line mean something to roff.
std::string Roff(std::string_view text) {
  std::string out;
  bool line_start = true;
  for (char c : text) {
    if (line_start && (c == '.' || c == '\'')) out += "\\&";
    line_start = c == '\n';
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Upper(std::string_view text) {
  std::string out;
  for (char c : text) out += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

std::string RenderHelp(const CommandDescription& description) {
  std::string out = Cat(Filled(Cat(description.Title(), ": ", description.summary), 0, 0),
                        "\nusage: ", description.usage, "\n\n", Paragraphs(description.text));
  for (const auto& [name, help] : description.positionals) out += Entry(name, help);
  if (!description.positionals.empty()) out += "\n";
  if (!description.flags.empty()) out += "options, each also an environment variable:\n";
  for (const FlagDescription& flag : description.flags) out += Entry(NamesOf(flag), HelpOf(flag));
  if (!description.flags.empty()) out += "\n";
  if (!description.exit_codes.empty()) out += "exit codes:\n";
  for (const auto& [code, meaning] : description.exit_codes) out += ExitCode(code, meaning);
  if (!description.exit_codes.empty()) out += "\n";
  return Cat(out, "example:\n", Indented(description.example));
}

std::string RenderManPage(const CommandDescription& description, std::string_view version) {
  const std::string page = description.Page();
  std::string out = Cat(
      ".TH ", Upper(page), " 1 \"\" \"Regroup ", version, "\" \"Regroup\"\n.SH NAME\n", Roff(page),
      " \\- ", Roff(description.summary), "\n.SH SYNOPSIS\n.B ", Roff(description.usage), "\n");
  if (!description.text.empty()) {
    out += ".SH DESCRIPTION\n";
    std::string_view text = description.text;
    while (!text.empty()) {
      std::size_t end = text.find("\n\n");
      out += Cat(Roff(text.substr(0, end)), "\n");
      if (end != std::string_view::npos) out += ".PP\n";
      text = end == std::string_view::npos ? std::string_view() : text.substr(end + 2);
    }
  }
  if (!description.positionals.empty()) out += ".SH ARGUMENTS\n";
  for (const auto& [name, help] : description.positionals)
    out += Cat(".TP\n.B ", Roff(name), "\n", Roff(help), "\n");
  if (!description.flags.empty()) out += ".SH OPTIONS\n";
  for (const FlagDescription& flag : description.flags) {
    out += Cat(".TP\n.B ", Roff(NamesOf(flag)), "\n", Roff(flag.help));
    if (!flag.default_text.empty()) out += Cat(" (default ", Roff(flag.default_text), ")");
    out +=
        flag.environment.empty() ? ".\n" : Cat(".\nEnvironment: ", Roff(flag.environment), ".\n");
  }
  if (!description.exit_codes.empty()) out += ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : description.exit_codes)
    out += Cat(".TP\n.B ", code, "\n", Roff(meaning), ".\n");
  return Cat(out, ".SH EXAMPLE\n.nf\n", Roff(description.example), "\n.fi\n");
}

}  // namespace regroup
