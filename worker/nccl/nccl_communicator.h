#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "worker/comm/communicator.h"
#include "worker/cuda/cuda_device.h"
#include "worker/nccl/last_words.h"
#include "worker/nccl/nccl_api.h"

namespace regroup::worker {

struct NcclOptions {
  std::string store_host;  // MASTER_ADDR; a world of one needs no store.
  std::uint16_t store_port = 0;
  std::string name = "world";  // Of this communicator within the store's generation.
  int group = 1;               // Of consecutive ranks, by which calls may divide besides the world.
  Duration init_deadline = std::chrono::seconds(60);
  Duration deadline = std::chrono::seconds(300);  // From the begin of a call to its end.
  // Until an abort has to be over: after that nothing in this process can be relied on, and `stuck`
  // is called with the reason, on another thread; by default it says so and ends the process.
  Duration abort_patience = std::chrono::seconds(5);
  std::string ras_address{};  // ChooseRasPlace. Empty: the library is not asked what it knows.
  std::function<void(const std::string&)> stuck{};
};

// Collectives of GPUs by NCCL, which sums in an order of its own: results are equal to tolerance
// under different strategies, and tensors of 16 bits are rounded at each addition.
//
// NCCL itself notices little: where GPUs see each other's memory a rank that has died leaves the
// others waiting for ever, without an error. So a thread of this class watches what has begun: it
// ends with the group of the ranks (who dies is named there), with an error that NCCL reports, and
// after `deadline`. Then what is under way is revoked, which takes effect within a second or not at
// all, all communicators are aborted together, the group is ended for every rank, and the streams
// that wait have the failure, in the words of a group's failure. The next generation makes a new
// one, by a new id.
//
// What NCCL itself knows stands before those words: one rank asks its RAS service a second before
// the deadline, as long as nothing is revoked, or at once after an error.
//
// One thread at a time is inside NCCL. Streams are those of a CudaDevice.
class NcclCommunicator final : public Collectives {
 public:
  // Collective. What is referred to outlives the communicator.
  //   kFailedPrecondition  ranks have different versions of NCCL.
  //   kInternal            NCCL failed on this rank: in which call, and what it says of that.
  // Else the failure of the group, marked as such: ranks are missing or died, named where that is
  // known; NCCL failed on another rank, in the words of that; the store does not answer.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(Group& ranks, CudaDevice& device,
                                                                  const NcclApi& api,
                                                                  const NcclOptions& options);
  // REQUIRES: what was begun is over on all ranks, as it is after a later call of the group, or
  // has failed.
  ~NcclCommunicator() override;

  // Each rank has one of its own, whatever the group.
  absl::StatusOr<Tensor> AllocateShared(DType type, std::size_t count, int group) override;
  bool WaitsForNetwork() const override { return ranks_.world_size() > 1; }
  // REQUIRES of all: the group is options.group or the world.
  void AllReduceSum(Stream& stream, Tensor inout) override;
  void ReduceScatter(Stream& stream, Tensor arena, std::span<const Stretch> stretches, Tensor out,
                     int group) override;
  void AllGather(Stream& stream, Tensor arena, std::span<const Stretch> stretches, Tensor out,
                 int group) override;

 private:
  using Clock = std::chrono::steady_clock;
  using Axis = NcclComm NcclCommunicator::*;  // Of the mesh: which of the communicators below.
  struct Pending {
    std::string what;
    std::uint64_t number;  // From 1.
    Axis axis;
    std::shared_ptr<CudaProgress> progress;
    std::uint64_t work;
    Clock::time_point end;
  };
  NcclCommunicator(Group& ranks, CudaDevice& device, const NcclApi& api, NcclOptions options)
      : ranks_(ranks), device_(device), api_(api), options_(std::move(options)) {}

  absl::Status Init();
  absl::Status BlameGroup(const absl::Status& error);
  absl::StatusOr<NcclUniqueId> ShareId();
  absl::Status Split(int color, int key, NcclComm& made);
  // `calls` are put on the stream as one piece of work, between the begin and the end of a group.
  void Begin(Stream& stream, const char* what, const Tensor& of, std::size_t elements, Axis axis,
             const std::function<void(NcclComm, void* stream)>& calls);
  void Note(NcclResult result);
  // Until the communicator has no call in progress.
  absl::Status AwaitCalls(NcclComm comm, Clock::time_point end);
  absl::Status AsyncError();
  // What first_error_ means. A communicator that has failed since the last look refuses every call:
  // then this is what that look would have found, and first_error_ is cleared, for it is about none
  // of these calls.
  absl::Status CallError(const char* what, NcclComm comm);
  absl::Status ErrorOf(NcclResult result, const char* call, NcclComm comm) const;
  void Watch();
  void Look(bool at_health);
  // What is not over, and from here on awaits EndFailure.
  std::vector<Pending> BeginFailures();
  // Begins to ask what NCCL knows of what may soon be late, if no rank has.
  void LookAhead(std::uint64_t number, Clock::time_point end);
  // Notes what a question under way has found. After an error of a collective, which comes without
  // notice, one rank asks now and the others wait for it. Takes kRasPatience at most, and what the
  // store takes.
  void EndLook(std::uint64_t number, bool late);
  absl::Status Explain(const absl::Status& why, const Pending& about);
  // Nothing more is begun; whoever awaits what is `failing` has the reason.
  void Break(const absl::Status& why, const Pending& about, std::vector<Pending> failing);
  void AbortAll();
  void Stuck(const std::string& why);
  Axis AxisOf(int group) const;
  std::vector<int> RanksOf(Axis axis) const;

  Group& ranks_;
  CudaDevice& device_;
  const NcclApi& api_;
  const NcclOptions options_;
  std::vector<Arena> arenas_;
  std::optional<LastWords> last_words_;

  // Held while inside NCCL, and while what follows is used.
  std::mutex calls_;
  NcclComm world_ = nullptr, shard_ = nullptr, replicas_ = nullptr;
  NcclResult first_error_ = NcclResult::kSuccess;  // Of the calls of one piece of work.
  std::uint64_t begun_ = 0;
  absl::Status failure_;
  struct RasLook {
    std::optional<std::uint64_t> number;  // The last that this rank has seen to be almost late.
    std::future<std::string> answer;      // Not valid: another rank asks, or it is noted.
  } look_;

  std::mutex mutex_;  // Guards what follows. Taken after calls_, if both are.
  std::condition_variable changed_;
  std::deque<Pending> pending_;
  std::optional<Clock::time_point> inside_since_;
  bool stop_ = false;
  std::thread watcher_;
};

}  // namespace regroup::worker
