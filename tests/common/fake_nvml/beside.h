#pragma once

#include <dlfcn.h>

#include <string>

namespace regroup::testing {

// Where the library is that has this function: what it is to be like is in a file beside it.
inline std::string FolderOf(void* function) {
  Dl_info info{};
  dladdr(function, &info);
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/'));
}

}  // namespace regroup::testing
