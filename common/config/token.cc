#include "common/config/token.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "common/base/user_error.h"
#include "common/config/env.h"
#include "common/config/flags.h"
#include "common/config/text.h"
#include "common/config/values.h"

namespace regroup {
namespace {

constexpr std::size_t kLeast = 16;

}  // namespace

absl::Status ValidateToken(std::string_view token) {
  const bool fits =
      token.size() >= kLeast && token.size() <= kMaxTokenBytes &&
      std::all_of(token.begin(), token.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 ||
               std::string_view("._-:+/=").find(static_cast<char>(c)) != std::string_view::npos;
      });
  if (fits) return absl::OkStatus();
  return UserError(absl::StatusCode::kInvalidArgument, "this is no token",
                   Cat(token.size(), " bytes; 16 to 256 letters, digits or . _ - : + / = are one"),
                   "regroup token on the coordinator's host prints it");
}

absl::StatusOr<std::string> GivenToken(const std::string& file) {
  std::string token = GetEnv(kTokenVariable).value_or("");
  if (!file.empty()) {
    std::ifstream in(file, std::ios::binary);
    token.assign(kMaxTokenBytes + 2, '\0');
    in.read(token.data(), static_cast<std::streamsize>(token.size()));
    if (!in.is_open() || in.bad()) {
      return UserError(absl::StatusCode::kInvalidArgument,
                       Cat("--token-file ", ShellQuote(file), " cannot be read"),
                       std::strerror(errno), "a file with one line, the token");
    }
    token.resize(static_cast<std::size_t>(in.gcount()));
    while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  } else if (token.empty()) {
    return token;
  }
  if (absl::Status valid = ValidateToken(token); !valid.ok()) {
    UserErrorParts parts = PartsOf(valid);
    return UserError(valid.code(), Cat(file.empty() ? kTokenVariable : file, ": ", parts.what),
                     parts.because, parts.try_this);
  }
  return token;
}

void AddTokenFile(CLI::App& app, std::string& file) {
  AddText(app, "--token-file", file,
          "file with the coordinator's token; none: REGROUP_TOKEN (regroup token prints it)",
          "FILE");
}

absl::Status NeedsToken(std::string_view where, std::string_view command) {
  return UserError(absl::StatusCode::kPermissionDenied,
                   Cat(where, " is asked over TCP, and no token was given"),
                   Cat("a coordinator takes nobody over TCP who does not know its token, unless it "
                       "and who dials it say --insecure; neither ",
                       kTokenVariable, " nor --token-file has it"),
                   Cat(kTokenVariable, "=… ", command, "  (regroup token on its host prints it)"));
}

}  // namespace regroup
