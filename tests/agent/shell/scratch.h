#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace regroup::agent::testing {

// A folder of its own for one test, on a tmpfs where run directories have to be; gone afterwards.
class Scratch {
 public:
  Scratch() {
    std::string name = "/dev/shm/regroup-test.XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  Scratch(const Scratch&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace regroup::agent::testing
