#include "launcher/coordinator/shell/prober.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

namespace regroup::coordinator {

using boost::asio::ip::tcp;
using boost::system::error_code;

// Owners: its pending operations.
class Prober::Attempt : public std::enable_shared_from_this<Attempt> {
 public:
  Attempt(boost::asio::io_context& io, Done done)
      : socket_(io), timer_(io), done_(std::move(done)) {}

  void Begin(const tcp::endpoint& endpoint) {
    timer_.expires_after(kLimit);
    timer_.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error) self->Finish(ProbeResult::kSilent);
    });
    socket_.async_connect(endpoint, [self = shared_from_this()](const error_code& error) {
      if (error == boost::asio::error::connection_refused)
        return self->Finish(ProbeResult::kRefused);
      if (error) return self->Finish(ProbeResult::kSilent);
      self->AwaitClose();
    });
  }

 private:
  void AwaitClose() {
    socket_.async_read_some(boost::asio::buffer(byte_),
                            [self = shared_from_this()](const error_code& error, std::size_t) {
                              // A reset is no close by a living witness: its listener went away
                              // with the connection still queued.
                              self->Finish(error == boost::asio::error::eof ? ProbeResult::kAccepted
                                                                            : ProbeResult::kSilent);
                            });
  }

  void Finish(ProbeResult result) {
    if (!done_) return;
    timer_.cancel();
    error_code ignored;
    socket_.close(ignored);
    std::exchange(done_, nullptr)(result);
  }

  tcp::socket socket_;
  boost::asio::steady_timer timer_;
  std::array<char, 1> byte_{};
  Done done_;
};

Prober::Prober(boost::asio::io_context& io, std::size_t max_parallel)
    : io_(io), max_parallel_(max_parallel) {}

Prober::~Prober() { *alive_ = false; }

void Prober::Probe(const Address& address, Done done) {
  if (running_ >= max_parallel_) {
    waiting_.push_back({address, std::move(done)});
    return;
  }
  Begin(address, std::move(done));
}

void Prober::Begin(const Address& address, Done done) {
  ++running_;
  Done once = [this, alive = alive_, done = std::move(done)](ProbeResult result) {
    if (!*alive) return;
    done(result);
    Finished();
  };
  error_code error;
  const auto ip = boost::asio::ip::make_address(address.host, error);
  if (error) {
    boost::asio::post(io_, [once = std::move(once)] { once(ProbeResult::kSilent); });
    return;
  }
  std::make_shared<Attempt>(io_, std::move(once))->Begin(tcp::endpoint(ip, address.port));
}

void Prober::Finished() {
  --running_;
  if (waiting_.empty()) return;
  Waiting next = std::move(waiting_.front());
  waiting_.pop_front();
  Begin(next.address, std::move(next.done));
}

}  // namespace regroup::coordinator
