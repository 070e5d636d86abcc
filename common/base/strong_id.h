#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <utility>

namespace regroup {

// A value of its own type: a job's id can not be passed where a node's is asked for.
template <class Tag, class Rep>
class StrongId {
 public:
  StrongId() = default;
  explicit StrongId(Rep value) : value_(std::move(value)) {}
  const Rep& value() const { return value_; }
  StrongId Next() const requires std::is_integral_v<Rep> { return StrongId(value_ + 1); }
  bool empty() const requires(!std::is_integral_v<Rep>) { return value_.empty(); }
  friend bool operator==(const StrongId&, const StrongId&) = default;
  friend auto operator<=>(const StrongId&, const StrongId&) = default;
  friend std::ostream& operator<<(std::ostream& out, const StrongId& id) {
    return out << id.value_;
  }

 private:
  Rep value_{};
};

}  // namespace regroup

template <class Tag, class Rep>
struct std::hash<regroup::StrongId<Tag, Rep>> {
  std::size_t operator()(const regroup::StrongId<Tag, Rep>& id) const {
    return std::hash<Rep>()(id.value());
  }
};
