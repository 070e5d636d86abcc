#pragma once

// Finds the coordinator to dial, and on the host of a launch command's endpoint starts it. Loop
// thread; names are resolved on a thread of their own.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/launch_config.h"
#include "common/io/address.h"
#include "common/rpc/channel.h"

namespace regroup::agent {

struct DialTarget {
  Connection connection;
  std::string address;            // Local IP of such a session.
  std::string dialled;            // IP of the coordinator.
  bool loopback = false;          // On this host: dialled again at short, even intervals.
  std::optional<Address> remote;  // Unset: a Unix socket.
  std::string folder;             // Of a launch command's coordinator of this host.
};

// How a coordinator is reached over TCP.
struct DialAccess {
  std::string token;      // That both ends prove to know; empty: none was given.
  bool insecure = false;  // Nothing is proved. Never otherwise: a stranger may listen there.
};

class Dialler {
 public:
  using Done = std::function<void(absl::StatusOr<DialTarget>)>;
  Dialler(boost::asio::io_context& loop, DialAccess access);
  virtual ~Dialler();
  // Calls `done` once, on the loop, perhaps before it returns. An error is for now: ask again
  // later.
  virtual void Find(Done done) = 0;
  // The coordinator that this host hosts, if it is not there. Nothing for a service.
  virtual void StartCoordinator() {}
  // What was found is a coordinator that takes us.
  virtual void Answered() {}
  // True: one attempt to connect gets half a second instead of five.
  void Hurry(bool hurried) { connect_limit_ = hurried ? kHurriedConnect : kConnect; }
  // Whether what was looked for last is on this host: it is dialled again at short intervals.
  bool near() const { return near_; }

 protected:
  // At an address: on this host over the coordinator's Unix socket, which knows whose a caller is;
  // else over TCP, as `access` says. PERMISSION_DENIED, UNAUTHENTICATED: a coordinator that does
  // not take us; the advice is `command` with a token.
  void ReachAt(const Address& address, const std::string& command, const Done& done);

  boost::asio::io_context& loop_;
  const DialAccess access_;
  const std::shared_ptr<bool> alive_;  // Held by handlers that may run after this object.
  bool near_ = false;
  static constexpr Duration kConnect = std::chrono::seconds(5);
  static constexpr Duration kHurriedConnect = std::chrono::milliseconds(500);
  Duration connect_limit_ = kConnect;

 private:
  // The loop for threads that outlive this object: null once it is gone.
  struct Home {
    std::mutex mutex;
    boost::asio::io_context* loop;
  };
  std::shared_ptr<Home> home_;  // Held by those threads.
};

// A service's: each is HOST[:PORT], resolved anew each time, or the path of a Unix socket. They are
// tried in turn, from the one that answered last. None: the coordinator of this host that is no
// launch command's, in `state_dir` or, unless `only_there`, anywhere.
class ServiceDialler : public Dialler {
 public:
  ServiceDialler(boost::asio::io_context& loop, std::vector<std::string> coordinators,
                 std::string state_dir, bool only_there, DialAccess access)
      : Dialler(loop, std::move(access)),
        coordinators_(std::move(coordinators)),
        state_dir_(std::move(state_dir)),
        only_there_(only_there) {}
  void Find(Done done) override;
  void Answered() override { answered_ = true; }

 private:
  absl::StatusOr<DialTarget> OfThisHost() const;

  const std::vector<std::string> coordinators_;
  const std::string state_dir_;
  const bool only_there_;
  std::size_t turn_ = 0;
  std::size_t attempt_ = 0;  // Each address of a name has its turn.
  bool answered_ = true;     // The one whose turn it is; at first none has failed.
};

// A launch command's. CLI.md, Job identity; PROTOCOL §5, ad-hoc mode.
class LaunchDialler : public Dialler {
 public:
  // `fatal` ends the command with this error: what listens there is no Regroup, or our coordinator
  // can't start. `warn`: it can't start again, and will be tried again.
  LaunchDialler(boost::asio::io_context& loop, const LaunchConfig& launch,
                std::string regroup_program, std::function<void(absl::Status)> fatal,
                std::function<void(std::string)> warn);

  // Without waiting for anything: looks whether this host is the endpoint's, and starts the
  // coordinator. Called first of all, so that it starts while this process prepares.
  void StartEarly();
  void Find(Done done) override;
  void StartCoordinator() override;
  void Answered() override;

  bool hosts() const { return hosts_; }
  // As others have to dial it; unset: nobody else can.
  std::optional<Address> ForOthers() const;
  // The token that the coordinator of this run has made, for them; empty: one was given, or none is
  // needed. A service's is for its user to ask for.
  std::string TokenForOthers() const;

 private:
  void Resolved(absl::StatusOr<std::vector<Address>> addresses, const Done& done);
  void Decide(const std::vector<Address>& addresses);
  void Reach(Done done);
  absl::Status SpawnCoordinator();
  void OnCoordinatorExit(int status);  // As of waitpid.
  absl::Status WhyItEnded(int status) const;
  void WaitForListener(Done done, int attempt);
  bool Listens() const;
  void CheckListener();

  const LaunchConfig& launch_;
  const std::string regroup_program_;
  std::function<void(absl::Status)> fatal_;
  std::function<void(std::string)> warn_;

  bool decided_ = false;
  bool hosts_ = false;        // The endpoint is an address of this host.
  bool in_use_ = false;       // Somebody listened there when we looked.
  bool everywhere_ = false;   // The name is a loopback address here, but not for others.
  Address endpoint_;          // The address that is dialled.
  std::vector<Address> all_;  // Of an endpoint elsewhere.
  std::size_t attempt_ = 0;
  std::string folder_;

  pid_t coordinator_ = 0;  // Our child, while it lives.
  off_t stderr_from_ = 0;
  std::string local_folder_;  // Of the coordinator that took us, if it is of this host.
  std::optional<Instant> not_let_in_since_;
  Instant not_before_{};  // Of the next start.
  bool answered_ = false;
  int exits_in_a_row_ = 0;
  boost::asio::steady_timer timer_;
};

}  // namespace regroup::agent
