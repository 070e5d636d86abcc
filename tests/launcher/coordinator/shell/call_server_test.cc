#include "launcher/coordinator/shell/call_server.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "common/rpc/server.h"
#include "proto/coordinator.grpc.pb.h"
#include "tests/launcher/coordinator/shell/daemon_fixture.h"
#include "tests/launcher/coordinator/shell/temp_dir.h"

namespace regroup::coordinator {
namespace {

using namespace std::chrono_literals;

// What a call told, and whether it is still there.
struct Heard {
  std::mutex mutex;
  std::vector<std::string> events;
  std::string method;
  std::atomic<ServerCall*> call = nullptr;
  std::atomic<bool> deadline = false, gone = false;
  bool watch = true;

  void Add(const std::string& event) {
    const std::scoped_lock lock(mutex);
    events.push_back(event);
  }
  std::string Text() {
    const std::scoped_lock lock(mutex);
    std::string text;
    for (const std::string& event : events) text += event + " ";
    return text;
  }
  bool Has(const std::string& event) { return Text().find(event) != std::string::npos; }
};

class Recorder final : public CallHandler {
 public:
  Recorder(Heard& heard, ServerCall& call) : heard_(heard) {
    heard_.method = call.method();
    heard_.deadline = call.deadline() != std::chrono::system_clock::time_point::max();
    if (heard.watch) call.Watch();
    heard_.call = &call;
  }
  // The call lives as long as its handler.
  ~Recorder() override {
    EXPECT_FALSE(heard_.call.load()->peer().empty());
    heard_.gone = true;
  }
  void OnRead(std::optional<std::string_view> message) override {
    if (!message) return heard_.Add("end");
    pb::AgentMessage parsed;
    heard_.Add(Parse(*message, parsed) ? parsed.hello().name()
                                       : "unreadable/" + std::to_string(message->size()));
  }
  void OnWritten(bool ok) override { heard_.Add(ok ? "written" : "unwritten"); }
  void OnCancelled() override { heard_.Add("cancelled"); }

 private:
  Heard& heard_;
};

// How many calls are heard of at once, and whether calls are watched.
class CallServerTest : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  void SetUp() override {
    heard_.watch = std::get<1>(GetParam());
    grpc::ServerBuilder builder;
    builder.AddListeningPort(Target(), grpc::InsecureServerCredentials());
    ConfigureServer(builder);
    server_.Start(builder);
  }
  void TearDown() override {
    if (!stopped_) Stop(10s);
  }
  void Stop(std::chrono::milliseconds limit) {
    stopped_ = true;
    server_.Stop(std::chrono::system_clock::now() + limit);
  }
  // A client with a connection of its own.
  std::unique_ptr<pb::Coordinator::Stub> Dial() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return pb::Coordinator::NewStub(
        grpc::CreateCustomChannel(Target(), grpc::InsecureChannelCredentials(), arguments));
  }
  ServerCall& Opened() {
    EXPECT_TRUE(Eventually([this] { return heard_.call != nullptr; }));
    return *heard_.call;
  }
  std::string Target() const { return "unix:" + folder_.path() + "/socket"; }

