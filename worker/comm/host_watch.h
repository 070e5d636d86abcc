#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/time.h"
#include "common/io/fd.h"
#include "worker/comm/host_links.h"
#include "worker/comm/shared_memory_communicator.h"

namespace regroup::worker {

// What one host and the others know of each other outside of calls: a thread of the host's first
// rank. It passes on which ranks failed, left or died, so that all ranks of all hosts hear of it at
// once, also while their first rank computes. Private to worker/comm.
//
// A rank that ends after a call is no failure of that call: what it sent may still be on its way.
// So a host that is in the middle of a call looks at failures only when it has nothing to read, and
// who has left is told with the last call that it took part in.
class HostWatch {
 public:
  // `local` is that of the first rank, and outlives this object.
  HostWatch(SharedMemoryCommunicator& local, Hosts hosts, int own, io::UniqueFd previous,
            io::UniqueFd next);
  // Tells the neighbours what they do not know yet, and that this rank leaves.
  ~HostWatch();
  HostWatch(const HostWatch&) = delete;
  HostWatch& operator=(const HostWatch&) = delete;

  // Of the calling thread: a call begins, its bytes begin to move between hosts, they are moved, it
  // is over. After EndFlow, and in all of a call that moves none between hosts, another host may
  // have left after this call while this one is still in it: nothing of others is looked at.
  void BeginCall(std::uint64_t call) { Enter(Stage::kBeforeFlow, call); }
  void BeginCallOnHost(std::uint64_t call) { Enter(Stage::kAfterFlow, call); }
  void BeginFlow(std::uint64_t call) { Enter(Stage::kFlow, call); }
  void EndFlow(std::uint64_t call) { Enter(Stage::kAfterFlow, call); }
  void EndCall(std::uint64_t call) { Enter(Stage::kIdle, call); }

  // What keeps the call in progress from being completed, or 0.
  std::uint64_t FailureWord();
  // That of a neighbour whose connection for calls has ended: what it said last, or that it is
  // gone.
  std::uint64_t AwaitVerdict(bool next);
  // The first rank that has not begun `call`, by the hosts' own answers; else the first rank of the
  // nearest host that does not answer. -1: none.
  int AwaitMissing(std::uint64_t call);
  // Readable once FailureWord may have changed; whoever polls it reads it empty.
  int wake_fd() const { return wake_caller_.get(); }

  // Any thread: the failure word of this host has changed.
  void Tell();

 private:
  enum class Stage { kIdle, kBeforeFlow, kFlow, kAfterFlow };
  struct Side {
    io::UniqueFd fd;
    int host = -1;
    bool closed = false;
    std::array<char, sizeof(ControlMessage)> partial{};
    std::size_t have = 0;
    std::string out{};  // At most kMaxQueued bytes.
  };

  void Run();
  void Enter(Stage stage, std::uint64_t call);
  // The functions below run under mutex_.
  void Read(Side& side);
  bool IsSound(const ControlMessage& message) const;
  void Handle(const ControlMessage& message, Side& from);
  void Send(const ControlMessage& message, Side& to);
  void SendToAll(const ControlMessage& message);
  static void Flush(Side& side);
  void LookAtFailures();
  void LookAtRanks();
  void Note(int rank, std::uint64_t after);
  int MissingHere(std::uint64_t call) const;
  std::uint64_t Completed() const { return stage_ == Stage::kIdle ? call_ : call_ - 1; }
  std::uint64_t LeftWord(std::uint64_t last_needed) const;
  void WakeCaller() const;

  SharedMemoryCommunicator& local_;
  const Hosts hosts_;
  const int own_;
  const int first_;  // Of this host's ranks: the rank whose thread this is.
  const int world_;
  const io::UniqueFd wake_caller_, wake_thread_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Side, 2> sides_;  // Previous and next.
  bool stop_ = false;
  Stage stage_ = Stage::kIdle;
  std::uint64_t call_ = 0;    // In progress, or the last one.
  std::uint64_t remote_ = 0;  // The first failure that another host told.
  bool told_ = false;         // All hosts know this host's failure word.
  std::uint64_t quiet_ =
      0;  // Published here about a rank that left: others find that by themselves.
  std::vector<std::uint64_t> after_;  // By rank: the last call that it takes part in.
  std::vector<int> left_;             // Ranks that left, in the order in which that was heard.
  std::uint64_t question_ = 0;
  std::vector<int> answers_;  // By host.
  std::thread thread_;
};

}  // namespace regroup::worker
