#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace regroup::worker {

// Answers that make_golden.py wrote in fp64, and the inputs that belong to them.
class Golden {
 public:
  // Ends the test program if the file is missing or not what make_golden.py writes.
  explicit Golden(const std::string& name);
  // Ends the test program if there is no such tensor.
  std::vector<double> operator[](std::string_view tensor) const;

 private:
  std::string header_, data_;
};

inline constexpr std::uint64_t kGoldenSeed = 7;

// make_golden.py's given() and tokens().
template <typename T>
std::vector<T> Given(std::string_view name, std::int64_t elements, double std = 1, double mean = 0);
std::vector<std::int32_t> GivenTokens(std::string_view name, std::int64_t count, int vocabulary);

struct Deviation {
  double norm = 0;     // |actual - expected| / |expected| in the 2-norm.
  double element = 0;  // The same with the largest element of each.
};

// Infinite if sizes differ or anything is not a number.
template <typename T, typename U>
Deviation DeviationOf(const std::vector<T>& actual, const std::vector<U>& expected) {
  if (actual.size() != expected.size()) return {HUGE_VAL, HUGE_VAL};
  double difference = 0, norm = 0, farthest = 0, largest = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double a = static_cast<double>(actual[i]), e = static_cast<double>(expected[i]);
    difference += (a - e) * (a - e);
    norm += e * e;
    farthest = std::fmax(farthest, std::fabs(a - e));
    largest = std::fmax(largest, std::fabs(e));
  }
  if (std::isnan(difference) || std::isnan(norm)) return {HUGE_VAL, HUGE_VAL};
  if (norm == 0) return {std::sqrt(difference), farthest};
  return {std::sqrt(difference / norm), farthest / largest};
}

// The worse of both: what gradients and layers are judged by.
template <typename T, typename U>
double RelativeError(const std::vector<T>& actual, const std::vector<U>& expected) {
  const Deviation deviation = DeviationOf(actual, expected);
  return std::fmax(deviation.norm, deviation.element);
}

}  // namespace regroup::worker
