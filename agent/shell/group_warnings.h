#pragma once

// What whoever started a job is told of its groups, in words.

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "agent/core/events.h"
#include "agent/shell/worker_environment.h"
#include "agent/shim/protocol.h"
#include "common/base/control.h"

namespace regroup::agent {

// Why other hosts cannot be told what the host's own name resolves to; empty: they can. May wait
// for a name server.
std::string HostNameProblem();

// "1 process left behind by rank 0 was ended: uploader (4121)". REQUIRES: something was.
std::string LeftBehindSentence(const shim::State& state);

// Of a program that sets MASTER_PORT and whose ranks have not met.
std::string OwnPortSentence();

// Looks for what will keep ranks from meeting: they wait for many minutes before they say so, and
// then blame something else. Loop thread; names are asked for on `disk`.
class MeetingWarnings {
 public:
  using Tell = std::function<void(std::string)>;
  MeetingWarnings(boost::asio::io_context& loop, boost::asio::thread_pool& disk, Tell tell);
  ~MeetingWarnings();

  // Gloo asks for the address of the host's name unless it is told an interface.
  void OfHostName(const Environment& group, const std::string& interface);
  // This node does not reach the store of its generation.
  void OfStore(const GroupKey& key, const Address& store);
  // PyTorch takes the port that a program sets by itself for one of ours, and its ranks wait for a
  // store that nobody serves. `runs`: whether its group still does.
  void OfOwnPort(std::uint16_t store_port, std::function<bool()> runs);

 private:
  boost::asio::io_context& loop_;
  boost::asio::thread_pool& disk_;
  const Tell tell_;
  std::shared_ptr<bool> alive_;  // Held by handlers that may run after this object.
};

}  // namespace regroup::agent
