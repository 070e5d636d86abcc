#pragma once

// Checks what a peer sent, field by field, and keeps the first thing wrong with it. For the
// conversions of convert.h.

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/time.h"

namespace regroup::wire {

class Checker {
 public:
  // Integer of type T in [low, high].
  template <class T, class V>
  T Number(std::string_view field, V value, std::int64_t low, std::int64_t high) {
    if constexpr (std::is_unsigned_v<V>) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ||
          static_cast<std::int64_t>(value) < low || static_cast<std::int64_t>(value) > high) {
        OutOfRange(field, absl::StrCat(value), low, high);
        return T{};
      }
    } else if (value < low || value > high) {
      OutOfRange(field, absl::StrCat(value), low, high);
      return T{};
    }
    return static_cast<T>(value);
  }
  // Any int that has no limit of its own: -2^31 to 2^31 - 1 is what its type allows.
  int Count(std::string_view field, std::int32_t value) {
    return Number<int>(field, value, 0, std::numeric_limits<std::int32_t>::max());
  }
  Duration NonNegative(std::string_view field, std::int64_t nanoseconds);
  Duration AnyDuration(std::string_view field, std::int64_t nanoseconds);  // |d| ≤ kMaxDuration.
  double Finite(std::string_view field, double value);
  std::string Text(std::string_view field, const std::string& value, std::size_t limit);
  std::string Token(std::string_view field, const std::string& value);  // IsToken.
  std::string TokenOrEmpty(std::string_view field, const std::string& value);
  std::string JobName(std::string_view field, const std::string& value);
  std::string JobId(std::string_view field, const std::string& value);
  std::string NodeName(std::string_view field, const std::string& value);
  std::string Ip(std::string_view field, const std::string& value);
  std::string IpOrEmpty(std::string_view field, const std::string& value);
  std::uint64_t NotZero(std::string_view field, std::uint64_t value);

  // At most `limit` elements; false (and an error) above. Call before looping over a repeated
  // field.
  bool Size(std::string_view field, int size, int limit);

  // The converted value of a nested message, or an error that names the path to it.
  template <class T>
  T Nested(std::string_view field, absl::StatusOr<T> value) {
    if (value.ok()) return *std::move(value);
    Fail(
        absl::StrCat(absl::string_view(field.data(), field.size()), ".", value.status().message()));
    return T{};
  }
  // A nested message that has to be there.
  bool Present(std::string_view field, bool has);

  // Enum tables map protobuf's numbers to ours; an unknown number is an error.
  template <class E, std::size_t N>
  E Enum(std::string_view field, int number, const std::pair<int, E> (&table)[N]) {
    for (const auto& [wire, value] : table) {
      if (wire == number) return value;
    }
    Fail(absl::StrCat(absl::string_view(field.data(), field.size()), ": ", number,
                      " is not a known value"));
    return table[0].second;
  }

  void Fail(absl::string_view message);
  const absl::Status& status() const { return status_; }

  template <class T>
  absl::StatusOr<T> Finish(T value) {
    if (!status_.ok()) return status_;
    return value;
  }

 private:
  void OutOfRange(std::string_view field, const std::string& value, std::int64_t low,
                  std::int64_t high);
  void Grammar(std::string_view field, const std::string& value, std::string_view what);
  absl::Status status_;
};

template <class E, std::size_t N>
int EnumNumber(E value, const std::pair<int, E> (&table)[N]) {
  for (const auto& [wire, known] : table) {
    if (known == value) return wire;
  }
  return 0;
}

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

inline std::int64_t Us(WallTime time) { return time.time_since_epoch().count(); }
inline WallTime WallOf(std::int64_t us) { return WallTime(std::chrono::microseconds(us)); }

}  // namespace regroup::wire