  testing::TempDir folder_;
  Heard heard_;
  Heard* next_ = &heard_;  // Of the call that is opened next.
  bool stopped_ = false;
  CallServer server_{[this](ServerCall& call) -> std::unique_ptr<CallHandler> {
                       if (call.method() == "/regroup.v1.Coordinator/ForgetNode") {
                         call.Finish(grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "no"));
                         return nullptr;
                       }
                       return std::make_unique<Recorder>(*next_, call);
                     },
                     std::get<0>(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(OneOrMany, CallServerTest,
                         ::testing::Combine(::testing::Values(kManyCalls, 0),
                                            ::testing::Values(true)));

TEST_P(CallServerTest, MessagesGoBothWaysAndTheEndIsSaidOnce) {
  const auto stub = Dial();
  grpc::ClientContext context;
  const auto stream = stub->Session(&context);
  ServerCall& call = Opened();
  EXPECT_EQ(heard_.method, "/regroup.v1.Coordinator/Session");
  EXPECT_FALSE(heard_.deadline);
  for (const char* name : {"a", "b"}) {
    pb::AgentMessage message;
    message.mutable_hello()->set_name(name);
    ASSERT_TRUE(stream->Write(message));
    call.Read();
    EXPECT_TRUE(Eventually([&] { return heard_.Has(name); }));
  }
  pb::CoordinatorMessage said;
  said.mutable_welcome()->set_name("w");
  call.Write(Serialised(said));
  ASSERT_TRUE(stream->Read(&said));
  EXPECT_EQ(said.welcome().name(), "w");
  EXPECT_TRUE(Eventually([&] { return heard_.Has("written"); }));
  stream->WritesDone();
  call.Read();
  EXPECT_TRUE(Eventually([&] { return heard_.Has("end"); }));
  EXPECT_FALSE(heard_.gone);  // Half-closed: the server may go on.
  call.Finish(grpc::Status(grpc::StatusCode::ABORTED, "so"));
  EXPECT_EQ(stream->Finish().error_message(), "so");
  EXPECT_TRUE(Eventually([&] { return heard_.gone.load(); }));
  EXPECT_EQ(heard_.Text(), "a b written end ");
}

class CallServerBothWaysTest : public CallServerTest {
 protected:
  bool HeardOfTheEnd() { return heard_.Has("end") && (!heard_.watch || heard_.Has("cancelled")); }
};
INSTANTIATE_TEST_SUITE_P(WatchedOrNot, CallServerBothWaysTest,
                         ::testing::Combine(::testing::Values(kManyCalls, 0), ::testing::Bool()));

TEST_P(CallServerBothWaysTest, AReadFailsByFinish) {
  const auto stub = Dial();
  grpc::ClientContext context;
  const auto stream = stub->Session(&context);
  ServerCall& call = Opened();
  call.Read();
  call.Finish(grpc::Status::OK);
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(Eventually([&] { return heard_.gone.load(); }));
  EXPECT_EQ(heard_.Text(), "end ");
}

TEST_P(CallServerBothWaysTest, ACallThatIsCancelledLivesUntilItIsFinished) {
  const auto stub = Dial();
  grpc::ClientContext context;
  const auto stream = stub->Session(&context);
  ServerCall& call = Opened();
  call.Read();
  context.TryCancel();
  EXPECT_TRUE(Eventually([&] { return HeardOfTheEnd(); }));
  std::this_thread::sleep_for(50ms);
  ASSERT_FALSE(heard_.gone);
  call.Finish(grpc::Status::OK);
  EXPECT_TRUE(Eventually([&] { return heard_.gone.load(); }));
  EXPECT_EQ(heard_.events.size(), heard_.watch ? 2u : 1u) << heard_.Text();
  stream->Finish();
}

TEST_P(CallServerTest, WhatIsCutHereIsCancelledThere) {
  const auto stub = Dial();
  grpc::ClientContext context;
  const auto stream = stub->Session(&context);
  ServerCall& call = Opened();
  call.Read();
  call.Cancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return heard_.Has("cancelled") && heard_.Has("end"); }));
  call.Finish(grpc::Status::OK);
  EXPECT_TRUE(Eventually([&] { return heard_.gone.load(); }));
}

TEST_P(CallServerTest, ADeadlineIsKnownAndCancels) {
  const auto stub = Dial();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + 300ms);
  pb::ReadReply reply;
  const grpc::Status status = stub->Read(&context, pb::ReadRequest(), &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ServerCall& call = Opened();
  EXPECT_TRUE(heard_.deadline);
  EXPECT_TRUE(Eventually([&] { return heard_.Has("cancelled"); }));
  call.Reply(Serialised(reply));
  EXPECT_TRUE(Eventually([&] { return heard_.gone.load(); }));
}

// As its reply is on the way, in a window that it does not open.
TEST_P(CallServerTest, WhoLeavesBeforeTheReplyIsTakenIsTold) {
  auto stub = Dial();
  grpc::ClientContext context;
  auto stream = stub->Session(&context);
  ServerCall& call = Opened();
  pb::CoordinatorMessage large;
  large.mutable_welcome()->set_name(std::string(16 << 20, 'x'));
  call.Reply(Serialised(large));
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(heard_.Text(), "");
  context.TryCancel();
  EXPECT_TRUE(Eventually([&] { return heard_.gone.load(); }));
  EXPECT_EQ(heard_.Text(), "cancelled ");
  stream->Finish();
}

