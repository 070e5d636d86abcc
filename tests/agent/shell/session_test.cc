#include "agent/shell/session.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <mutex>

#include "common/base/rng.h"
#include "common/rpc/server.h"
#include "proto/coordinator.grpc.pb.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;

// How a coordinator ends a session: after so many messages read and written, in the midst of what
// both still write.
struct Cut {
  int reads = 0;
  int writes = 0;
  std::size_t bytes = 0;  // Of each message written.
  bool cancel = false;    // As for a peer that does not read; else in order, after the write.
};

std::ostream& operator<<(std::ostream& out, const Cut& cut) {
  return out << cut.reads << " reads, " << cut.writes << " writes of " << cut.bytes << " bytes, "
             << (cut.cancel ? "cancelled" : "finished");
}

class Cutter final : public grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage> {
 public:
  Cutter(grpc::CallbackServerContext* context, const Cut& cut) : context_(context), cut_(cut) {
    outgoing_.mutable_commit_answer()->set_why_not(std::string(cut.bytes, 'x'));
    const std::scoped_lock lock(mutex_);
    StartRead(&incoming_);
    WriteNext();
    EndIfDue();
  }
  void OnReadDone(bool ok) override {
    const std::scoped_lock lock(mutex_);
    gone_ = !ok;
    ++read_;
    EndIfDue();
    if (!ended_ && ok && read_ < cut_.reads) StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    const std::scoped_lock lock(mutex_);
    writing_ = false;
    gone_ = gone_ || !ok;
    WriteNext();
    EndIfDue();
  }
  void OnDone() override { delete this; }

 private:
  void WriteNext() {
    if (ended_ || gone_ || written_ == cut_.writes) return;
    ++written_;
    writing_ = true;
    StartWrite(&outgoing_);
  }
  // The coordinator waits for a write in flight, or cancels it.
  void EndIfDue() {
    const bool due = gone_ || read_ >= cut_.reads;
    if (ended_ || !due) return;
    if (writing_ && !cut_.cancel) {
      written_ = cut_.writes;
      return;
    }
    ended_ = true;
    if (cut_.cancel) context_->TryCancel();
    Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "this agent does not read"));
  }

  grpc::CallbackServerContext* const context_;
  const Cut cut_;
  std::mutex mutex_;
  v1::AgentMessage incoming_;
  v1::CoordinatorMessage outgoing_;
  int read_ = 0, written_ = 0;
  bool writing_ = false, gone_ = false, ended_ = false;
};

class CuttingService final : public v1::Coordinator::CallbackService {
 public:
  grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>* Session(
      grpc::CallbackServerContext* context) override {
    const std::scoped_lock lock(mutex_);
    return new Cutter(context, next_);
  }
  void Next(const Cut& cut) {
    const std::scoped_lock lock(mutex_);
    next_ = cut;
  }

 private:
  std::mutex mutex_;
  Cut next_;
};

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() {
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~SessionTest() override { server_->Shutdown(std::chrono::system_clock::now() + 1s); }

  CuttingService service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  boost::asio::io_context loop_{1};
};

// An agent that does not hear that its session was cut loses its node. --gtest_repeat=20 makes it
// ten thousand.
TEST_F(SessionTest, EveryCutIsHeardWhateverIsBeingWritten) {
  constexpr int kCuts = 500;
  Rng rng(1);
  for (int i = 0; i < kCuts; ++i) {
    const Cut cut{.reads = static_cast<int>(rng.Below(30)),
                  .writes = static_cast<int>(rng.Below(80)),
                  .bytes = rng.Below(3) == 0 ? 20'000 : rng.Below(200),
                  .cancel = rng.Below(3) == 0};
    service_.Next(cut);
    int heard = 0, breaks = 0;
    absl::Status why;
    std::optional<Session> session;
    session.emplace(loop_, Dial(Address{"127.0.0.1", static_cast<std::uint16_t>(port_)}),
                    Session::Handler{[&](const v1::CoordinatorMessage&) { ++heard; },
                                     [&](absl::Status status) {
                                       ++breaks;
                                       why = std::move(status);
                                     }});
    v1::AgentMessage message;
    message.mutable_commit()->set_path(std::string(rng.Below(3) == 0 ? 3'000 : 10, 'p'));
    const std::size_t most = rng.Below(10) == 0 ? 2 * Session::kMaxQueued : 40;
    const auto limit = std::chrono::steady_clock::now() + 20s;
    while (breaks == 0 && std::chrono::steady_clock::now() < limit) {
      // What it may not queue, it cuts by itself.
      for (std::size_t n = rng.Below(200); n > 0 && session->queued() < most; --n)
        session->Send(message);
      loop_.run_one_for(10ms);
      loop_.restart();
    }
    ASSERT_EQ(breaks, 1) << "cut " << i << " was not heard: " << cut << "; " << heard
                         << " messages were";
    EXPECT_FALSE(why.ok());
    session.reset();
    loop_.poll();
    loop_.restart();
    ASSERT_EQ(breaks, 1);
  }
}

}  // namespace
}  // namespace regroup::agent
