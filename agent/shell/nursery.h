#pragma once

// The nursery of one job on this node (agent/README.md): a child of this process that has imported
// what the job's ranks need. Loop thread.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/shim/client.h"

namespace regroup::agent {

class Nursery : public std::enable_shared_from_this<Nursery> {
 public:
  // Of a job with that spec; of no `modules` it imports those that the script does. `cold` hears
  // once why ranks cannot be forked from it (any more).
  static std::shared_ptr<Nursery> Start(boost::asio::io_context& loop, const std::string& program,
                                        const shim::Spec& spec,
                                        const std::vector<std::string>& modules,
                                        std::function<void(std::string)> cold);

  // Its resident memory, what others share of it included.
  std::uint64_t Bytes() const;
  bool ready() const { return ready_ && !closed_ && !over_; }
  // Calls that once it is ready or over; at once where it is.
  void WhenSettled(std::function<void()> settled);
  // Ranks do not wait for it any longer. Does nothing where it is over.
  void GiveUp();
  // Another one may take its place: it was ready once.
  bool worn_out() const { return ready_ && over_; }
  // Has it start that shim. Calls `failed` where it does not: no shim of that start runs then, and
  // this nursery ends. REQUIRES: ready.
  void StartShim(shim::ShimStart start, std::function<void(const shim::ShimStart&)> failed);
  // Its process ends at once. What it has started does not notice.
  void End();

 private:
  Nursery(boost::asio::io_context& loop, std::function<void(std::string)> cold)
      : loop_(loop), cold_(std::move(cold)) {}
  void Listen();
  void OnMessage();
  void AwaitEnd();
  void TellSettled();
  void Fail(std::string why);
  struct Asked;
  void AwaitAnswer(const std::shared_ptr<Asked>& asked);
  static void Settle(Asked& asked, bool allowed);

  boost::asio::io_context& loop_;
  std::function<void(std::string)> cold_;
  std::vector<std::function<void()>> settled_;
  io::UniqueFd process_;
  pid_t pid_ = 0;  // While there is `process_`.
  std::optional<boost::asio::posix::stream_descriptor> socket_;
  bool ready_ = false, closed_ = false, over_ = false;
};

}  // namespace regroup::agent
