#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace regroup::worker {

// Where a library of NVIDIA's is looked for, in that order, with wildcards: what the loader finds,
// that of the toolkit ($CUDA_HOME, $CUDA_PATH), that of an installed PyTorch ($VIRTUAL_ENV,
// $CONDA_PREFIX, the user's, the system's), in whose nvidia/ it is one of `packages`.
std::vector<std::string> LibraryPlaces(const std::string& library,
                                       std::initializer_list<const char*> packages);
// The files that are there; a bare name is left to the loader.
std::vector<std::string> FilesAt(const std::string& place);

void* FindSymbol(void* library, const char* name);

// A function of a library that dlopen has opened; false: it has none of that name.
template <typename Function>
bool BindSymbol(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(FindSymbol(library, name));
  return function != nullptr;
}

// What `open` makes of the first library in these places that it can use. Not found names all of
// them; where there is one but of no use, what was said of the first such, or else what the loader
// said of the first that it cannot load.
template <typename Open>
auto FindLibrary(const char* name, const std::vector<std::string>& places, const Open& open)
    -> decltype(open(name)) {
  absl::Status unusable, unloadable;  // Say more than that others are not there.
  for (const std::string& place : places) {
    for (const std::string& path : FilesAt(place)) {
      auto found = open(path);
      if (found.ok()) return found;
      const bool is_there = path.find('/') != std::string::npos;
      if (!absl::IsNotFound(found.status())) {
        unusable.Update(found.status());
      } else if (is_there) {
        unloadable.Update(absl::FailedPreconditionError(found.status().message()));
      }
    }
  }
  unusable.Update(unloadable);
  if (!unusable.ok()) return unusable;
  return absl::NotFoundError(
      absl::StrCat("no ", name, " was found, neither as ", absl::StrJoin(places, " nor as ")));
}

}  // namespace regroup::worker
