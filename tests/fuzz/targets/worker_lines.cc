#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <string>

#include "agent/shell/worker_server.h"
#include "common/base/check.h"
#include "common/io/unix_socket.h"
#include "common/rpc/convert.h"
#include "tests/agent/shell/scratch.h"
#include "tests/fuzz/targets/targets.h"

namespace regroup::fuzz {
namespace {

constexpr std::string_view kHello =
    R"({"hello": {"version": 1, "job": "a-1", "generation": "2", "rank": 3, "localRank": 1, "token": "3"}})"
    "\n";
constexpr int kMostLines =
    90;  // More would wait for the next window, which is as long as 10^3 runs.

// One server for all inputs, as one agent serves all workers.
class Server {
 public:
  Server()
      : server_(
            loop_, *io::ListenUnix(path_), 4,
            [](const agent::GroupKey&, int rank, int, const std::string& token) {
              return token == std::to_string(rank);
            },
            [this](const agent::Event& e) { Take(e); }, [](const std::string&) {}) {}

  bool Connect(std::string_view bytes, bool greeted) {
    greeted_ = greeted;
    said_ = 0;
    const absl::StatusOr<io::UniqueFd> worker = io::ConnectUnix(path_);
    CHECK(worker.ok());
    CHECK(::send(worker->get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
          static_cast<ssize_t>(bytes.size()));
    ::shutdown(worker->get(), SHUT_WR);
    while (loop_.poll() > 0) {
    }
    // Whatever it said, its connection is closed with it.
    char answers[16 << 10];
    ssize_t got = 1;
    while (got > 0) got = ::recv(worker->get(), answers, sizeof answers, MSG_DONTWAIT);
    CHECK(got == 0 || errno == ECONNRESET);
    return said_ > (greeted ? 1 : 0);
  }

 private:
  // What the coordinator would refuse must not leave the agent, and a worker is who it said first.
  void Take(const agent::Event& event) {
    const auto* said = std::get_if<agent::WorkerSaid>(&event);
    if (said == nullptr) return;
    ++said_;
    if (said_ == 1) first_ = *said;
    CHECK(said->key == first_.key && said->rank == first_.rank &&
          said->local_rank == first_.local_rank);
    CHECK(!greeted_ || (said->key.job == JobId("a-1") && said->rank == 3));
    if (const auto* progress = std::get_if<WorkerProgress>(&said->what)) {
      CHECK(progress->job == first_.key.job && progress->rank == first_.rank);
      CHECK(FromProto(ToProto(*progress)).ok());
    }
    if (const auto* commit = std::get_if<CommitRequest>(&said->what)) {
      CHECK(commit->job == first_.key.job && commit->generation == first_.key.generation);
      CHECK(FromProto(ToProto(*commit)).ok());
    }
  }

  bool greeted_ = false;
  int said_ = 0;
  agent::WorkerSaid first_;
  agent::testing::Scratch scratch_;
  const std::string path_ = scratch_.path() + "/workers";
  boost::asio::io_context loop_{1};
  agent::WorkerServer server_;
};

}  // namespace

bool WorkerLines(std::string_view bytes) {
  static Server server;
  Input input(bytes);
  const unsigned first = input.Byte();
  const bool greeted = first % 2 == 0;  // Already.
  std::string said(greeted ? kHello : "");
  if (first == 0xFE) said.append(agent::kMaxLineBytes - 8, ' ');  // A line at its limit.
  int lines = 0;
  for (const char c : input.Rest()) {
    said += c;
    lines += c == '\n';
    if (lines == kMostLines) break;
  }
  return server.Connect(said, greeted);
}

}  // namespace regroup::fuzz
