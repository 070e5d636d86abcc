#pragma once

// What one agent has yet to be sent, in order and within bounds (PROTOCOL §6): per job at most one
// order, the newest, and so many answers and news. Not thread-safe.

#include <cstddef>
#include <deque>

#include "common/base/ids.h"
#include "common/rpc/convert.h"
#include "proto/coordinator.pb.h"

namespace regroup::coordinator {

inline constexpr std::size_t kMaxPendingAnswers = 64;
inline constexpr std::size_t kMaxPendingNews = 1'024;

class Outbox {
 public:
  // False, and nothing is added: as many wait as may, so the agent does not read.
  [[nodiscard]] bool AddAnswer(pb::CoordinatorMessage answer);
  [[nodiscard]] bool AddNews(pb::CoordinatorMessage news);
  // An order is the whole of what is wanted of its job: it takes the place of one that waits.
  void AddOrder(const JobId& job, pb::CoordinatorMessage order);

  // REQUIRES: !empty().
  pb::CoordinatorMessage Next();
  void Clear();
  std::size_t size() const { return queue_.size(); }
  bool empty() const { return queue_.empty(); }

 private:
  enum class Kind { kAnswer, kNews, kOrder };
  struct Waiting {
    Kind kind = Kind::kAnswer;
    JobId job;  // Of an order.
    pb::CoordinatorMessage message;
  };
  std::deque<Waiting> queue_;
  std::size_t answers_ = 0, news_ = 0;
};

}  // namespace regroup::coordinator
