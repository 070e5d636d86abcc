#include "launcher/coordinator/shell/outbox.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace regroup::coordinator {

bool Outbox::AddAnswer(pb::CoordinatorMessage answer) {
  if (answers_ == kMaxPendingAnswers) return false;
  ++answers_;
  queue_.push_back({Kind::kAnswer, {}, 0, std::move(answer)});
  return true;
}

bool Outbox::AddNews(pb::CoordinatorMessage news) {
  if (news_ == kMaxPendingNews) return false;
  ++news_;
  queue_.push_back({Kind::kNews, {}, 0, std::move(news)});
  return true;
}

std::deque<Outbox::Waiting>::iterator Outbox::FindOpening(std::uint64_t stream) {
  return std::find_if(queue_.begin(), queue_.end(), [&](const Waiting& waiting) {
    return waiting.kind == Kind::kOpening && waiting.stream == stream;
  });
}

bool Outbox::AddOpening(std::uint64_t stream, pb::CoordinatorMessage opening) {
  if (const auto older = FindOpening(stream); older != queue_.end()) {
    older->message = std::move(opening);
    return true;
  }
  if (openings_ == kMaxPendingOpenings) return false;
  ++openings_;
  queue_.push_back({Kind::kOpening, {}, stream, std::move(opening)});
  return true;
}

void Outbox::DropOpening(std::uint64_t stream) {
  const auto waiting = FindOpening(stream);
  if (waiting == queue_.end()) return;
  --openings_;
  queue_.erase(waiting);
}

void Outbox::AddOrder(const JobId& job, pb::CoordinatorMessage order) {
  const auto older = std::find_if(queue_.begin(), queue_.end(), [&](const Waiting& waiting) {
    return waiting.kind == Kind::kOrder && waiting.job == job;
  });
  if (older != queue_.end()) {
    older->message = std::move(order);
  } else {
    queue_.push_back({Kind::kOrder, job, 0, std::move(order)});
  }
}

pb::CoordinatorMessage Outbox::Next() {
  CHECK(!queue_.empty());
  Waiting next = std::move(queue_.front());
  queue_.pop_front();
  answers_ -= next.kind == Kind::kAnswer ? 1 : 0;
  news_ -= next.kind == Kind::kNews ? 1 : 0;
  openings_ -= next.kind == Kind::kOpening ? 1 : 0;
  return std::move(next.message);
}

void Outbox::Clear() {
  queue_.clear();
  answers_ = news_ = openings_ = 0;
}

}  // namespace regroup::coordinator
