#include "common/report/format.h"

#include <string.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <ctime>

#include "common/config/text.h"
#include "common/report/text_style.h"

namespace regroup {
namespace {

[[gnu::format(printf, 1, 2)]] std::string Format(const char* format, ...) {
  char buffer[128];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

struct Parts {
  long long days = 0, hours = 0, minutes = 0, seconds = 0;
};

Parts Split(Duration d) {
  long long total =
      std::max<long long>(std::chrono::duration_cast<std::chrono::seconds>(d).count(), 0);
  return {total / 86400, total / 3600 % 24, total / 60 % 60, total % 60};
}

std::tm Utc(WallTime t, long long& milliseconds) {
  long long us = t.time_since_epoch().count();
  long long seconds = us / 1'000'000 - (us % 1'000'000 < 0 ? 1 : 0);
  milliseconds = ((us % 1'000'000 + 1'000'000) % 1'000'000) / 1000;
  std::time_t time = static_cast<std::time_t>(seconds);
  std::tm out{};
  if (::gmtime_r(&time, &out) == nullptr) out = std::tm{};
  return out;
}

}  // namespace

std::string AgeText(Duration d) {
  constexpr double kTenths = 9.95;
  double seconds = std::max(Seconds(d), 0.0);
  if (seconds < kTenths) return Format("%.1fs", seconds);
  Parts p = Split(d);
  if (p.days > 0) return Format("%lldd%02lldh", p.days, p.hours);
  if (p.hours > 0) return Format("%lldh%02lldm", p.hours, p.minutes);
  if (p.minutes > 0) return Format("%lldm", p.minutes);
  return Format("%llds", p.seconds);
}

std::string SpanText(Duration d) {
  constexpr double kTenths = 9.95;
  double seconds = std::max(Seconds(d), 0.0);
  if (seconds < kTenths) return Format("%.1fs", seconds);
  Parts p = Split(d);
  if (p.days > 0) return Format("%lldd%02lldh%02lldm", p.days, p.hours, p.minutes);
  if (p.hours > 0) return Format("%lldh%02lldm%02llds", p.hours, p.minutes, p.seconds);
  if (p.minutes > 0) return Format("%lldm%02llds", p.minutes, p.seconds);
  return Format("%llds", p.seconds);
}

std::string ShortText(Duration d) {
  double seconds = std::max(Seconds(d), 0.0);
  if (seconds < 0.0995) return Format("%.0f ms", seconds * 1000);
  if (seconds < 0.995) return Format("%.2f s", seconds);
  if (seconds < 9.95) return Format("%.1f s", seconds);
  if (seconds < 59.5) return Format("%.0f s", seconds);
  return SpanText(d);
}

std::string PhaseText(Duration d) {
  std::string text = Format("%.3f", std::max(Seconds(d), 0.0));
  return text.front() == '0' ? text.substr(1) : text;
}

std::string PhaseTextShort(Duration d) {
  std::string text = PhaseText(d);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text.empty() ? "0" : text;
}

std::string Rfc3339(WallTime t) {
  long long ms = 0;
  std::tm utc = Utc(t, ms);
  return Format("%04d-%02d-%02dT%02d:%02d:%02d.%03lldZ", utc.tm_year + 1900, utc.tm_mon + 1,
                utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, ms);
}

std::string ClockText(WallTime t) {
  long long ms = 0;
  std::tm utc = Utc(t, ms);
  return Format("%02d:%02d:%02d.%03lld", utc.tm_hour, utc.tm_min, utc.tm_sec, ms);
}

std::string SignalName(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? Cat("signal ", signal) : Cat("SIG", name);
}

std::string ObstacleText(int error_number, ExecObstacle obstacle) {
  const char* text = ::strerrordesc_np(error_number);
  const std::string error = text == nullptr ? Cat("error ", error_number) : std::string(text);
  switch (obstacle) {
    case ExecObstacle::kProgram: return error;
    case ExecObstacle::kInterpreter: return Cat("its interpreter: ", error);
    case ExecObstacle::kDirectory: return Cat("its working directory: ", error);
  }
  return error;
}

std::string ExitText(const RankExit& e) {
  switch (e.kind) {
    case ExitKind::kExited: return Cat("exit ", e.code);
    case ExitKind::kSignaled: return SignalName(e.code);
    case ExitKind::kExecFailed: return Cat("could not start: ", ObstacleText(e.code, e.obstacle));
  }
  return "";
}

std::string ExitTextWithSender(const RankExit& e) {
  std::string text = ExitText(e);
  if (e.after_stop) return Cat(text, ", stopped by us");
  if (e.given_up) return Cat(text, " by its agent");
  if (e.oom == OomEvidence::kCounted)
    return Cat(text, ", out of memory: its cgroup counted an OOM kill");
  if (e.oom == OomEvidence::kProbable)
    return Cat(text, ", probably out of memory: the kernel counted an OOM kill");
  constexpr int kKill = 9;
  if (e.kind == ExitKind::kSignaled && e.code == kKill)
    return Cat(text, ", not by us, no OOM kill counted");
  return text;
}

std::string LastLine(std::string_view error) {
  constexpr std::size_t kLongest = 100;
  const std::size_t end = error.find_last_not_of(" \t\r\n");
  if (end == std::string_view::npos) return "";
  const std::size_t newline = error.rfind('\n', end);
  std::string_view line = error.substr(newline == std::string_view::npos ? 0 : newline + 1);
  line = line.substr(0, line.find_last_not_of(" \t\r\n") + 1);
  return EscapeControls(line.substr(0, kLongest));
}

std::string SaidAtExit(const RankExit& e) {
  const bool exited = e.kind == ExitKind::kExited && e.code != 0;
  const bool failed = (exited || e.given_up) && !e.after_stop;
  const std::string said = failed ? LastLine(e.error) : "";
  return said.empty() ? "" : Cat(": ", said);
}

std::string Count(long long n, std::string_view one, std::string_view many) {
  if (n == 1) return Cat(n, " ", one);
  return many.empty() ? Cat(n, " ", one, "s") : Cat(n, " ", many);
}

std::string RanksText(const std::vector<int>& ranks) {
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  std::string out;
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t end = i + 1;
    while (end < sorted.size() && sorted[end] == sorted[end - 1] + 1) ++end;
    bool run = end - i > 3;
    out += Cat(out.empty() ? "" : " ", sorted[i]);
    if (run) out += Cat("-", sorted[end - 1]);
    i = run ? end : i + 1;
  }
  return Cat(sorted.size() == 1 ? "rank " : "ranks ", out);
}

std::string JoinWords(const std::vector<std::string>& words, std::string_view between) {
  std::string out;
  for (const std::string& word : words) out += Cat(out.empty() ? "" : between, word);
  return out;
}

std::string WithTilde(std::string_view path, std::string_view home) {
  bool inside = home.size() > 1 && path.substr(0, home.size()) == home &&
                (path.size() == home.size() || path[home.size()] == '/');
  return inside ? Cat("~", path.substr(home.size())) : std::string(path);
}

}  // namespace regroup
