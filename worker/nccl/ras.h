#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "common/base/time.h"
#include "common/io/fd.h"

namespace regroup::worker {

// What NCCL knows of a job that hangs. Its RAS service (NCCL 2.24 and newer) is a thread of each
// process that is asked over TCP: which ranks have begun how many collectives, which processes do
// not answer, which have failed. So no call of the library is made, and a rank that is inside one
// does not delay the question.

// No answer is longer than this, without the note that it was cut. An agent shows 20 lines of what
// a rank has said last, and the rank's own sentence is to be among them.
inline constexpr std::size_t kMostRasLines = 14, kMostRasBytes = 4096;

// Where the service of this process listens: in what NCCL_RAS_ADDR says, if the user has set it.
// Else this picks a port of its own and sets the variable: by default all processes of a user on a
// node listen at one port, of whatever job, and the kernel chooses who answers. Empty: NCCL is
// older or was told to have none, or the variable has a name that would have to be looked up.
//
// REQUIRES: no other thread uses the environment, and no communicator was made yet.
struct RasPlace {
  std::string address;
  io::UniqueFd held;  // No other user can bind the port while this is open; NCCL can.
};
RasPlace ChooseRasPlace(int nccl_version);

// Lines for people, which end in a newline; empty where nothing listens, or at a name that would
// have to be looked up. Takes no longer than `patience`, whatever listens there: then what has come
// is returned, and said to be cut.
std::string AskRas(const std::string& address, Duration patience);

}  // namespace regroup::worker
