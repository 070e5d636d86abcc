#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/tensor/arena.h"

namespace regroup::worker {

class Stream;

// What a stream had been told to do when this was recorded. The default one is over.
struct Event {
  Stream* stream = nullptr;
  std::uint64_t work = 0;  // So many pieces.
};

// Pieces of work of one device. Each begins once those before it on its stream are over; nothing
// else is ordered but by Wait. After a piece that failed none is begun any more, neither on its
// stream nor on those that wait for it, and whoever awaits one of them is told of the failure. What
// a piece uses stays as it is until it is over. Used by one thread, but for Await of an event of a
// stream that does not do its work at once.
class Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // `work` is called by the host, in order with the rest. It returns nothing or an absl::Status.
  template <typename Work>
  void Run(const Work& work) {
    if (!at_once_) {
      NextPiece();
      Begin([work] { return Result(work); });
    } else if (failure_.ok()) {
      if (absl::Status status = Result(work); !status.ok()) failure_ = std::move(status);
    }
  }
  // Either may be memory of the device or of the host. They do not overlap.
  virtual void Copy(void* to, const void* from, std::size_t bytes);
  virtual void Zero(void* to, std::size_t bytes);

  // What was begun goes to the device now, which a stream may put off until then, until anything is
  // recorded, or until it has to.
  virtual void Submit() {}
  virtual Event Record() { return {this, begun_}; }
  // What is begun from here on waits for that. An event of this stream is none to wait for.
  virtual void Wait(const Event& event);
  // Until what was recorded, of this stream, is over, and what it has written can be read. The
  // first failure so far.
  virtual absl::Status Await(const Event& event) = 0;
  absl::Status Await() { return Await(Record()); }

 protected:
  // `at_once`: what is begun is over when Run returns, by the thread that called it.
  explicit Stream(bool at_once) : at_once_(at_once) {}
  virtual void Begin(std::function<absl::Status()> work) = 0;
  const absl::Status& failure_at_once() const { return failure_; }
  void NextPiece() { ++begun_; }

 private:
  template <typename Work>
  static absl::Status Result(const Work& work) {
    if constexpr (std::is_void_v<std::invoke_result_t<const Work&>>) {
      work();
      return absl::OkStatus();
    } else {
      return work();
    }
  }

  const bool at_once_;
  std::uint64_t begun_ = 0;
  absl::Status failure_;  // Of what was done at once.
};

enum class MemoryKind : std::uint8_t {
  kDevice,  // The host may not touch it: streams copy it from and to elsewhere.
  kShared,  // Of the host, and the device reads and writes it too. Results that the host awaits.
};

enum class StreamKind : std::uint8_t {
  kCompute,
  kMove,  // Goes on beside what computes: for collectives that wait for other ranks.
};

// What computes, and its memory. Outlives its streams and arenas.
class Device {
 public:
  virtual ~Device() = default;
  // Its memory is the host's too, which may touch whatever no stream works on.
  virtual bool IsHost() const = 0;
  // Zeroed. Resource exhausted, with the size.
  virtual absl::StatusOr<Arena> Allocate(MemoryKind kind, std::size_t bytes) = 0;
  // What streams copy from and to that memory of the host goes as fast as it can, until Unpin;
  // false: it goes as it did.
  virtual bool Pin(void* /*memory*/, std::size_t /*bytes*/) { return false; }
  virtual void Unpin(void* /*memory*/) {}
  // The end of a stream waits for the piece that is under way, and begins none.
  virtual std::unique_ptr<Stream> NewStream(StreamKind kind) = 0;
};

}  // namespace regroup::worker
