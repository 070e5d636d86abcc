#include "launcher/coordinator/shell/read_replies.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <vector>

#include "proto/coordinator.grpc.pb.h"
#include "tests/launcher/coordinator/shell/daemon_fixture.h"
#include "tests/launcher/coordinator/shell/temp_dir.h"

namespace regroup::coordinator {
namespace {

using namespace std::chrono_literals;

// Finishes its call once that is cut.
class Taker final : public CallHandler {
 public:
  explicit Taker(ServerCall& call) : call_(call) { call_.Read(); }
  void OnRead(std::optional<std::string_view> /*message*/) override {
    call_.Finish(grpc::Status::OK);
  }

 private:
  ServerCall& call_;
};

// Each cut may write: whoever asks next has the rest cut.
TEST(ReadRepliesTest, OneQuestionCutsSixteenAtMost) {
  testing::TempDir folder;
  const std::string target = "unix:" + folder.path() + "/socket";
  std::mutex mutex;
  std::vector<ServerCall*> calls;
  CallServer server([&](ServerCall& call) {
    const std::scoped_lock lock(mutex);
    calls.push_back(&call);
    return std::make_unique<Taker>(call);
  });
  grpc::ServerBuilder builder;
  builder.AddListeningPort(target, grpc::InsecureServerCredentials());
  server.Start(builder);

  const auto stub =
      pb::Coordinator::NewStub(grpc::CreateChannel(target, grpc::InsecureChannelCredentials()));
  constexpr std::size_t kSlow = 20;
  std::vector<grpc::ClientContext> contexts(kSlow + 2);
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<pb::AgentMessage, pb::CoordinatorMessage>>>
      streams;
  for (grpc::ClientContext& context : contexts) streams.push_back(stub->Session(&context));
  EXPECT_TRUE(Eventually([&] {
    const std::scoped_lock lock(mutex);
    return calls.size() == kSlow + 2;
  }));
  ReadReplies replies;
  const Instant now(1h);
  for (std::size_t i = 0; i < kSlow; ++i) replies.Sending(CallId(i + 1), *calls[i], now - 10s);
  replies.Sending(CallId(kSlow + 1), *calls[kSlow], now - 4s);
  const std::string peer = calls[0]->peer();
  EXPECT_EQ(replies.CutSlow(now).cut, 16);
  EXPECT_EQ(replies.CutSlow(now).cut, 4);
  EXPECT_EQ(replies.CutSlow(now).cut, 0);  // The last one has a second left.
  // What is still there two seconds later is in the way of their connections.
  EXPECT_EQ(replies.CutSlow(now + 1900ms).stuck.size(), 0u);  // That cuts the last one.
  EXPECT_EQ(replies.CutSlow(now + 2s).stuck, std::set<std::string>{peer});
  EXPECT_EQ(replies.CutSlow(now + 3s).stuck.size(), 0u);  // Named once.
  // One that was cut long ago is not why others wait now.
  ReadReplies later;
  later.Sending(CallId(1), *calls[kSlow + 1], now - 10s);
  EXPECT_EQ(later.CutSlow(now).cut, 1);
  EXPECT_EQ(later.CutSlow(now + 30s).stuck.size(), 0u);
  int cut = 0;
  contexts[kSlow].TryCancel();
  for (const auto& stream : streams)
    cut += stream->Finish().error_code() == grpc::StatusCode::CANCELLED ? 1 : 0;
  EXPECT_EQ(cut, static_cast<int>(kSlow + 2));
  server.Stop(std::chrono::system_clock::now() + 10s);
}

}  // namespace
}  // namespace regroup::coordinator
