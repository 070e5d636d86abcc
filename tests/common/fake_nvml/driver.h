#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace regroup::testing {

// A host with that driver, and GPUs as fake_nvml.cc reads them. Its library is a file of its own,
// so that two tests of one program have two.
class FakeDriver {
 public:
  explicit FakeDriver(const std::string& gpus) {
    std::string folder = std::filesystem::temp_directory_path() / "regroup-nvml-XXXXXX";
    folder_ = ::mkdtemp(folder.data());
    std::filesystem::copy_file(REGROUP_FAKE_NVML, library());
    Set(gpus);
  }
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;
  ~FakeDriver() { std::filesystem::remove_all(folder_); }

  void Set(const std::string& gpus) const {
    std::ofstream(folder_ / "next") << gpus;
    std::filesystem::rename(folder_ / "next", folder_ / "gpus");
  }
  std::string library() const { return folder_ / "libnvidia-ml.so.1"; }

 private:
  std::filesystem::path folder_;
};

}  // namespace regroup::testing
