#include "tests/sim/recorder.h"

#include <chrono>
#include <cstdio>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/user_error.h"
#include "tests/sim/fields.h"

namespace regroup::sim {
namespace {

template <class T, template <class...> class Template>
inline constexpr bool kIs = false;
template <class... Args, template <class...> class Template>
inline constexpr bool kIs<Template<Args...>, Template> = true;

template <class T>
inline constexpr bool kIsTime = false;
template <class Rep, class Period>
inline constexpr bool kIsTime<std::chrono::duration<Rep, Period>> = true;
template <class Clock, class Span>
inline constexpr bool kIsTime<std::chrono::time_point<Clock, Span>> = true;

void Write(std::string& out, const std::string& text) {
  out += '"';
  for (const char c : text) {
    if (c == '\n' || c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? 'n' : c;
  }
  out += '"';
}

void Write(std::string& out, double number) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", number);
  out += text;
}

template <class T>
void Write(std::string& out, const T& value);

template <class Range>
void WriteAll(std::string& out, const Range& range) {
  out += '[';
  for (const auto& item : range) {
    Write(out, item);
    out += ' ';
  }
  out += ']';
}

template <class T>
void WriteFields(std::string& out, const T& value) {
  out += '{';
  ForEachField(value, [&](const auto& field) {
    Write(out, field);
    out += ' ';
  });
  out += '}';
}

template <class T>
void Write(std::string& out, const T& value) {
  if constexpr (std::is_enum_v<T>) {
    out += std::to_string(static_cast<long long>(value));
  } else if constexpr (std::is_integral_v<T>) {
    out += std::to_string(value);
  } else if constexpr (std::is_same_v<T, absl::Status>) {
    // Not ToString: the order of payloads is chance.
    out += std::to_string(static_cast<int>(value.code()));
    WriteFields(out, PartsOf(value));
  } else if constexpr (kIs<T, std::chrono::time_point>) {
    Write(out, value.time_since_epoch());
  } else if constexpr (kIsTime<T>) {
    out += std::to_string(value.count());
  } else if constexpr (kIs<T, std::optional>) {
    if (!value) out += '-';
    if (value) Write(out, *value);
  } else if constexpr (kIs<T, std::variant>) {
    out += std::to_string(value.index());
    std::visit([&](const auto& held) { Write(out, held); }, value);
  } else if constexpr (kIs<T, std::pair>) {
    Write(out, value.first);
    out += '=';
    Write(out, value.second);
  } else if constexpr (kIs<T, std::vector> || kIs<T, std::map>) {
    WriteAll(out, value);
  } else if constexpr (requires { value.value(); }) {  // A StrongId.
    Write(out, value.value());
  } else {
    WriteFields(out, value);
  }
}

std::uint64_t Fold(std::uint64_t hash, const std::string& text) {  // FNV-1a.
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

}  // namespace

std::string TextOf(const coordinator::Effects& effects) {
  std::string text;
  const auto list = [&](const char* what, const auto& items) {
    for (const auto& item : items) {
      text += what;
      Write(text, item);
      text += '\n';
    }
  };
  list("row ", effects.rows);
  list("action ", effects.actions);
  list("note ", effects.notes);
  return text;
}

ChaosOptions RecordedLife(std::uint64_t seed) {
  ChaosOptions options;
  options.actions = seed % 2 == 0 ? 40 : 14;
  options.rest_every = 13;
  if (seed % 4 != 1) return options;
  options.config.max_ended_jobs = 1;
  options.config.max_events_per_job = 8;
  options.config.max_generations_per_job = 3;
  options.config.max_lost_nodes = 1;
  options.config.max_away_nodes = 1;
  options.config.keep_ended = std::chrono::seconds(20);
  options.config.retention_sweep = std::chrono::seconds(5);
  return options;
}

Recording Record(std::uint64_t seed, const ChaosOptions& options, bool keep_text) {
  Recording recording;
  recording.hash = 14695981039346656037ull;
  ChaosOptions recorded = options;
  recorded.plant = [&](World& world) {
    if (options.plant) options.plant(world);
    world.tamper = [&recording, keep_text, before = world.tamper](coordinator::Effects& effects) {
      if (before) before(effects);
      const std::string text = TextOf(effects);
      ++recording.steps;
      recording.hash = Fold(recording.hash, text + "step\n");
      if (keep_text) recording.text += text + "step\n";
    };
  };
  RunChaos(seed, recorded);
  return recording;
}

}  // namespace regroup::sim
