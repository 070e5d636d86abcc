#include "worker/cuda/cublas_lt_api.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/cuda/libraries.h"

namespace regroup::worker {

std::string CublasLtVersionName(std::size_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusOr<CublasLtApi> OpenCublasLt(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::NotFoundError(dlerror());
  CublasLtApi api;
  api.path = path;
  std::vector<const char*> missing;
  const auto bind = [&](const char* name, auto& function) {
    if (!BindSymbol(library, name, function)) missing.push_back(name);
  };
  std::size_t (*get_version)() = nullptr;
  bind("cublasLtGetVersion", get_version);
  bind("cublasLtCreate", api.create);
  bind("cublasLtDestroy", api.destroy);
  bind("cublasLtMatmulDescCreate", api.desc_create);
  bind("cublasLtMatmulDescDestroy", api.desc_destroy);
  bind("cublasLtMatmulDescSetAttribute", api.desc_set);
  bind("cublasLtMatrixLayoutCreate", api.layout_create);
  bind("cublasLtMatrixLayoutDestroy", api.layout_destroy);
  bind("cublasLtMatmulPreferenceCreate", api.preference_create);
  bind("cublasLtMatmulPreferenceDestroy", api.preference_destroy);
  bind("cublasLtMatmulPreferenceSetAttribute", api.preference_set);
  bind("cublasLtMatmulAlgoGetHeuristic", api.get_heuristic);
  bind("cublasLtMatmul", api.matmul);
  bind("cublasLtGetStatusString", api.get_status_string);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " has no ", absl::StrJoin(missing, ", ")));
  }
  api.version = get_version();
  if (api.version >= kOldestCublasLt) return api;
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is cuBLASLt ", CublasLtVersionName(api.version), "; ",
                   CublasLtVersionName(kOldestCublasLt), " is needed"));
}

std::vector<std::string> CublasLtPlaces() {
  std::vector<std::string> places = LibraryPlaces("libcublasLt.so.13", {"cu13", "cublas"});
  for (std::string& place : LibraryPlaces("libcublasLt.so.12", {"cublas"}))
    places.push_back(std::move(place));
  return places;
}

absl::StatusOr<CublasLtApi> FindCublasLt(const std::vector<std::string>& places) {
  return FindLibrary("cuBLASLt", places, OpenCublasLt);
}

}  // namespace regroup::worker
