#include "worker/cuda/libraries.h"

#include <dlfcn.h>
#include <glob.h>

#include "absl/strings/str_cat.h"
#include "common/config/env.h"

namespace regroup::worker {

std::vector<std::string> LibraryPlaces(const std::string& library,
                                       std::initializer_list<const char*> packages) {
  std::vector<std::string> places = {library};
  const auto toolkit = [&](const std::string& root) {
    places.push_back(absl::StrCat(root, "/lib64/", library));
    places.push_back(absl::StrCat(root, "/lib/", library));
  };
  const auto python = [&](const std::string& root) {
    for (const char* folder : {"site-packages", "dist-packages"}) {
      for (const char* package : packages) {
        places.push_back(
            absl::StrCat(root, "/lib/python3*/", folder, "/nvidia/", package, "/lib/", library));
      }
    }
  };
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const auto root = GetEnv(variable)) toolkit(*root);
  }
  toolkit("/usr/local/cuda");
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const auto root = GetEnv(variable)) python(*root);
  }
  if (const auto home = GetEnv("HOME")) python(absl::StrCat(*home, "/.local"));
  python("/usr/local");
  python("/usr");
  return places;
}

std::vector<std::string> FilesAt(const std::string& place) {
  if (place.find('/') == std::string::npos) return {place};
  glob_t found{};
  std::vector<std::string> paths;
  if (glob(place.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

void* FindSymbol(void* library, const char* name) { return dlsym(library, name); }

}  // namespace regroup::worker
