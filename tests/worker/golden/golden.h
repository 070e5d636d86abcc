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

// |actual - expected| / |expected| in the 2-norm; infinite if sizes differ or anything is not a
// number.
template <typename T, typename U>
double RelativeError(const std::vector<T>& actual, const std::vector<U>& expected) {
  if (actual.size() != expected.size()) return HUGE_VAL;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double a = static_cast<double>(actual[i]), e = static_cast<double>(expected[i]);
    difference += (a - e) * (a - e);
    norm += e * e;
  }
  const double error = norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
  return std::isnan(error) ? HUGE_VAL : error;
}

}  // namespace regroup::worker
