#include "agent/shell/exit_error.h"

#include <nlohmann/json.hpp>

#include "common/base/control.h"
#include "common/io/files.h"
#include "common/io/log_files.h"

namespace regroup::agent {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr std::size_t kMaxTailBytes = 64 << 10;
constexpr int kMaxTailLines = 400, kShownLines = 20;
constexpr std::string_view kTraceback = "Traceback (most recent call last):";

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.remove_suffix(1);
  return text;
}

// The end of an error says what it is; its beginning may go.
std::string Bounded(std::string_view text) {
  if (text.size() <= kMaxErrorBytes) return std::string(text);
  text.remove_prefix(text.size() - kMaxErrorBytes);
  const std::size_t newline = text.find('\n');
  return std::string(newline == std::string_view::npos ? text : text.substr(newline + 1));
}

std::string StringAt(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::string TextOfErrorFile(std::string_view text) {
  const json file = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!file.is_object()) return "";
  const auto message = file.find("message");
  if (message == file.end()) return "";
  if (message->is_string()) return Bounded(Trimmed(message->get<std::string>()));
  if (!message->is_object()) return "";
  const std::string said = StringAt(*message, "message");
  const auto extra = message->find("extraInfo");
  const std::string stack =
      extra != message->end() && extra->is_object() ? StringAt(*extra, "py_callstack") : "";
  if (stack.empty()) return Bounded(Trimmed(said));
  if (said.empty() || stack.find(said) != std::string::npos) return Bounded(Trimmed(stack));
  return Bounded(Trimmed(std::string(Trimmed(stack)) + "\n" + said));
}

std::string TailOfStderr(std::string_view text) {
  text = Trimmed(text);
  std::size_t from = text.rfind(kTraceback);
  if (from != std::string_view::npos) {
    const std::size_t line = text.rfind('\n', from);
    return Bounded(text.substr(line == std::string_view::npos ? 0 : line + 1));
  }
  from = text.size();
  for (int lines = 0; lines < kShownLines && from != 0; ++lines) {
    const std::size_t newline = text.rfind('\n', from - 1);
    from = newline == std::string_view::npos ? 0 : newline;
  }
  return Bounded(text.substr(from == 0 ? 0 : from + 1));
}

std::string ReadExitError(const std::string& error_file, const std::string& log_directory) {
  absl::StatusOr<std::string> file = io::ReadFile(error_file, kMaxFileBytes);
  if (file.ok()) {
    std::string text = TextOfErrorFile(*file);
    if (!text.empty()) return text;
  }
  return TailOfStderr(
      io::TailText(log_directory, io::LogStream::kStderr, kMaxTailLines, kMaxTailBytes));
}

}  // namespace regroup::agent
