#include "launcher/coordinator/shell/read_replies.h"

#include <utility>

namespace regroup::coordinator {
namespace {

// gRPC may write as it cancels, and others wait for the lock meanwhile. The rest has its turn when
// the next one asks.
constexpr int kMostCutAtOnce = 16;

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

int ReadReplies::CutSlow(Instant now) {
  const std::scoped_lock lock(mutex_);
  int cut = 0;
  for (auto& [call, taker] : takers_) {
    if (taker.cut || now - taker.since < kTakeLimit) continue;
    if (cut == kMostCutAtOnce) break;
    taker.cut = true;
    taker.call->Cancel();
    ++cut;
  }
  return cut;
}

}  // namespace regroup::coordinator
