#include "worker/nccl/nccl_api.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/cuda/libraries.h"

namespace regroup::worker {

std::string NcclVersionName(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

NcclConfig NcclApi::Config() const {
  NcclConfig config;
  config.size = version >= NcclVersion(2, 28, 0)   ? sizeof(NcclConfig)
                : version >= NcclVersion(2, 27, 0) ? kNcclConfigBytes227
                                                   : kNcclConfigBytes218;
  // That of the layout, which a newer library takes too.
  config.version =
      static_cast<unsigned>(config.size == sizeof(NcclConfig)    ? NcclVersion(2, 28, 0)
                            : config.size == kNcclConfigBytes227 ? NcclVersion(2, 27, 0)
                                                                 : NcclVersion(2, 18, 0));
  config.blocking = 0;
  config.split_share = 0;
  if (config.size >= kNcclConfigBytes227) config.shrink_share = 0;
  return config;
}

absl::StatusOr<NcclApi> OpenNccl(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::NotFoundError(dlerror());
  NcclApi api;
  api.path = path;
  NcclResult (*get_version)(int*) = nullptr;
  if (!BindSymbol(library, "ncclGetVersion", get_version) ||
      get_version(&api.version) != NcclResult::kSuccess) {
    return absl::FailedPreconditionError(absl::StrCat(path, " does not say its version of NCCL"));
  }
  if (api.version < kOldestNccl) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is NCCL ",
                                                      NcclVersionName(api.version), "; ",
                                                      NcclVersionName(kOldestNccl), " is needed"));
  }
  std::vector<const char*> missing;
  const auto bind = [&](const char* name, auto& function) {
    if (!BindSymbol(library, name, function)) missing.push_back(name);
  };
  bind("ncclGetUniqueId", api.get_unique_id);
  bind("ncclCommInitRankConfig", api.comm_init_rank_config);
  bind("ncclCommSplit", api.comm_split);
  bind("ncclCommGetAsyncError", api.comm_get_async_error);
  bind("ncclCommFinalize", api.comm_finalize);
  bind("ncclCommDestroy", api.comm_destroy);
  bind("ncclCommAbort", api.comm_abort);
  bind("ncclGroupStart", api.group_start);
  bind("ncclGroupEnd", api.group_end);
  bind("ncclAllReduce", api.all_reduce);
  bind("ncclReduce", api.reduce);
  bind("ncclBroadcast", api.broadcast);
  bind("ncclReduceScatter", api.reduce_scatter);
  bind("ncclAllGather", api.all_gather);
  bind("ncclGetErrorString", api.get_error_string);
  bind("ncclGetLastError", api.get_last_error);
  if (api.version >= NcclVersion(2, 28, 7)) bind("ncclCommRevoke", api.comm_revoke);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(path, ", NCCL ", NcclVersionName(api.version),
                                                      ", has no ", absl::StrJoin(missing, ", ")));
  }
  return api;
}

std::vector<std::string> NcclPlaces() { return LibraryPlaces("libnccl.so.2", {"nccl"}); }

absl::StatusOr<NcclApi> FindNccl(const std::vector<std::string>& places) {
  return FindLibrary("NCCL", places, OpenNccl);
}

}  // namespace regroup::worker
