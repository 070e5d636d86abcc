#pragma once

// One live coordinator's calls, blocking, each with a deadline. Errors are UserErrors: UNAVAILABLE
// means that nobody answered, everything else is the coordinator's own refusal.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/views.h"
#include "common/rpc/channel.h"
#include "launcher/cli/commands/places.h"
#include "proto/coordinator.grpc.pb.h"

namespace regroup::cli {

struct Reading {
  std::vector<JobView> jobs;
  std::vector<NodeView> nodes;
  Version version;
  std::vector<std::string> warnings{};  // Of the coordinator, for people.
  std::optional<MemoryUse> memory{};    // Unset: a journal's, or of a build that does not tell.
};

struct Submitted {
  std::string job;
  std::optional<WaitReason> waits;  // No nodes that are known could run it.
};

class Client {
 public:
  // Does not wait for the connection; an address that can't be resolved is an error.
  static absl::StatusOr<Client> Dial(const Place& place);

  absl::StatusOr<Reading> Read(const regroup::v1::ReadRequest& request, Duration limit) const;
  // The job's full id; empty after a dry run.
  absl::StatusOr<Submitted> Submit(const JobSpec& spec, const std::string& key, bool dry_run,
                                   bool now_or_never) const;
  absl::StatusOr<std::string> Cancel(const std::string& job, bool now,
                                     const std::string& who) const;
  absl::StatusOr<std::string> ForgetNode(const std::string& node) const;
  // `take` gets each reply; false ends the call.
  absl::Status Logs(const regroup::v1::LogSelection& selection,
                    const std::function<bool(const regroup::v1::LogsReply&)>& take) const;

  const Place& place() const { return place_; }

 private:
  // One that both ends have proved is made when it is needed, and again after it broke: its channel
  // is empty until then.
  struct Way {
    Connection connection;
    std::optional<Address> proved;
  };
  Client(Place place, std::vector<Way> ways);
  absl::StatusOr<Connection> ConnectionBy(Way& way) const;
  template <class Reply, class Call>
  absl::StatusOr<Reply> Try(Duration limit, Call call) const;
  absl::Status Explained(const absl::Status& status) const;
  absl::Status NoAnswer(const absl::Status& why) const;
  absl::Status CheckVersion(const Version& theirs) const;

  Place place_;
  mutable std::vector<Way> ways_;  // Of one name, in the resolver's order.
};

// What a coordinator finds wrong is a refusal (exit 1), not a misuse of this command (exit 2).
absl::Status Refused(const absl::Status& status);

// Random, one per submission.
std::string NewKey();

}  // namespace regroup::cli
