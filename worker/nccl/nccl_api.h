#pragma once

#include <climits>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace regroup::worker {

// What is used of NCCL, under declarations of our own: names, order of arguments, numbers and
// layouts are those of <nccl.h> 2.18 to 2.30. The library is looked for when a training starts.
enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,  // The only one that leaves a communicator usable.
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
enum class NcclType : int { kFloat16 = 6, kFloat32 = 7, kBFloat16 = 9 };
inline constexpr int kNcclSum = 0;

struct NcclUniqueId {
  char bytes[128];
};
using NcclComm = struct NcclCommOpaque*;

// As of 2.28; a library reads as much of it as `size` says, and what it knows of that.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 0;
  int blocking = INT_MIN;  // INT_MIN: as by default.
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int traffic_class = INT_MIN;  // From here on since 2.27.
  const char* comm_name = nullptr;
  int collnet_enable = INT_MIN;
  int cta_policy = INT_MIN;
  int shrink_share = INT_MIN;
  int nvls_ctas = INT_MIN;
  int n_channels_per_net_peer = INT_MIN;  // From here on since 2.28.
  int nvlink_centric_sched = INT_MIN;
};
inline constexpr std::size_t kNcclConfigBytes218 = offsetof(NcclConfig, traffic_class);
inline constexpr std::size_t kNcclConfigBytes227 = offsetof(NcclConfig, n_channels_per_net_peer);

constexpr int NcclVersion(int major, int minor, int patch) {
  return major * 10000 + minor * 100 + patch;
}
std::string NcclVersionName(int version);  // "2.28.9".
// Splits, and says what went wrong on other threads.
inline constexpr int kOldestNccl = NcclVersion(2, 18, 1);

struct NcclApi {
  std::string path;
  int version = 0;

  NcclResult (*get_unique_id)(NcclUniqueId*) = nullptr;
  NcclResult (*comm_init_rank_config)(NcclComm*, int ranks, NcclUniqueId, int rank,
                                      NcclConfig*) = nullptr;
  NcclResult (*comm_split)(NcclComm, int color, int key, NcclComm*, NcclConfig*) = nullptr;
  NcclResult (*comm_get_async_error)(NcclComm, NcclResult*) = nullptr;
  NcclResult (*comm_finalize)(NcclComm) = nullptr;
  NcclResult (*comm_destroy)(NcclComm) = nullptr;
  NcclResult (*comm_abort)(NcclComm) = nullptr;
  NcclResult (*comm_revoke)(NcclComm, int flags) = nullptr;  // Null before 2.28.7.
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  NcclResult (*all_reduce)(const void*, void*, std::size_t, NcclType, int op, NcclComm,
                           void* stream) = nullptr;
  NcclResult (*reduce)(const void*, void*, std::size_t, NcclType, int op, int root, NcclComm,
                       void* stream) = nullptr;
  NcclResult (*broadcast)(const void*, void*, std::size_t, NcclType, int root, NcclComm,
                          void* stream) = nullptr;
  NcclResult (*reduce_scatter)(const void*, void*, std::size_t each, NcclType, int op, NcclComm,
                               void* stream) = nullptr;
  NcclResult (*all_gather)(const void*, void*, std::size_t each, NcclType, NcclComm,
                           void* stream) = nullptr;
  const char* (*get_error_string)(NcclResult) = nullptr;
  const char* (*get_last_error)(NcclComm) = nullptr;

  // Without blocking, and nothing shared with communicators that come of it; as much as the
  // version knows.
  NcclConfig Config() const;
};

// Opens a library, which stays open as long as the process.
//   kNotFound            no such file, or it needs another that is not there.
//   kFailedPrecondition  older than kOldestNccl, or a function of its version is missing.
absl::StatusOr<NcclApi> OpenNccl(const std::string& path);

// Where a library is looked for (LibraryPlaces).
std::vector<std::string> NcclPlaces();
// The first in these places that can be opened. kNotFound names all of them; where there is one but
// of no use, kFailedPrecondition says why (FindLibrary).
absl::StatusOr<NcclApi> FindNccl(const std::vector<std::string>& places = NcclPlaces());

}  // namespace regroup::worker
