#pragma once

// One shim (of a group or a store) as the loop sees it: its states as they come, and its end
// exactly once. Loop thread.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "agent/shim/client.h"

namespace regroup::agent {

class ShimProcess : public std::enable_shared_from_this<ShimProcess> {
 public:
  struct Handler {  // Never called from within a call of ShimProcess, nor after Drop.
    std::function<void(const shim::State&)> state;
    std::function<void(const shim::RunRecord&)>
        gone;  // Once, last. Its lock is free: the record is final.
  };
  // Shared with its own handlers in flight.
  static std::shared_ptr<ShimProcess> Make(boost::asio::io_context& loop, std::string path,
                                           shim::Spec spec, bool wants_output, Handler handler);

  // Starts it. REQUIRES: its run directory is written.
  absl::Status Spawn(const std::string& program, const shim::RunDirectory& directory,
                     const shim::ShimFds& fds);
  absl::Status Spawn(const shim::ShimStart& start);
  // Awaits one that was, or will be, started from a ShimStart for that directory.
  absl::Status Await(const shim::RunDirectory& directory) { return Connect(directory); }
  // Finds one that an earlier life of this agent started. Its first state follows, or its end.
  void Adopt();
  void Send(const shim::Command& command);
  // Adopt: it goes on in another run directory, and here ends with what it was.
  absl::Status SendAdopt(const shim::Adoption& adoption, int rank0_stdin);
  void Drop();  // No callback follows. The process is left as it is, and still reaped.

  const shim::Spec& spec() const { return spec_; }
  const std::string& path() const { return path_; }
  bool alive() const { return !gone_; }

 private:
  ShimProcess(boost::asio::io_context& loop, std::string path, shim::Spec spec, bool wants_output,
              Handler handler);
  absl::Status Connect(const shim::RunDirectory& directory);
  void WaitReadable();
  void WaitWritable();
  void OnReadable();
  void Lost();
  void Look();

  boost::asio::io_context& loop_;
  const std::string path_;
  const shim::Spec spec_;
  const bool wants_output_;
  Handler handler_;
  std::optional<shim::Link> link_;
  std::optional<boost::asio::posix::stream_descriptor>
      watch_;  // Of link_'s descriptor, which it does not own.
  boost::asio::steady_timer retry_;
  int looks_ = 0;  // In a row without a state.
  bool writing_ = false, gone_ = false, dropped_ = false;
};

}  // namespace regroup::agent