// A status with details that is still to be sent when its call has been told to end.
TEST_P(CallServerTest, AStatusHasItsDetailsAndAGoodEndHasNone) {
  const auto stub = Dial();
  {
    grpc::ClientContext context;
    const auto stream = stub->Session(&context);
    Opened().Finish(grpc::Status(grpc::StatusCode::ABORTED, "so", std::string("\0\xff", 2)));
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
    EXPECT_EQ(status.error_message(), "so");
    EXPECT_EQ(status.error_details(), std::string("\0\xff", 2));
  }
  ASSERT_TRUE(Eventually([&] { return heard_.gone.load(); }));
  heard_.gone = false;
  heard_.call = nullptr;
  grpc::ClientContext context;
  const auto stream = stub->Session(&context);
  Opened().Finish(grpc::Status::OK);
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(context.GetServerTrailingMetadata().empty());
  EXPECT_TRUE(Eventually([&] { return heard_.gone.load(); }));
}

// Some of what deflate makes could be read as a message.
TEST_P(CallServerTest, WhatIsPackedIsNoMessage) {
  const auto stub = Dial();
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_DEFLATE);
  const auto stream = stub->Session(&context);
  ServerCall& call = Opened();
  pb::AgentMessage message;
  message.mutable_hello()->set_name(std::string(1000, 'x'));
  ASSERT_TRUE(stream->Write(message));
  call.Read();
  EXPECT_TRUE(Eventually([&] { return heard_.Has("unreadable/1 "); }));
  call.Finish(grpc::Status::OK);
  EXPECT_TRUE(stream->Finish().ok());
}

// One with its client's end.
struct Talk {
  std::unique_ptr<pb::Coordinator::Stub> stub;
  Heard heard;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<pb::AgentMessage, pb::CoordinatorMessage>> stream;
  int said = 0;

  bool IsHeard() {
    const std::string name = std::to_string(++said);
    pb::AgentMessage message;
    message.mutable_hello()->set_name(name);
    if (!stream->Write(message)) return false;
    heard.call.load()->Read();
    return Eventually([&] { return heard.Has(name); });
  }
  bool Ends() {
    heard.call.load()->Finish(grpc::Status::OK);
    return stream->Finish().ok() && Eventually([this] { return heard.gone.load(); });
  }
};

// The third of four is apart, and what is opened as three live.
class CallServerBesideTest : public CallServerTest {
 protected:
  void Begin(Talk& talk) {
    talk.heard.watch = heard_.watch;
    next_ = &talk.heard;
    talk.stub = Dial();
    talk.stream = talk.stub->Session(&talk.context);
    ASSERT_TRUE(Eventually([&] { return talk.heard.call != nullptr; }));
    ASSERT_TRUE(talk.IsHeard());
  }
};
INSTANTIATE_TEST_SUITE_P(Two, CallServerBesideTest, ::testing::Values(std::tuple(2, false)));

TEST_P(CallServerBesideTest, CallsApartAndOthersAreHeardWhicheverEndsFirst) {
  Talk first, second, apart, later, last;
  for (Talk* talk : {&first, &second, &apart}) Begin(*talk);
  EXPECT_TRUE(second.IsHeard());
  EXPECT_TRUE(first.Ends());
  EXPECT_TRUE(apart.IsHeard());
  EXPECT_TRUE(second.IsHeard());
  EXPECT_TRUE(apart.Ends());
  EXPECT_TRUE(second.IsHeard());
  Begin(later);
  Begin(last);
  EXPECT_TRUE(second.IsHeard());
  EXPECT_TRUE(second.Ends());
  EXPECT_TRUE(last.IsHeard());
  EXPECT_TRUE(later.Ends());
  EXPECT_TRUE(last.IsHeard());
  last.heard.call.load()->Read();
  std::thread stops([this] { Stop(100ms); });
  EXPECT_TRUE(Eventually([&] { return last.heard.Has("end"); }));
  last.heard.call.load()->Finish(grpc::Status::OK);
  stops.join();
  EXPECT_TRUE(last.heard.gone);
}

