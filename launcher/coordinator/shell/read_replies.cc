#include "launcher/coordinator/shell/read_replies.h"

#include <grpcpp/support/slice.h>

#include <utility>
#include <vector>

namespace regroup::coordinator {

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

grpc::ByteBuffer ReadReplies::BufferOf(const std::shared_ptr<Reply>& reply) {
  using Owner = std::shared_ptr<Reply>;
  const grpc::Slice slice(
      reply->bytes().data(), reply->bytes().size(),
      [](void* owner) { delete static_cast<Owner*>(owner); }, new Owner(reply));
  return grpc::ByteBuffer(&slice, 1);
}

void ReadReplies::Sending(CallId call, grpc::CallbackServerContext* context, Instant now) {
  const std::scoped_lock lock(mutex_);
  takers_[call] = Taker{.context = context, .peer = context->peer(), .since = now};
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
  std::vector<CallId> slow;
  for (const auto& [call, taker] : takers_) {
    if (!taker.cut && now - taker.since >= kTakeLimit) slow.push_back(call);
  }
  int cut = 0;
  for (const CallId call : slow) {
    const auto taker = takers_.find(call);
    if (taker == takers_.end()) continue;
    taker->second.cut = true;
    taker->second.context->TryCancel();  // May end calls, this or others, before it returns.
    ++cut;
  }
  return cut;
}

}  // namespace regroup::coordinator
