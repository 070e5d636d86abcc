#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "worker/checkpoint/manifest.h"

namespace regroup::worker {

// How long rank 0 waits for the others, and what ends that early.
struct Patience {
  Duration at_most{};
  std::function<bool()> given_up;
};

// What the ranks of one attempt tell rank 0, in files beside their own:
//
//   rank-R.report    R's file is durable, and this is what its commit says of it
//   rank-R.failed    R could not write its file, and why
//   rank-R.verified  R has read its file back; empty: it is sound, else what is wrong with it
//
// Rank 0 looks for them by listing the directory, never by name: a network file system remembers
// for a minute that a name was not there, but a directory that is opened anew is looked at anew.
// Any thread.
class Reports {
 public:
  explicit Reports(std::string directory) : directory_(std::move(directory)) {}

  absl::Status Tell(const ShardReport& report) const;
  // These help rank 0 to hear sooner; where they cannot be written, it waits.
  void TellFailure(int rank, std::string_view why) const;
  void TellVerdict(int rank, const absl::Status& sound) const;

  // What the ranks from 1 on say of their files, in rank order. Unavailable, naming the rank: it
  // could not write. Deadline exceeded names all that have said nothing and the flag. Cancelled.
  absl::StatusOr<std::vector<ShardReport>> AwaitFiles(int world_size,
                                                      const Patience& patience) const;
  // OK: all ranks from 1 on found their files sound. Data loss, naming the rank: it did not.
  // Otherwise as above.
  absl::Status AwaitVerdicts(int world_size, const Patience& patience) const;

  // Removes all of them; what is not there is no failure.
  absl::Status Remove() const;

 private:
  std::string PathOf(int rank, std::string_view kind) const;
  // Until each rank has left a file of this kind: its contents, by rank.
  absl::StatusOr<std::map<int, std::string>> Await(std::string_view kind, std::string_view done,
                                                   int world_size, const Patience& patience) const;

  std::string directory_;
};

}  // namespace regroup::worker
