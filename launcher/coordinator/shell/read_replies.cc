#include "launcher/coordinator/shell/read_replies.h"

#include <iterator>
#include <utility>

namespace regroup::coordinator {
namespace {

// gRPC may write as it cancels, and others wait for the lock meanwhile. The rest has its turn when
// the next one asks.
constexpr int kMostCutAtOnce = 16;
constexpr Duration kCutMemory = std::chrono::seconds(30);

}  // namespace

class ReadReplies::Reply {
 public:
  Reply(std::string bytes, std::shared_ptr<std::atomic<std::uint64_t>> in_flight)
      : bytes_(std::move(bytes)), in_flight_(std::move(in_flight)) {
    *in_flight_ += bytes_.size();
  }
  ~Reply() { *in_flight_ -= bytes_.size(); }
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
  const std::shared_ptr<std::atomic<std::uint64_t>> in_flight_;
};

std::shared_ptr<ReadReplies::Reply> ReadReplies::Add(std::string bytes) {
  return std::make_shared<Reply>(std::move(bytes), in_flight_bytes_);
}

grpc::Slice ReadReplies::SliceOf(const std::shared_ptr<Reply>& reply) {
  using Owner = std::shared_ptr<Reply>;
  return grpc::Slice(
      reply->bytes().data(), reply->bytes().size(),
      [](void* owner) { delete static_cast<Owner*>(owner); }, new Owner(reply));
}

void ReadReplies::Sending(CallId call, ServerCall& taken_by, Instant now) {
  const std::scoped_lock lock(mutex_);
  takers_[call] = Taker{.call = &taken_by, .peer = taken_by.peer(), .since = now};
}

void ReadReplies::Sent(CallId call) {
  const std::scoped_lock lock(mutex_);
  takers_.erase(call);
}

std::optional<std::string> ReadReplies::LeftBy(CallId call, Instant now) {
  const std::scoped_lock lock(mutex_);
  const auto taker = takers_.find(call);
  if (taker == takers_.end() || now - taker->second.since < kTakeTime) return std::nullopt;
  return taker->second.peer;
}

ReadReplies::Slow ReadReplies::CutSlow(Instant now) {
  const std::scoped_lock lock(mutex_);
  Slow slow;
  for (auto at = cut_at_.begin(); at != cut_at_.end();) {
    const Duration ago = now - at->second;
    if (ago >= kCutLimit && ago < kCutMemory) slow.stuck.insert(at->first);
    at = ago >= kCutLimit ? cut_at_.erase(at) : std::next(at);
  }
  for (auto& [call, taker] : takers_) {
    if (taker.cut || now - taker.since < kTakeLimit) continue;
    if (slow.cut == kMostCutAtOnce) break;
    taker.cut = true;
    cut_at_.try_emplace(taker.peer, now);
    taker.call->Cancel();
    ++slow.cut;
  }
  return slow;
}

}  // namespace regroup::coordinator
