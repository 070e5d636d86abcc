#pragma once

// Replies to readers on their way. A reply is serialised once for all who get it, and its bytes are
// counted until the last of them has taken it: readers that read slowly, or not at all, must not
// cost their number times a list of 10,000 jobs. Thread-safe.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "common/base/ids.h"
#include "common/base/time.h"
#include "launcher/coordinator/shell/call_server.h"

namespace regroup::coordinator {

// From here on nothing new is read until some of it was taken; one reply may go beyond.
inline constexpr std::uint64_t kMaxReplyBytesInFlight = 4u << 20;
// A reader that takes longer than this is cut once others are kept from reading.
inline constexpr Duration kTakeLimit = std::chrono::seconds(5);
// Whose reply is still there so long after the cut keeps its connection from closing.
inline constexpr Duration kCutLimit = std::chrono::seconds(2);
// One that goes sooner may have given up before there was one.
inline constexpr Duration kTakeTime = std::chrono::milliseconds(500);

class ReadReplies {
 public:
  class Reply;
  // Counted until the last slice of it is gone.
  std::shared_ptr<Reply> Add(std::string bytes);
  static grpc::Slice SliceOf(const std::shared_ptr<Reply>& reply);
  bool Full() const { return *in_flight_bytes_ >= kMaxReplyBytesInFlight; }

  // Brackets the time in which a call sends its reply. REQUIRES: `taken_by` lives until Sent.
  void Sending(CallId call, ServerCall& taken_by, Instant now);
  void Sent(CallId call);
  // The peer, as gRPC named it, of a caller that has gone, or was cut, and had time to take its
  // reply.
  std::optional<std::string> LeftBy(CallId call, Instant now);
  struct Slow {
    int cut = 0;
    std::set<std::string> stuck;  // Peers of calls that were cut before. Each is named once.
  };
  // REQUIRES: Full.
  Slow CutSlow(Instant now);

 private:
  struct Taker {
    ServerCall* call = nullptr;
    std::string peer;  // Of a connection that is over it is not known any more.
    Instant since{};
    bool cut = false;
  };
  // Shared with the replies: gRPC drops their buffers when it likes.
  const std::shared_ptr<std::atomic<std::uint64_t>> in_flight_bytes_ =
      std::make_shared<std::atomic<std::uint64_t>>(0);
  std::mutex mutex_;
  std::map<CallId, Taker> takers_;         // Guarded by mutex_.
  std::map<std::string, Instant> cut_at_;  // Likewise: of peers that were not named yet.
};

}  // namespace regroup::coordinator
