#pragma once

// What one agent has yet to be sent, in order and within bounds (PROTOCOL §6): per job at most one
// order, the newest; per stream of logs at most one opening, the newest; and so many answers and
// news. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <deque>

#include "common/base/ids.h"
#include "common/rpc/convert.h"
#include "proto/coordinator.pb.h"

namespace regroup::coordinator {

inline constexpr std::size_t kMaxPendingAnswers = 64;
inline constexpr std::size_t kMaxPendingNews = 1'024;
inline constexpr std::size_t kMaxPendingOpenings = 256;  // As many as there are readers of logs.

class Outbox {
 public:
  // False, and nothing is added: as many wait as may, so the agent does not read.
  [[nodiscard]] bool AddAnswer(pb::CoordinatorMessage answer);
  [[nodiscard]] bool AddNews(pb::CoordinatorMessage news);
  // Asks for a stream of logs, or takes the place of what asks for the same one. False, and nothing
  // is added: so many are waiting that readers of logs come and go faster than the agent reads.
  // That is no reason to cut it.
  [[nodiscard]] bool AddOpening(std::uint64_t stream, pb::CoordinatorMessage opening);
  void DropOpening(std::uint64_t stream);  // Its reader has left.
  // An order is the whole of what is wanted of its job: it takes the place of one that waits.
  void AddOrder(const JobId& job, pb::CoordinatorMessage order);

  // REQUIRES: !empty().
  pb::CoordinatorMessage Next();
  void Clear();
  std::size_t size() const { return queue_.size(); }
  bool empty() const { return queue_.empty(); }

 private:
  enum class Kind { kAnswer, kNews, kOrder, kOpening };
  struct Waiting {
    Kind kind = Kind::kAnswer;
    JobId job;                 // Of an order.
    std::uint64_t stream = 0;  // Of an opening.
    pb::CoordinatorMessage message;
  };
  std::deque<Waiting>::iterator FindOpening(std::uint64_t stream);
  std::deque<Waiting> queue_;
  std::size_t answers_ = 0, news_ = 0, openings_ = 0;
};

}  // namespace regroup::coordinator
