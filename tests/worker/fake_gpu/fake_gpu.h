#pragma once

#include <cstddef>
#include <functional>

// A CUDA runtime, an NCCL and a cuBLASLt without a GPU, as one library that tests open by dlopen:
// it exports the functions of all under their own names, and these. Streams are threads, memory is
// the host's, ranks are threads or processes that share memory by the name in an id.
//
// It is strict: what the rules of these forbid is refused and remembered, also where the real one
// would only sometimes hang or corrupt.

enum class FakeFault : int {
  kNone,
  kIdError,
  kInitError,       // Returned.
  kInitAsyncError,  // By ncclCommGetAsyncError.
  kInitHangs,       // This rank never arrives.
  kInitIsSlow,
  kSplitError,
  kSplitHangs,
  kOpHangs,            // This rank does not take part, and nothing is said: NVLink.
  kOpIsSlow,           // Takes so long on this rank.
  kOpRemoteError,      // Nobody goes on, and this rank is told: the network.
  kOpSystemError,      // Likewise, other codes.
  kOpInternalError,    //
  kOpCudaError,        // The stream, and with it the device, has failed.
  kCallError,          // Returned by the collective.
  kFailsBeforeCall,    // What was begun before it has failed, and nobody has looked since.
  kGroupEndError,      // Returned by ncclGroupEnd.
  kCallInProgress,     // So long.
  kCallInProgressFor,  // Ever.
  kCallBlocks,         // Does not return so long, though it should at once.
  kAsyncQueryError,    // ncclCommGetAsyncError itself fails.
  kAbortIsSlow,
  kAbortHangs,
  kAbortNeedsQuiet,    // It hangs while something is under way that was not revoked.
  kAbortLeavesKernel,  // It returns, and what was begun goes on.
  kRevokeError,
  kRevokeIsNotHeard,  // What was begun goes on until the abort.
};

inline constexpr int kEveryRank = -2;
struct FakeScript {
  FakeFault fault = FakeFault::kNone;
  int rank = 0;   // Who plays it; kEveryRank: all do.
  int op = 0;     // At which collective of its world communicator, from 0. Of aborts: all.
  int ms = 0;     // How long.
  int other = 0;  // A second fault of the same rank, for all ops: an abort that hangs after this.
};

enum class FakeProducts : int {
  kRight,
  kWrong,      // One number of each is another, after so many products that are right.
  kNoWay,      // No algorithm is found.
  kFails,      // When it is put on a stream, likewise.
  kNone,       // The library cannot be used.
  kNoSlope,    // Of GELU.
  kFindsNone,  // Nor is that an error.
  kBadState,   // Of what is found.
};

enum class FakeCapture : int {
  kRight,
  kCannotBegin,
  kRefusesWork,  // The first kernel fails, and with it the capture.
  kCannotEnd,
  kCannotInstantiate,
  kCannotLaunch,
};

struct FakeDim3 {
  unsigned x, y, z;
};
// What a kernel does with what its arguments are as it is asked.
using FakeKernels = std::function<void()> (*)(const void* kernel, FakeDim3 blocks, FakeDim3 threads,
                                              void** arguments, std::size_t block_bytes);

extern "C" {
void fakeGpuReset();                           // Before each test; all streams have ended.
void fakeGpuSetDevices(int count, int error);  // What cudaGetDeviceCount says.
void fakeGpuAbortOnRefusal();                  // Says it, and ends the process.
void fakeGpuSetRuntime(int version);           // CUDA's, as 13000.
void fakeGpuSetDriver(int version);            // CUDA's that it knows; 0: there is none.
void fakeGpuSetCapability(int capability);     // Of all devices: 90 is 9.0.
void fakeGpuSetMemory(std::size_t bytes);      // All that may be allocated.
void fakeGpuSetKernels(FakeKernels kernels);   // Null: there are none.
void fakeGpuPlayCapture(FakeCapture capture);
int fakeGpuCaptures();                         // So many were begun since this was asked.
int fakeGpuGraphLaunches();                    // Likewise.
void fakeGpuSayGraphs();                       // Prints of how many pieces each is.
void fakeNcclSetVersion(int version);          // Of what is opened from here on.
void fakeNcclPlay(const FakeScript* script);   // Of this process; null: nothing.
void fakeNcclRelease();                        // Whatever hangs for ever ends.
int fakeGpuRefusals(char* text, std::size_t);  // How many rules were broken, and which.
void fakeGpuForget();                          // What was refused.
int fakeGpuLive();                             // Streams, events and allocations that exist.
int fakeNcclCalls(const char* name);           // Of "ncclReduce" and so on since this was asked.
int fakeNcclComms();                           // Communicators neither aborted nor destroyed.
void fakeCublasLtSetVersion(std::size_t version);  // Of what is opened from here on.
void fakeCublasLtPlay(FakeProducts plays, int after);
void fakeCublasLtSay(int after);  // Prints that products come, and by slopes, after so many.
int fakeCublasLtLive();           // Handles, descriptions, layouts, preferences.
int fakeCublasLtCalls(const char* name);  // Of cublasLtMatmul and …AlgoGetHeuristic, likewise.
}
