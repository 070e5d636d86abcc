#pragma once

// Where connections of TCPStore clients go that reach the coordinator's port: to a process of their
// own (`regroup-shim --c10d`), which outlives this one, because such a client never dials again. Of
// the loop thread.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/fd.h"
#include "common/obs/logger.h"

namespace regroup::coordinator {

inline constexpr char kC10dSocketName[] = "c10d.sock";
inline constexpr char kC10dLogName[] = "c10d.log";

class C10dDoor {
 public:
  // `folder`: the coordinator's, locked by us.
  C10dDoor(std::string folder, obs::Logger& log) : folder_(std::move(folder)), log_(log) {}

  // Passes it on, unread; starts the process when none is there. A connection that can't be passed
  // on is closed: its client tries again.
  void Admit(io::UniqueFd client);

 private:
  absl::Status PassOn(const io::UniqueFd& client);
  absl::Status StartHost();

  const std::string folder_;
  obs::Logger& log_;
};

}  // namespace regroup::coordinator
