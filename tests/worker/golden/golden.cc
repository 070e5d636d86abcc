#include "tests/worker/golden/golden.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/base/check.h"
#include "worker/tensor/counter_rng.h"

namespace regroup::worker {

Golden::Golden(const std::string& name) {
  const char* elsewhere = std::getenv("REGROUP_GOLDEN_DIR");  // Where the sources are not.
  const std::string folder = elsewhere != nullptr ? elsewhere : REGROUP_GOLDEN_DIR;
  std::ifstream file(folder + "/" + name + ".safetensors", std::ios::binary);
  std::uint64_t length = 0;
  CHECK(file.read(reinterpret_cast<char*>(&length), sizeof(length)) && length < 1 << 20);
  header_.resize(length);
  CHECK(file.read(header_.data(), static_cast<std::streamsize>(length)));
  std::ostringstream rest;
  rest << file.rdbuf();
  data_ = std::move(rest).str();
}

std::vector<double> Golden::operator[](std::string_view tensor) const {
  const nlohmann::json header = nlohmann::json::parse(header_);
  const auto found = header.find(std::string(tensor));
  CHECK(found != header.end() && found->at("dtype") == "F64");
  const std::size_t begin = found->at("data_offsets").at(0), end = found->at("data_offsets").at(1);
  CHECK(begin <= end && end <= data_.size() && (end - begin) % sizeof(double) == 0);
  std::vector<double> values((end - begin) / sizeof(double));
  std::memcpy(values.data(), data_.data() + begin, end - begin);
  return values;
}

template <typename T>
std::vector<T> Given(std::string_view name, std::int64_t elements, double std, double mean) {
  const RngKey key = SeedKey(kGoldenSeed).Fold("init").Fold(name);
  std::vector<T> values;
  for (std::int64_t i = 0; i < elements; ++i) {
    values.push_back(
        static_cast<T>(mean + std * UnitBell(key.Bits(static_cast<std::uint64_t>(i)))));
  }
  return values;
}
template std::vector<float> Given<float>(std::string_view, std::int64_t, double, double);
template std::vector<double> Given<double>(std::string_view, std::int64_t, double, double);

std::vector<std::int32_t> GivenTokens(std::string_view name, std::int64_t count, int vocabulary) {
  const RngKey key = SeedKey(kGoldenSeed).Fold("tokens").Fold(name);
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<std::int32_t>(key.Bits(static_cast<std::uint64_t>(i)) %
                                               static_cast<std::uint64_t>(vocabulary)));
  }
  return tokens;
}

}  // namespace regroup::worker
