#pragma once

// Dials witness ports. PROTOCOL §4: *accepted* = the connection was made and its close read within
// 200 ms; a handshake alone is silence, since the kernel completes it for a stopped process;
// *refused* = nobody has the port.

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>

#include "common/base/control.h"
#include "launcher/coordinator/core/events.h"

namespace regroup::coordinator {

class Prober {
 public:
  using Done = std::function<void(ProbeResult)>;
  static constexpr Duration kLimit = std::chrono::milliseconds(200);

  explicit Prober(boost::asio::io_context& io, std::size_t max_parallel = 1'024);
  ~Prober();

  // `done` is called on the loop's thread, later, once. Probes above the limit wait for a place.
  void Probe(const Address& address, Done done);

 private:
  class Attempt;
  struct Waiting {
    Address address;
    Done done;
  };
  void Begin(const Address& address, Done done);
  void Finished();

  boost::asio::io_context& io_;
  const std::size_t max_parallel_;
  std::size_t running_ = 0;
  std::deque<Waiting> waiting_;
  // Attempts outlive us by their last callback only; it must not call back then. Owners: this and
  // they.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace regroup::coordinator