// A thread that pauses sleeps hundreds of times a second; one that waits is woken for what happens.
TEST_P(CallServerBesideTest, OnlyWhileACallIsApartItPauses) {
  const auto sleeps = [] {
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    return use.ru_nvcsw;
  };
  const auto pauses = [&](std::chrono::milliseconds limit) {
    const long before = sleeps();
    const auto end = std::chrono::steady_clock::now() + limit;
    while (sleeps() - before < 200 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(50ms);
    return sleeps() - before >= 200;
  };
  Talk first, second, apart;
  for (Talk* talk : {&first, &second}) Begin(*talk);
  EXPECT_FALSE(pauses(500ms));
  Begin(apart);
  EXPECT_TRUE(pauses(5s));  // It sleeps itself a hundred times.
  EXPECT_TRUE(apart.Ends());
  EXPECT_FALSE(pauses(500ms));
  EXPECT_TRUE(first.Ends());
  EXPECT_TRUE(second.Ends());
}

using CallServerApartTest = CallServerTest;
INSTANTIATE_TEST_SUITE_P(All, CallServerApartTest, ::testing::Values(std::tuple(0, true)));

// A thread that looked for more all the time would take a core.
TEST_P(CallServerApartTest, WhileNothingComesItSleeps) {
  Talk talk;
  next_ = &talk.heard;
  talk.stub = Dial();
  talk.stream = talk.stub->Session(&talk.context);
  ASSERT_TRUE(Eventually([&] { return talk.heard.call != nullptr; }));
  const auto cpu = [] {
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    return std::chrono::seconds(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           std::chrono::microseconds(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
  };
  std::this_thread::sleep_for(100ms);
  const auto before = cpu();
  std::this_thread::sleep_for(1s);
  EXPECT_LT(cpu() - before, 500ms);
  EXPECT_TRUE(talk.Ends());
}

// Whoever is opened while the server stops is refused or ended, and Stop waits for no other.
TEST_P(CallServerTest, CallsMayComeWhileItStops) {
  std::atomic<bool> over = false;
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&, stub = Dial()] {
      while (!over) {
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + 5s);
        pb::ForgetNodeReply reply;
        EXPECT_FALSE(stub->ForgetNode(&context, pb::ForgetNodeRequest(), &reply).ok());
      }
    });
  }
  std::this_thread::sleep_for(100ms);
  Stop(10s);
  over = true;
  for (std::thread& caller : callers) caller.join();
}

TEST_P(CallServerTest, ACallMayBeFinishedAsItIsOpened) {
  const auto stub = Dial();
  for (int i = 0; i < 100; ++i) {
    grpc::ClientContext context;
    pb::ForgetNodeReply reply;
    const grpc::Status status = stub->ForgetNode(&context, pb::ForgetNodeRequest(), &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_EQ(status.error_message(), "no");
  }
}

TEST_P(CallServerBothWaysTest, StopCancelsWhatIsNotOverAndWaitsForIt) {
  const auto stub = Dial();
  grpc::ClientContext context;
  const auto stream = stub->Session(&context);
  ServerCall& call = Opened();
  call.Read();
  std::thread finisher([&] {
    EXPECT_TRUE(Eventually([&] { return HeardOfTheEnd(); }));
    std::this_thread::sleep_for(50ms);
    EXPECT_FALSE(heard_.gone);
    call.Finish(grpc::Status::OK);
  });
  Stop(100ms);
  EXPECT_TRUE(heard_.gone);
  finisher.join();
  EXPECT_FALSE(stream->Finish().ok());
}

std::string_view Text(const grpc::Slice& slice) {
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

TEST(CallServer, BytesThatAreNoMessageAreToldApart) {
  pb::AgentMessage message;
  message.mutable_hello()->set_name("n");
  const grpc::Slice whole = Serialised(message);
  message.Clear();
  EXPECT_TRUE(Parse(Text(whole), message));
  EXPECT_EQ(message.hello().name(), "n");
  EXPECT_FALSE(Parse("\xff\xff\xff", message));
  EXPECT_TRUE(Parse(Text(Serialised(pb::AgentMessage())), message));
}

}  // namespace
}  // namespace regroup::coordinator
