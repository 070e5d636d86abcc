#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/rng.h"
#include "worker/device/device.h"

namespace regroup::worker {

// A device whose streams go on when they like: at the latest when somebody awaits them, and in an
// order that a seed picks among those that their waits allow. Whoever touches its memory outside of
// them faults, as on a GPU. Of one thread, which does all work.
class TestDevice final : public Device {
 public:
  // `forgotten`: the wait that no stream is told of, by its place among all; -1: none.
  explicit TestDevice(std::uint64_t seed, int forgotten = -1)
      : rng_(seed), forgotten_(forgotten), favourite_(rng_.Below(3)), eager_(rng_.Below(3) * 8) {}

  bool IsHost() const override { return false; }
  absl::StatusOr<Arena> Allocate(MemoryKind kind, std::size_t bytes) override {
    absl::StatusOr<Arena> arena = Arena::Create(bytes);
    if (!arena.ok() || arena->size_bytes() == 0 || kind == MemoryKind::kShared || !guards_)
      return arena;
    memory_.emplace_back(arena->Take<std::byte>(0).data(), arena->size_bytes());
    Protect(memory_.back(), PROT_NONE);
    return arena;
  }
  std::unique_ptr<Stream> NewStream(StreamKind /*kind*/) override {
    return std::make_unique<Queue>(*this);
  }
  int waits() const { return waits_; }  // Which streams were told of.
  // From here on nobody faults. Before Allocate.
  void LeaveMemoryOpen() { guards_ = false; }

 private:
  class Queue final : public Stream {
   public:
    explicit Queue(TestDevice& device) : Stream(/*at_once=*/false), device_(device) {
      device_.queues_.push_back(this);
    }
    ~Queue() override { std::erase(device_.queues_, this); }

    void Wait(const Event& event) override {
      if (event.stream == nullptr || event.stream == this) return;
      if (device_.waits_++ == device_.forgotten_) return;
      for_ = event;
      Run([event] { return static_cast<const Queue*>(event.stream)->failure_; });
    }
    absl::Status Await(const Event& event) override {
      CHECK(event.stream == this);
      while (over_ < event.work) {
        if (!device_.RunOne()) return absl::InternalError("streams wait for each other");
      }
      return failure_;
    }
    bool Ready() const {
      if (work_.empty()) return false;
      const Event& event = work_.front().after;
      return event.stream == nullptr ||
             static_cast<const Queue*>(event.stream)->over_ >= event.work;
    }
    void RunFirst() {
      const std::function<absl::Status()> call = std::move(work_.front().call);
      work_.pop_front();
      if (failure_.ok()) failure_ = call();
      ++over_;
    }

   private:
    struct Work {
      std::function<absl::Status()> call;
      Event after;
    };
    void Begin(std::function<absl::Status()> call) override {
      work_.push_back({std::move(call), std::exchange(for_, Event())});
      for (std::uint64_t n = device_.rng_.Below(64) < device_.eager_ ? 3 : 0; n > 0; --n)
        (void)device_.RunOne();
    }

    TestDevice& device_;
    std::deque<Work> work_;
    std::uint64_t over_ = 0;
    Event for_;  // What the next piece of work comes after.
    absl::Status failure_;
  };

  static void Protect(std::span<std::byte> memory, int protection) {
    CHECK(mprotect(memory.data(), memory.size(), protection) == 0);
  }
  // False: none of the streams can go on.
  bool RunOne() {
    std::vector<Queue*> ready;
    for (Queue* queue : queues_) {
      if (queue->Ready()) ready.push_back(queue);
    }
    if (ready.empty()) return false;
    // Whatever it can, one of them is far ahead of the other in two of three schedules.
    std::size_t chosen = rng_.Below(ready.size());
    if (favourite_ < 2 && rng_.Below(16) > 0) chosen = favourite_ == 0 ? 0 : ready.size() - 1;
    for (const std::span<std::byte> memory : memory_) Protect(memory, PROT_READ | PROT_WRITE);
    ready[chosen]->RunFirst();
    for (const std::span<std::byte> memory : memory_) Protect(memory, PROT_NONE);
    return true;
  }

  Rng rng_;
  const int forgotten_;
  const std::uint64_t favourite_;  // The first or the last stream; 2: none.
  const std::uint64_t eager_;      // Of 64: how often work goes on before it is awaited.
  bool guards_ = true;
  int waits_ = 0;
  std::vector<Queue*> queues_;
  std::vector<std::span<std::byte>> memory_;
};

}  // namespace regroup::worker
