#include "tests/bench/grpc_floor.h"

#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "common/base/check.h"
#include "common/base/control.h"
#include "common/io/fd.h"
#include "common/rpc/convert.h"
#include "common/rpc/server.h"
#include "proto/coordinator.grpc.pb.h"

namespace regroup::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kHeartbeat = std::chrono::seconds(1), kLease = 5 * kHeartbeat;
constexpr Clock::duration kAnswerEvery = kLease / 3;  // Sessions::AnswerHeartbeat.

grpc::ByteBuffer Serialised(const v1::CoordinatorMessage& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

class Session final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Session() {
    answer_ = Serialised(v1::CoordinatorMessage());
    StartRead(&heard_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    v1::AgentMessage message;
    CHECK((grpc::SerializationTraits<v1::AgentMessage>::Deserialize(&heard_, &message).ok()));
    const Clock::time_point now = Clock::now();
    if (message.has_hello()) {
      Welcome welcome;
      welcome.cluster = ClusterId("floor");
      welcome.epoch = Epoch(1);
      welcome.name = message.hello().name();
      welcome.heartbeat = kHeartbeat;
      welcome.lease = kLease;
      welcome.answers_heartbeats = true;
      v1::CoordinatorMessage said;
      *said.mutable_welcome() = ToProto(welcome);
      *said.mutable_welcome()->mutable_version() = message.hello().version();
      welcome_ = Serialised(said);
      writing_ = true;
      StartWrite(&welcome_);
    } else if (now >= next_answer_ && !writing_.exchange(true)) {
      next_answer_ = now + kAnswerEvery;
      StartWrite(&answer_);
    }
    StartRead(&heard_);
  }
  void OnWriteDone(bool /*ok*/) override { writing_ = false; }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer heard_, welcome_, answer_;
  Clock::time_point next_answer_{};
  std::atomic<bool> writing_{false};
};

class Floor final
    : public v1::Coordinator::WithRawCallbackMethod_Session<v1::Coordinator::Service> {
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Session(
      grpc::CallbackServerContext* /*context*/) override {
    return new bench::Session;
  }
};

}  // namespace

void ServeFloor(const std::string& path) {
  io::RaiseDescriptorLimit();
  Floor service;
  grpc::ServerBuilder builder;
  ConfigureServer(builder);
  builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  CHECK(server != nullptr);
  for (;;) pause();
}

}  // namespace regroup::bench
