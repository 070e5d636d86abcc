#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/time.h"
#include "worker/comm/store_client.h"

namespace regroup::worker {

// Who is missing, once a collective of a GPU does not come to its end: NCCL does not say, and the
// group of the ranks has ended by then. So each rank says through the generation's store how many
// collectives it has begun, and who has ended the group says why. One thread at a time.
class LastWords {
 public:
  // Under keys that begin with `prefix`.
  LastWords(StoreClient store, std::string prefix, int rank)
      : store_(std::move(store)), prefix_(std::move(prefix)), rank_(rank) {}

  // Whether this rank is to ask: one of all is, for their questions together are the square of how
  // many there are. True also where the store does not answer.
  bool IsFirstToAsk();
  // This rank has begun so many and can not go on with the last: which of `ranks`, who take part in
  // it, have not begun it, or do not answer within `patience`; for people. None is looked up once
  // `lookups` more have passed; then those that are left are counted.
  std::string WhoIsMissing(std::uint64_t begun, const std::vector<int>& ranks, Duration patience,
                           Duration lookups);
  // Whether this rank is to ask what NCCL knows of a collective, by its number: one of all is.
  // False where the store does not answer. One that once did not answer in time is dialled anew,
  // since a collective that is late may end well, and a later one not.
  bool IsFirstToLook(std::uint64_t begun);
  // What it has found, which whoever tells the cause finds by the same number; may be empty.
  void NoteLook(std::uint64_t begun, const std::string& found);
  // Until another rank has noted what it has found.
  void AwaitLook(std::uint64_t begun, Duration patience);
  // Empty: also where nothing was noted.
  std::string NotedLook(std::uint64_t begun);
  // Why this rank has ended the group. Where several have, one of them is heard.
  void Tell(std::uint64_t begun, const std::string& cause);
  // Another rank has ended the group: why, if it says so within `patience`.
  std::optional<std::string> Hear(std::uint64_t begun, Duration patience);

 private:
  std::string KeyOf(int rank) const;
  std::string CauseKey() const;
  std::string AskKey() const;
  std::string LookKey(std::uint64_t begun) const;

  StoreClient store_;
  const std::string prefix_;
  const int rank_;
};

}  // namespace regroup::worker
