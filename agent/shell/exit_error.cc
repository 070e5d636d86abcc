#include "agent/shell/exit_error.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/control.h"
#include "common/io/files.h"
#include "common/io/log_files.h"
#include "common/report/format.h"

namespace regroup::agent {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr std::size_t kMaxTailBytes = 64 << 10;
constexpr int kMaxTailLines = 400, kShownLines = 20;
constexpr std::string_view kTraceback = "Traceback (most recent call last):";
constexpr std::string_view kFatal = "Fatal Python error: ", kCurrentThread = "\nCurrent thread 0x";
constexpr std::string_view kLostPeers[] = {"DistBackendError",
                                           "DistNetworkError",
                                           "DistStoreError",
                                           "gloo/transport/",
                                           "ncclRemoteError",
                                           "NCCL communicator was aborted",
                                           "Watchdog caught collective operation timeout"};

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

// The fault handler tells of every thread: of one that matters and of many that wait.
std::string FatalText(std::string_view text) {
  const std::size_t current = text.find(kCurrentThread);
  if (current == std::string_view::npos) return Bounded(text);
  const std::string_view thread = text.substr(current + 1);
  return Bounded(absl::StrCat(std::string(text.substr(0, text.find('\n'))), "\n",
                              std::string(thread.substr(0, thread.find("\n\n")))));
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
  const std::size_t fatal = text.rfind(kFatal);
  if (fatal != std::string_view::npos && (from == std::string_view::npos || fatal > from))
    return FatalText(text.substr(fatal));
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

bool TellsOfLostPeers(std::string_view text) {
  return std::any_of(std::begin(kLostPeers), std::end(kLostPeers), [&](std::string_view words) {
    return text.find(words) != std::string_view::npos;
  });
}

ExitError ReadExitError(const std::string& error_file, const std::string& log_directory) {
  ExitError error;
  if (const absl::StatusOr<std::string> file = io::ReadFile(error_file, kMaxFileBytes); file.ok()) {
    error.text = TextOfErrorFile(*file);
    // For people only; with the mode that a worker's own open() gives it under torchrun.
    io::ReplaceFile(absl::StrCat(log_directory, "/error.json"), *file, io::Durability::kVolatile,
                    0644)
        .IgnoreError();
    if (!error.text.empty()) error.evidence = ErrorEvidence::kErrorFile;
  }
  if (error.text.empty()) {
    error.text = TailOfStderr(
        io::TailText(log_directory, io::LogStream::kStderr, kMaxTailLines, kMaxTailBytes));
  }
  if (TellsOfLostPeers(error.text)) error.evidence = ErrorEvidence::kCommunicator;
  return error;
}

std::string ErrorFileOf(const RankCause& cause) {
  const RankExit& exit = cause.exit;
  const std::string_view text = Trimmed(exit.error);
  const std::size_t newline = text.rfind('\n');
  std::string said(newline == std::string_view::npos ? text : text.substr(newline + 1));
  if (said.empty())
    said = absl::StrCat("rank ", cause.rank, " on ", cause.node, " ", ExitTextWithSender(exit));
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(cause.at.time_since_epoch()).count();
  json extra = {{"timestamp", absl::StrCat(seconds)}};
  if (!text.empty()) extra["py_callstack"] = std::string(text);
  const int code = exit.kind == ExitKind::kSignaled ? -exit.code : exit.code;
  const json file = {{"message", {{"message", said}, {"extraInfo", extra}, {"errorCode", code}}}};
  return file.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

}  // namespace regroup::agent
