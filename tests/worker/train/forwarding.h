#pragma once

#include <span>

#include "worker/comm/communicator.h"

namespace regroup::worker {

// A communicator of which a test changes one thing.
class Forwarding : public Communicator {
 public:
  // `distant`: its tensors are said to go over a network.
  explicit Forwarding(Communicator& ranks, bool distant = false)
      : ranks_(ranks), distant_(distant) {}
  bool WaitsForNetwork() const override { return distant_; }
  int rank() const override { return ranks_.rank(); }
  int world_size() const override { return ranks_.world_size(); }
  void SetDeadline(Duration per_call) override { ranks_.SetDeadline(per_call); }
  absl::StatusOr<Tensor> AllocateShared(DType type, std::size_t count, int group) override {
    return ranks_.AllocateShared(type, count, group);
  }
  absl::Status AllReduceSum(Tensor inout) override {
    Before();
    return ranks_.AllReduceSum(inout);
  }
  absl::Status ReduceScatter(Tensor arena, std::span<const Stretch> stretches, Tensor out,
                             int group) override {
    Before();
    return ranks_.ReduceScatter(arena, stretches, out, group);
  }
  absl::Status AllGather(Tensor arena, std::span<const Stretch> stretches, Tensor out,
                         int group) override {
    Before();
    return ranks_.AllGather(arena, stretches, out, group);
  }
  absl::Status AllReduce(std::span<double> inout, Reduction reduction) override {
    Before();
    return ranks_.AllReduce(inout, reduction);
  }
  absl::Status AllReduce(std::span<std::int64_t> inout, Reduction reduction) override {
    Before();
    return ranks_.AllReduce(inout, reduction);
  }
  absl::Status Broadcast(std::span<std::byte> inout, int root) override {
    Before();
    return ranks_.Broadcast(inout, root);
  }
  absl::Status Barrier() override {
    Before();
    return ranks_.Barrier();
  }
  absl::Status Health() override { return ranks_.Health(); }
  void Abort() override { ranks_.Abort(); }

 protected:
  virtual void Before() {}  // A collective.

 private:
  Communicator& ranks_;
  const bool distant_;
};

}  // namespace regroup::worker
