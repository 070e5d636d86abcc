#include "launcher/cli/commands/client.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <thread>

#include "common/base/user_error.h"
#include "common/io/address.h"
#include "common/io/unix_socket.h"
#include "common/rpc/proof.h"
#include "tests/common/io/temp_directory.h"

namespace regroup::cli {
namespace {

using ::testing::HasSubstr;

// Takes connections, and asks each for its token.
class Asking {
 public:
  Asking() {
    thread_ = std::thread([this] {
      for (;;) {
        const io::UniqueFd caller(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!caller) return;
        const std::string greeting = kAsks + std::string(kNonceBytes, 'n');
        std::string heard(kProofMagic.size() + kNonceBytes, '\0');
        ::recv(caller.get(), heard.data(), heard.size(), MSG_WAITALL);
        ::send(caller.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
      }
    });
  }
  ~Asking() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  Endpoint at() const {
    const Address address = *io::LocalAddressOf(listener_.get());
    return {address.host, address.port};
  }

 private:
  static io::UniqueFd Listening() {
    io::UniqueFd fd = *io::ListenTcp({"127.0.0.1", 0});
    ::fcntl(fd.get(), F_SETFL, 0);
    return fd;
  }
  const io::UniqueFd listener_ = Listening();
  std::thread thread_;
};

std::string WhatIsSaid(const Place& place) {
  absl::StatusOr<Client> client = Client::Dial(place);
  EXPECT_TRUE(client.ok()) << client.status();
  const absl::StatusOr<Reading> reading = client->Read({}, std::chrono::milliseconds(300));
  const UserErrorParts parts = PartsOf(reading.status());
  return parts.what + "; " + parts.because + "; " + parts.try_this;
}

// Its folder's socket asks for nothing, whatever is asked for at its port.
TEST(Client, OfOneThatIsStuckBehindItsOwnSocketNoTokenIsSpokenOf) {
  const Asking port;
  const io::TempDirectory folder;
  Place place;
  place.tcp = port.at();
  place.label = "here";
  place.command = "regroup ps";
  EXPECT_THAT(WhatIsSaid(place), HasSubstr("no token was given"));
  const std::string socket = folder.path() + "/socket";
  const io::UniqueFd stuck = *io::ListenUnix(socket);
  place.socket = socket;
  EXPECT_THAT(WhatIsSaid(place), HasSubstr("the coordinator at here does not answer; it takes the "
                                           "connection, but is stopped, stuck or very busy"));
}

}  // namespace
}  // namespace regroup::cli
