#include "tests/bench/grpc_floor.h"

#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <chrono>
#include <memory>

#include "common/base/check.h"
#include "common/base/control.h"
#include "common/io/fd.h"
#include "common/rpc/convert.h"
#include "common/rpc/server.h"
#include "launcher/coordinator/shell/call_server.h"
#include "proto/coordinator.grpc.pb.h"

namespace regroup::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kHeartbeat = std::chrono::seconds(1), kLease = 5 * kHeartbeat;
constexpr Clock::duration kAnswerEvery = kLease / 3;  // Sessions::AnswerHeartbeat.

class Session final : public coordinator::CallHandler {
 public:
  explicit Session(coordinator::ServerCall& call) : call_(call) { call_.Read(); }

  void OnRead(std::optional<std::string_view> heard) override {
    if (!heard) return call_.Finish(grpc::Status::OK);
    v1::AgentMessage message;
    CHECK(coordinator::Parse(*heard, message));
    const Clock::time_point now = Clock::now();
    if (message.has_hello()) {
      Say(WelcomeFor(message.hello()));
    } else if (now >= next_answer_ && !writing_) {
      next_answer_ = now + kAnswerEvery;
      Say(v1::CoordinatorMessage());
    }
    call_.Read();
  }
  void OnWritten(bool /*ok*/) override { writing_ = false; }

 private:
  static v1::CoordinatorMessage WelcomeFor(const v1::Hello& hello) {
    Welcome welcome;
    welcome.cluster = ClusterId("floor");
    welcome.epoch = Epoch(1);
    welcome.name = hello.name();
    welcome.heartbeat = kHeartbeat;
    welcome.lease = kLease;
    welcome.answers_heartbeats = true;
    v1::CoordinatorMessage said;
    *said.mutable_welcome() = ToProto(welcome);
    *said.mutable_welcome()->mutable_version() = hello.version();
    return said;
  }
  void Say(const v1::CoordinatorMessage& message) {
    writing_ = true;
    call_.Write(coordinator::Serialised(message));
  }

  coordinator::ServerCall& call_;
  Clock::time_point next_answer_{};
  bool writing_ = false;
};

}  // namespace

void ServeFloor(const std::string& path) {
  io::RaiseDescriptorLimit();
  coordinator::CallServer server(
      [](coordinator::ServerCall& call) { return std::make_unique<Session>(call); });
  grpc::ServerBuilder builder;
  ConfigureServer(builder);
  builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials());
  server.Start(builder);
  for (;;) pause();
}

}  // namespace regroup::bench
