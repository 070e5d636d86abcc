#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/cuda/cuda_api.h"
#include "worker/cuda/products.h"
#include "worker/cuda/repeats.h"
#include "worker/device/device.h"

namespace regroup::worker {

// How far a stream has come. Any thread; outlives the stream, whose last piece is over by then.
class CudaProgress {
 public:
  explicit CudaProgress(const CudaApi& api) : api_(api) {}
  ~CudaProgress();
  CudaProgress(const CudaProgress&) = delete;
  CudaProgress& operator=(const CudaProgress&) = delete;

  // A host function may ask for and note a failure: CUDA is never called under the lock of that.
  absl::Status failure() const;
  void Fail(absl::Status failure);  // The first stays.

  // So many pieces were begun, and this comes behind them on the stream.
  void Record(CudaStreamHandle stream, std::uint64_t work);
  // `stream` goes on once so many pieces, which were recorded, are over.
  void LetWait(CudaStreamHandle stream, std::uint64_t work);
  bool IsOver(std::uint64_t work);
  // Over, and no failure is on its way.
  bool IsSettled(std::uint64_t work);
  // CUDA itself has failed: nothing is done any more, so all pieces are over.
  void Break(absl::Status failure);

  // For who watches over pieces that may never be over: two steps, so that whoever awaits them
  // learns of the failure once all that belongs to it is done. False: these are over, so they can
  // no longer fail. True: nothing is settled until EndFailure, which is called once for each.
  bool BeginFailure(std::uint64_t work);
  void EndFailure(absl::Status failure);

 private:
  struct Mark {
    std::uint64_t work;
    CudaEventHandle event;
  };
  // Forgets marks that are over.
  bool IsOverLocked(std::uint64_t work);
  void BreakLocked(absl::Status failure);

  const CudaApi& api_;
  mutable std::mutex failure_mutex_;  // Guards failure_. Taken after mutex_, if both are.
  absl::Status failure_;
  std::mutex mutex_;                   // Guards all that follows.
  std::uint64_t over_ = 0;             // Pieces.
  std::deque<Mark> marks_;             // Not seen to be over, oldest first.
  std::vector<CudaEventHandle> free_;  // To be recorded again.
  bool broken_ = false;
  int failing_ = 0;
};

// A stream of a GPU. Work that other libraries put on `handle()` is counted by Began(). What Run is
// given the host calls between pieces, on a thread of the driver, and it may not call CUDA.
//
// Kernels, products and zeros are put off until Submit, an event, other work or kMostDeferred, so
// that those that come again and again do so as one graph (repeats.h).
//
// CUDA's own queue of a stream is bounded, and whoever finds it full waits inside CUDA, whatever
// else happens. So no more than kMostAhead pieces are under way: who begins another waits here
// until some are over, or the stream has failed.
//
// What was begun before a failure was known may still run, since a GPU is not asked in between:
// whoever must not go on after one awaits the stream first.
class CudaStream final : public Stream {
 public:
  static constexpr std::uint64_t kMostAhead =
      256;  // CUDA has room for about 1,000, events included.
  static constexpr std::size_t kMostDeferred = 64;

  // `products`, if any, outlive it, and have `workspace` on it.
  // Without `graphs` each piece comes by itself.
  explicit CudaStream(const CudaApi& api, CublasLt* products = nullptr, Arena workspace = {},
                      bool graphs = true);
  ~CudaStream() override;

  void Copy(void* to, const void* from, std::size_t bytes) override;
  void Zero(void* to, std::size_t bytes) override;
  // A __global__ function of one argument, by so many blocks of so many threads which share so many
  // bytes. The argument is copied; bytes of it that mean nothing are equal for equal ones, or it
  // comes as one that differs.
  void Launch(const void* kernel, CudaDim3 blocks, CudaDim3 threads, std::size_t block_bytes,
              std::span<const std::byte> argument);
  // Work of another library on handle(), whose failure is the stream's; see Repeats::Launch.
  void Defer(const std::string& likeness, std::function<absl::Status()> put);
  void Submit() override;
  Event Record() override;
  // REQUIRES: of a CudaStream of this device.
  void Wait(const Event& event) override;
  using Stream::Await;
  // Also of the failures of streams that this one has waited for.
  absl::Status Await(const Event& event) override;

  CudaStreamHandle handle() const { return handle_; }
  // Before a piece of work of another library; false: the stream has failed, and does none.
  bool MakeRoom();
  void Began() { NextPiece(); }  // A piece of work was put on handle().
  const std::shared_ptr<CudaProgress>& progress() const { return progress_; }
  CublasLt* products() const { return products_; }  // Null: own kernels multiply.
  std::span<std::byte> workspace() const { return workspace_; }

 private:
  struct Piece;
  // A piece of what may come again. `likeness` begins with what no other kind's does.
  void Put(const std::string& likeness, Repeats::Piece piece);
  void Begin(std::function<absl::Status()> work) override;
  void Check(int error, const char* call);
  // `begun`: so many pieces are on handle(), and there is to be room for one, and so many more.
  bool KeepRoom(std::uint64_t begun, std::uint64_t more = 0);

  const CudaApi& api_;
  std::uint64_t marked_ = 0;  // So many pieces had begun when it was last looked for room.
  const std::shared_ptr<CudaProgress> progress_;
  std::vector<std::shared_ptr<CudaProgress>> sources_;  // Of streams that it has waited for.
  CudaStreamHandle handle_ = nullptr;                   // Null after a failure to make it.
  CublasLt* const products_;
  Arena arena_;
  std::span<std::byte> workspace_;                        // All of arena_.
  std::unordered_map<const void*, std::size_t> allowed_;  // A kernel's memory of a block.
  Repeats repeats_;
  std::vector<Repeats::Piece> deferred_;
  std::string likeness_;  // Of all of them.
};

// A GPU. Memory for the host and the device is pinned. Nothing waits for the whole device. A thread
// that uses it or its streams has made it, or calls Use() first.
class CudaDevice final : public Device {
 public:
  // `api` outlives the device. Unavailable, with what the runtime says: there is no such GPU.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(const CudaApi& api, int ordinal);

  bool IsHost() const override { return false; }
  absl::StatusOr<Arena> Allocate(MemoryKind kind, std::size_t bytes) override;
  bool Pin(void* memory, std::size_t bytes) override;
  void Unpin(void* memory) override;
  std::unique_ptr<Stream> NewStream(StreamKind kind) override;
  // Who multiplies on its streams for computing that are made from here on, each of which then has
  // memory for it; null: own kernels do.
  void SetProducts(std::unique_ptr<CublasLt> products) { products_ = std::move(products); }
  CublasLt* products() const { return products_.get(); }
  // Whether its streams that are made from here on take what comes again as graphs.
  void UseGraphs(bool uses) { graphs_ = uses; }
  // What the calling thread asks of CUDA is meant for this GPU.
  absl::Status Use() const;
  const CudaApi& api() const { return api_; }

 private:
  CudaDevice(const CudaApi& api, int ordinal) : api_(api), ordinal_(ordinal) {}

  const CudaApi& api_;
  const int ordinal_;
  std::unique_ptr<CublasLt> products_;
  bool graphs_ = true;
};

}  // namespace regroup::worker
