#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>

namespace regroup::agent::testing {

// A folder of its own for one test, on a tmpfs where run directories have to be; gone afterwards.
class Scratch {
 public:
  Scratch() {
    std::string name = "/dev/shm/regroup-test.XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  // A shim that ends may make a file of output where one was just removed.
  ~Scratch() {
    std::error_code error;
    for (int tries = 0; tries < 100; ++tries) {
      std::filesystem::remove_all(path_, error);
      if (!error) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ADD_FAILURE() << path_ << ": " << error.message();
  }
  Scratch(const Scratch&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace regroup::agent::testing
