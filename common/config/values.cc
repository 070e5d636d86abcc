#include "common/config/values.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>

#include "common/base/job_spec.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/job_limits.h"
#include "common/config/text.h"

namespace regroup {
namespace {

// A hostile value is shown, but not in full.
std::string Shown(std::string_view text) {
  constexpr std::size_t kShownBytes = 60;
  std::string out;
  for (char c : text.substr(0, kShownBytes))
    out += std::isprint(static_cast<unsigned char>(c)) ? c : '?';
  if (text.size() > kShownBytes) out += "...";
  return Cat("\"", out, "\"");
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Digits with at most one point, from the front of `text`; advances it. Empty: none.
std::string_view TakeNumber(std::string_view& text) {
  std::size_t length = 0;
  bool point = false;
  while (length < text.size() && (IsDigit(text[length]) || (text[length] == '.' && !point))) {
    point = point || text[length] == '.';
    ++length;
  }
  std::string_view number = text.substr(0, length);
  if (!std::any_of(number.begin(), number.end(), IsDigit)) return {};
  text.remove_prefix(length);
  return number;
}

// REQUIRES: from TakeNumber. Longer ones than a double can tell apart are out of every range
// anyway.
double ToDouble(std::string_view number) {
  double value = 0, scale = 1;
  bool after_point = false;
  for (char c : number) {
    if (c == '.') {
      after_point = true;
    } else if (after_point) {
      scale /= 10;
      value += (c - '0') * scale;
    } else {
      value = value * 10 + (c - '0');
    }
  }
  return value;
}

struct Unit {
  std::string_view name;
  double seconds;
};
constexpr std::array<Unit, 8> kUnits = {{{"ns", 1e-9},
                                         {"us", 1e-6},
                                         {"µs", 1e-6},
                                         {"ms", 1e-3},
                                         {"s", 1},
                                         {"m", 60},
                                         {"h", 3600},
                                         {"d", 86400}}};

const Unit* TakeUnit(std::string_view& text) {
  std::size_t length = 0;
  while (length < text.size() && !IsDigit(text[length]) && text[length] != '.') ++length;
  for (const Unit& unit : kUnits) {
    if (text.substr(0, length) == unit.name) {
      text.remove_prefix(length);
      return &unit;
    }
  }
  return nullptr;
}

absl::Status BadDuration(std::string_view text, std::string_view because) {
  return BadInput(Cat(Shown(text), " is not a duration"), because,
                  "a number with a unit, as in 90s, 2h14m or 500ms");
}

}  // namespace

absl::StatusOr<Duration> ParseDuration(std::string_view text) {
  if (text == "0") return Duration::zero();
  if (text.empty()) return BadDuration(text, "it is empty");
  std::string_view rest = text;
  double total = 0, last_unit = std::numeric_limits<double>::infinity();
  while (!rest.empty()) {
    std::string_view number = TakeNumber(rest);
    if (number.empty()) return BadDuration(text, "a number is expected before each unit");
    const Unit* unit = TakeUnit(rest);
    if (unit == nullptr) {
      return BadDuration(text, rest.empty() ? "its unit is missing (ns us ms s m h d)"
                                            : "its unit is not one of ns us ms s m h d");
    }
    if (unit->seconds >= last_unit)
      return BadDuration(text, "units go from the largest to the smallest, each once");
    last_unit = unit->seconds;
    total += ToDouble(number) * unit->seconds;
  }
  if (!(total <= Seconds(limits::kDuration))) return BadDuration(text, "at most 365d is allowed");
  return Duration(std::llround(total * 1e9));
}

std::string FormatDuration(Duration duration) {
  if (duration <= Duration::zero()) return "0s";
  std::int64_t left = duration.count();
  std::string out;
  struct Whole {
    std::string_view name;
    std::int64_t ns;
  };
  constexpr std::array<Whole, 7> kWhole = {{{"d", 86'400'000'000'000},
                                            {"h", 3'600'000'000'000},
                                            {"m", 60'000'000'000},
                                            {"s", 1'000'000'000},
                                            {"ms", 1'000'000},
                                            {"us", 1'000},
                                            {"ns", 1}}};
  for (const Whole& unit : kWhole) {
    if (left < unit.ns) continue;
    out += Cat(left / unit.ns, unit.name);
    left %= unit.ns;
  }
  return out;
}

absl::StatusOr<std::uint64_t> ParseBytes(std::string_view text) {
  struct Size {
    std::string_view name;
    double bytes;
  };
  constexpr std::array<Size, 15> kSizes = {{{"", 1},
                                            {"B", 1},
                                            {"K", 1024.0},
                                            {"KiB", 1024.0},
                                            {"kB", 1e3},
                                            {"KB", 1e3},
                                            {"M", 1048576.0},
                                            {"MiB", 1048576.0},
                                            {"MB", 1e6},
                                            {"G", 1073741824.0},
                                            {"GiB", 1073741824.0},
                                            {"GB", 1e9},
                                            {"T", 1099511627776.0},
                                            {"TiB", 1099511627776.0},
                                            {"TB", 1e12}}};
  constexpr double kMost = 1152921504606846976.0;  // 2^60
  std::string_view rest = text;
  std::string_view number = TakeNumber(rest);
  const auto* size =
      std::find_if(kSizes.begin(), kSizes.end(), [&](const Size& s) { return s.name == rest; });
  if (number.empty() || size == kSizes.end()) {
    return BadInput(Cat(Shown(text), " is not a size"),
                    "a number with B, KiB, MiB, GiB or TiB is expected", "10GiB");
  }
  double value = ToDouble(number) * size->bytes;
  if (!(value <= kMost))
    return BadInput(Cat(Shown(text), " is too large"), "at most 2^60 bytes are allowed", "10GiB");
  return static_cast<std::uint64_t>(std::llround(value));
}

std::string FormatBytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 6> kNames = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kNames.size()) value /= 1024, ++unit;
  char text[48];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kNames[unit]);
  return text;
}

absl::Status AtField(std::string_view field, const absl::Status& status) {
  UserErrorParts parts = PartsOf(status);
  return UserError(status.code(), Cat(field, ": ", parts.what), parts.because, parts.try_this);
}

absl::StatusOr<std::int64_t> ParseNumber(std::string_view text, std::int64_t min,
                                         std::int64_t max) {
  std::string_view digits = text;
  bool negative = !digits.empty() && digits.front() == '-';
  if (negative) digits.remove_prefix(1);
  if (digits.empty() || !std::all_of(digits.begin(), digits.end(), IsDigit)) {
    return BadInput(Cat(Shown(text), " is not a whole number"),
                    Cat(min, " to ", max, " are allowed"), "");
  }
  constexpr std::size_t kSafeDigits = 18;
  std::int64_t value = std::numeric_limits<std::int64_t>::max();
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  if (digits.size() <= kSafeDigits) {
    value = std::accumulate(digits.begin(), digits.end(), std::int64_t{0},
                            [](std::int64_t sum, char c) { return sum * 10 + (c - '0'); });
  }
  if (negative) value = -value;
  if (value < min || value > max) {
    return BadInput(Cat(Shown(text), " is out of range"), Cat(min, " to ", max, " are allowed"),
                    Cat(std::clamp(value, min, max)));
  }
  return value;
}

absl::StatusOr<double> ParseReal(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return BadInput(Cat(Shown(text), " is not a number"),
                    "digits with a decimal point, as in 2.5, and nothing else", "");
  }
  return value;
}

std::string FormatReal(double value) {
  std::array<char, 32> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::string(text.data(), end) : std::string();
}

absl::StatusOr<std::uint64_t> ParseLogKeep(std::string_view text) {
  if (text == "all") return kKeepAllLogs;
  return ParseBytes(text);
}

std::string FormatLogKeep(std::uint64_t bytes) {
  return bytes == kKeepAllLogs ? "all" : std::to_string(bytes);
}

absl::StatusOr<NodeBounds> ParseNnodes(std::string_view text) {
  std::size_t colon = text.find(':');
  std::string_view first = text.substr(0, colon);
  NodeBounds bounds;
  ASSIGN_OR_RETURN(std::int64_t min, ParseNumber(first, 1, limits::kNodes));
  bounds.min = bounds.max = static_cast<int>(min);
  if (colon == std::string_view::npos) return bounds;
  ASSIGN_OR_RETURN(std::int64_t max, ParseNumber(text.substr(colon + 1), 1, limits::kNodes));
  bounds.max = static_cast<int>(max);
  if (bounds.min > bounds.max) {
    return BadInput(
        Cat(Shown(text), " has its minimum above its maximum"),
        Cat("MIN:MAX needs MIN at most MAX, and ", bounds.min, " is more than ", bounds.max),
        Cat(bounds.max, ":", bounds.min));
  }
  return bounds;
}

std::string FormatNnodes(int min, int max) { return min == max ? Cat(min) : Cat(min, ":", max); }

absl::StatusOr<Endpoint> ParseEndpoint(std::string_view text) {
  auto bad = [&](std::string_view because) {
    return BadInput(Cat(Shown(text), " is not an address"), because,
                    "HOST, HOST:PORT or [IPV6]:PORT, as in node0:29400");
  };
  Endpoint endpoint;
  std::string_view host = text, port;
  bool has_port = false;
  if (!text.empty() && text.front() == '[') {
    std::size_t close = text.find(']');
    if (close == std::string_view::npos) return bad("the closing ] is missing");
    host = text.substr(1, close - 1);
    std::string_view after = text.substr(close + 1);
    if (!after.empty() && after.front() != ':') return bad("only :PORT may follow the ]");
    if (host.find(':') == std::string_view::npos) return bad("brackets are for IPv6 addresses");
    has_port = !after.empty();
    if (has_port) port = after.substr(1);
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    std::size_t colon = text.find(':');
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    has_port = true;
  }
  if (host.empty()) return bad("the host is missing");
  if (host.size() > 253) return bad("a host name has at most 253 characters");
  for (char c : host) {
    bool fine = std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_' ||
                c == ':' || c == '%';
    if (!fine) return bad("a host has letters, digits, '.', '-', '_' and, in IPv6, ':'");
  }
  if (host.front() == '-') return bad("a host does not start with '-'");
  endpoint.host = std::string(host);
  if (has_port) {
    absl::StatusOr<std::int64_t> number = ParseNumber(port, 1, 65535);
    if (!number.ok()) {
      return BadInput(Cat(Shown(text), " has no port"), "a port is a number from 1 to 65535",
                      FormatEndpoint(host, kDefaultPort));
    }
    endpoint.port = static_cast<std::uint16_t>(*number);
  }
  return endpoint;
}

std::string FormatEndpoint(std::string_view host, std::uint16_t port) {
  bool ipv6 = host.find(':') != std::string_view::npos;
  return ipv6 ? Cat("[", host, "]:", port) : Cat(host, ":", port);
}

absl::StatusOr<PortRange> ParsePortRange(std::string_view text) {
  std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) {
    return BadInput(Cat(Shown(text), " is not a port range"), "FIRST-LAST is expected",
                    "20000-20100");
  }
  ASSIGN_OR_RETURN(std::int64_t first, ParseNumber(text.substr(0, dash), 1, 65535));
  ASSIGN_OR_RETURN(std::int64_t last, ParseNumber(text.substr(dash + 1), 1, 65535));
  if (first > last) {
    return BadInput(Cat(Shown(text), " is empty"), Cat(first, " is more than ", last),
                    Cat(last, "-", first));
  }
  if (first == last) {
    return BadInput(Cat(Shown(text), " is too small"),
                    "a node needs a port for its witness and one for the store of the generation",
                    Cat(std::min<std::int64_t>(first, 65'000), "-",
                        std::min<std::int64_t>(first, 65'000) + 100));
  }
  return PortRange{static_cast<std::uint16_t>(first), static_cast<std::uint16_t>(last)};
}

namespace {

// Optimal string alignment: a swap of neighbours is one step. Both words are short (flags, names).
int EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> cost(a.size() + 1, std::vector<int>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) cost[i][0] = static_cast<int>(i);
  for (std::size_t j = 0; j <= b.size(); ++j) cost[0][j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      int change = a[i - 1] == b[j - 1] ? 0 : 1;
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + change});
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::string DidYouMean(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr std::size_t kLongestWord = 128;
  if (word.empty() || word.size() > kLongestWord) return "";
  const std::string* best = nullptr;
  int best_distance = std::min(3, static_cast<int>(std::max<std::size_t>(word.size() / 3, 1))) + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongestWord) continue;
    int distance = EditDistance(word, candidate);
    if (distance < best_distance) best = &candidate, best_distance = distance;
  }
  if (best != nullptr) return *best;
  constexpr std::size_t kShortestPrefix = 3;
  if (word.size() < kShortestPrefix) return "";
  for (const std::string& candidate : candidates) {
    if (candidate.compare(0, word.size(), word) == 0) return candidate;
    bool begins_it =
        candidate.size() >= kShortestPrefix && word.substr(0, candidate.size()) == candidate;
    if (begins_it) return candidate;
  }
  return "";
}

std::string ShellQuote(std::string_view word) {
  constexpr std::string_view kPlain = "_-./:=,@%+";
  bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || kPlain.find(c) != std::string_view::npos;
  });
  if (plain) return std::string(word);
  std::string out = "'";
  for (char c : word) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string ShellJoin(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += Cat(out.empty() ? "" : " ", ShellQuote(word));
  return out;
}

}  // namespace regroup
