#include "common/rpc/checker.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "common/rpc/convert.h"

namespace regroup {
namespace {

bool IsLowerOrDigit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }
bool IsAlphanumeric(char c) { return IsLowerOrDigit(c) || (c >= 'A' && c <= 'Z'); }

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// What was sent, safe to print and short.
std::string Shown(const std::string& value) {
  constexpr std::size_t kShown = 80;
  std::string text = absl::CHexEscape(absl::string_view(value).substr(0, kShown));
  if (value.size() > kShown) absl::StrAppend(&text, "… (", value.size(), " bytes)");
  return absl::StrCat("\"", text, "\"");
}

}  // namespace

bool IsJobName(std::string_view name) {
  if (name.empty() || name.size() > 63) return false;
  if (!IsLowerOrDigit(name.front()) || !IsLowerOrDigit(name.back())) return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return IsLowerOrDigit(c) || c == '-'; });
}

bool IsJobId(std::string_view id) {
  const std::size_t dash = id.rfind('-');
  if (dash == std::string_view::npos || !IsJobName(id.substr(0, dash))) return false;
  const std::string_view number = id.substr(dash + 1);
  if (number.empty() || number.size() > 18 || number.front() == '0') return false;
  return std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool IsNodeName(std::string_view name) {
  if (name.empty() || name.size() > 253 || !IsAlphanumeric(name.front())) return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return IsAlphanumeric(c) || c == '.' || c == '_' || c == '-'; });
}

bool IsToken(std::string_view token) {
  if (token.empty() || token.size() > kMaxIdBytes) return false;
  return std::all_of(token.begin(), token.end(), [](char c) {
    return IsAlphanumeric(c) || c == '.' || c == '_' || c == '-' || c == ':';
  });
}

bool IsIpLiteral(std::string_view host) {
  std::string text(host);
  // A link-local IPv6 address may name its interface.
  if (const std::size_t zone = text.find('%');
      zone != std::string::npos && text.find(':') != std::string::npos) {
    if (zone + 1 == text.size() || text.size() - zone > 16) return false;
    text.resize(zone);
  }
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, text.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, text.c_str(), bytes) == 1;
}

namespace wire {

void Checker::Fail(absl::string_view message) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(message);
}

void Checker::OutOfRange(std::string_view field, const std::string& value, std::int64_t low,
                         std::int64_t high) {
  Fail(absl::StrCat(View(field), ": ", value, " is not in [", low, ", ", high, "]"));
}

void Checker::Grammar(std::string_view field, const std::string& value, std::string_view what) {
  Fail(absl::StrCat(View(field), ": ", Shown(value), " is not ", View(what)));
}

Duration Checker::NonNegative(std::string_view field, std::int64_t nanoseconds) {
  return Duration(Number<std::int64_t>(field, nanoseconds, 0, kMaxDuration.count()));
}

Duration Checker::AnyDuration(std::string_view field, std::int64_t nanoseconds) {
  return Duration(
      Number<std::int64_t>(field, nanoseconds, -kMaxDuration.count(), kMaxDuration.count()));
}

double Checker::Finite(std::string_view field, double value) {
  if (!std::isfinite(value)) {
    Fail(absl::StrCat(View(field), ": ", value, " is not a finite number"));
    return 0;
  }
  return value;
}

std::string Checker::Text(std::string_view field, const std::string& value, std::size_t limit) {
  if (value.size() > limit) {
    Fail(absl::StrCat(View(field), ": ", value.size(), " bytes, at most ", limit, " are allowed"));
    return {};
  }
  return value;
}

std::string Checker::Token(std::string_view field, const std::string& value) {
  if (!IsToken(value)) Grammar(field, value, "1 to 128 letters, digits or . _ - :");
  return value;
}

std::string Checker::TokenOrEmpty(std::string_view field, const std::string& value) {
  return value.empty() ? value : Token(field, value);
}

std::string Checker::JobName(std::string_view field, const std::string& value) {
  if (!IsJobName(value)) {
    Grammar(field, value, "a job name (1 to 63 of a-z 0-9 -, a letter or digit first and last)");
  }
  return value;
}

std::string Checker::JobId(std::string_view field, const std::string& value) {
  if (!IsJobId(value)) Grammar(field, value, "a job id (NAME-N)");
  return value;
}

std::string Checker::NodeName(std::string_view field, const std::string& value) {
  if (!IsNodeName(value)) {
    Grammar(field, value,
            "a node name (1 to 253 letters, digits or . _ -, a letter or digit first)");
  }
  return value;
}

std::string Checker::Ip(std::string_view field, const std::string& value) {
  if (!IsIpLiteral(value)) Grammar(field, value, "an IP address");
  return value;
}

std::string Checker::IpOrEmpty(std::string_view field, const std::string& value) {
  return value.empty() ? value : Ip(field, value);
}

std::uint64_t Checker::NotZero(std::string_view field, std::uint64_t value) {
  if (value == 0) Fail(absl::StrCat(View(field), ": is missing or 0"));
  return value;
}

bool Checker::Size(std::string_view field, int size, int limit) {
  if (size <= limit) return true;
  Fail(absl::StrCat(View(field), ": ", size, " elements, at most ", limit, " are allowed"));
  return false;
}

bool Checker::Present(std::string_view field, bool has) {
  if (!has) Fail(absl::StrCat(View(field), ": is missing"));
  return has;
}

}  // namespace wire
}  // namespace regroup
