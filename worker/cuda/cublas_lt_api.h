#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace regroup::worker {

// What is used of cuBLASLt, under declarations of our own: names, order of arguments, numbers and
// layouts are those of <cublasLt.h> 12 and 13. The library is looked for when a training starts.
inline constexpr int kCublasSuccess = 0;
inline constexpr int kCublasCompute32F = 68;
inline constexpr int kCudaR32F = 0, kCudaR16F = 2, kCudaR16BF = 14;  // cudaDataType_t.
inline constexpr std::int32_t kCublasOpN = 0, kCublasOpT = 1;
inline constexpr std::uint32_t kCublasLtEpilogueDefault = 1, kCublasLtEpilogueBias = 4,
                               kCublasLtEpilogueDGelu = 192;
// Sums of parts are floats, added in one order: equal bits every time.
inline constexpr std::uint32_t kCublasLtReductionComputeType = 2;
// Attributes of a product.
inline constexpr int kCublasLtDescTransA = 3, kCublasLtDescTransB = 4, kCublasLtDescEpilogue = 7,
                     kCublasLtDescBiasPointer = 8, kCublasLtDescAuxPointer = 11,
                     kCublasLtDescAuxLd = 12;
// Of what an algorithm may do.
inline constexpr int kCublasLtPrefMaxWorkspaceBytes = 1, kCublasLtPrefReductionSchemeMask = 3,
                     kCublasLtPrefMinAlignmentABytes = 5, kCublasLtPrefMinAlignmentBBytes = 6,
                     kCublasLtPrefMinAlignmentCBytes = 7, kCublasLtPrefMinAlignmentDBytes = 8;

struct CublasLtAlgo {
  std::uint64_t data[8] = {};
};
struct CublasLtHeuristic {
  CublasLtAlgo algo;
  std::size_t workspace_bytes = 0;
  int state = 0;
  float waves = 0;
  int reserved[4] = {};
};

using CublasLtHandle = struct CublasLtHandleOpaque*;
using CublasLtDesc = struct CublasLtDescOpaque*;      // cublasLtMatmulDesc_t.
using CublasLtLayout = struct CublasLtLayoutOpaque*;  // Of a matrix that lies column by column.
using CublasLtPreference = struct CublasLtPreferenceOpaque*;

struct CublasLtApi {
  std::string path;
  std::size_t version = 0;

  int (*create)(CublasLtHandle*) = nullptr;  // Of the GPU that the thread uses.
  int (*destroy)(CublasLtHandle) = nullptr;
  int (*desc_create)(CublasLtDesc*, int compute_type, int scale_type) = nullptr;
  int (*desc_destroy)(CublasLtDesc) = nullptr;
  int (*desc_set)(CublasLtDesc, int attribute, const void*, std::size_t bytes) = nullptr;
  int (*layout_create)(CublasLtLayout*, int type, std::uint64_t rows, std::uint64_t columns,
                       std::int64_t leading) = nullptr;
  int (*layout_destroy)(CublasLtLayout) = nullptr;
  int (*preference_create)(CublasLtPreference*) = nullptr;
  int (*preference_destroy)(CublasLtPreference) = nullptr;
  int (*preference_set)(CublasLtPreference, int attribute, const void*,
                        std::size_t bytes) = nullptr;
  int (*get_heuristic)(CublasLtHandle, CublasLtDesc, CublasLtLayout a, CublasLtLayout b,
                       CublasLtLayout c, CublasLtLayout d, CublasLtPreference, int wanted,
                       CublasLtHeuristic*, int* found) = nullptr;
  // d = alpha · a · b + beta · c, the two numbers being the host's, which are read before it
  // returns.
  int (*matmul)(CublasLtHandle, CublasLtDesc, const void* alpha, const void* a, CublasLtLayout,
                const void* b, CublasLtLayout, const void* beta, const void* c, CublasLtLayout,
                void* d, CublasLtLayout, const CublasLtAlgo*, void* workspace, std::size_t bytes,
                void* stream) = nullptr;
  const char* (*get_status_string)(int) = nullptr;
};

std::string CublasLtVersionName(std::size_t version);  // "13.1.0".
inline constexpr std::size_t kOldestCublasLt = 120000;

// Opens a library, which stays open as long as the process.
//   kNotFound            no such file, or it needs another that is not there.
//   kFailedPrecondition  older than kOldestCublasLt, or a function is missing.
absl::StatusOr<CublasLtApi> OpenCublasLt(const std::string& path);

// Where a library is looked for (LibraryPlaces): that of 13 first.
std::vector<std::string> CublasLtPlaces();
absl::StatusOr<CublasLtApi> FindCublasLt(const std::vector<std::string>& places = CublasLtPlaces());

}  // namespace regroup::worker
