#include "launcher/coordinator/shell/outbox.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace regroup::coordinator {

bool Outbox::AddAnswer(pb::CoordinatorMessage answer) {
  if (answers_ == kMaxPendingAnswers) return false;
  ++answers_;
  queue_.push_back({Kind::kAnswer, {}, std::move(answer)});
  return true;
}

bool Outbox::AddNews(pb::CoordinatorMessage news) {
  if (news_ == kMaxPendingNews) return false;
  ++news_;
  queue_.push_back({Kind::kNews, {}, std::move(news)});
  return true;
}

void Outbox::AddOrder(const JobId& job, pb::CoordinatorMessage order) {
  const auto older = std::find_if(queue_.begin(), queue_.end(), [&](const Waiting& waiting) {
    return waiting.kind == Kind::kOrder && waiting.job == job;
  });
  if (older != queue_.end()) {
    older->message = std::move(order);
  } else {
    queue_.push_back({Kind::kOrder, job, std::move(order)});
  }
}

pb::CoordinatorMessage Outbox::Next() {
  CHECK(!queue_.empty());
  Waiting next = std::move(queue_.front());
  queue_.pop_front();
  answers_ -= next.kind == Kind::kAnswer ? 1 : 0;
  news_ -= next.kind == Kind::kNews ? 1 : 0;
  return std::move(next.message);
}

void Outbox::Clear() {
  queue_.clear();
  answers_ = news_ = 0;
}

}  // namespace regroup::coordinator
