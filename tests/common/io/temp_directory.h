#pragma once

#include <cstdlib>
#include <string>

#include "common/base/check.h"
#include "common/io/files.h"

namespace regroup::io {

// A folder of its own, removed with everything in it.
class TempDirectory {
 public:
  explicit TempDirectory(const std::string& parent = "/tmp") {
    std::string name = parent + "/regroup-test-XXXXXX";
    CHECK(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TempDirectory() { RemoveTree(path_).IgnoreError(); }
  TempDirectory(const TempDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace regroup::io
