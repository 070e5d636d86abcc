// Streams of logs to a coordinator, where the host has no thread to give.

#include "agent/shell/log_streams.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/io/proc.h"
#include "proto/coordinator.grpc.pb.h"
#include "tests/common/io/temp_directory.h"

namespace regroup::agent {
namespace {

// Takes what agents send.
class Coordinator final : public v1::Coordinator::Service {
 public:
  Coordinator() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(target(), grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Coordinator() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string target() const { return "unix:" + dir_ / "socket"; }
  grpc::Status SendLogs(grpc::ServerContext*, grpc::ServerReader<v1::SendLogsRequest>* reader,
                        v1::SendLogsReply*) override {
    v1::SendLogsRequest request;
    while (reader->Read(&request)) named_ += request.stream_id() != 0 ? 1 : 0;
    ++ended_;
    return grpc::Status::OK;
  }
  int named() const { return named_; }
  int ended() const { return ended_; }

 private:
  const io::TempDirectory dir_;
  std::atomic<int> named_ = 0, ended_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// On a thread that may make no other: only it becomes a user that a limit holds.
template <class Do>
void WithoutThreads(Do what) {
  std::thread([&] {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NPROC, &before), 0);
    const rlimit none{0, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NPROC, &none), 0);
    constexpr long kNobody = 65534;
    EXPECT_EQ(::syscall(SYS_setresuid, kNobody, kNobody, kNobody), 0);
    what();
    EXPECT_EQ(::setrlimit(RLIMIT_NPROC, &before), 0);
  }).join();
}

bool Eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 2000 && !holds(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return holds();
}

TEST(LogStreams, WithoutAThreadAReaderIsNotServedAndMayAskAgain) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user on one thread";
  const io::TempDirectory root;
  Coordinator coordinator;
  Connection connection;
  connection.channel =
      grpc::CreateChannel(coordinator.target(), grpc::InsecureChannelCredentials());
  ASSERT_TRUE(connection.channel->WaitForConnected(std::chrono::system_clock::now() +
                                                   std::chrono::seconds(20)));
  LogStreams streams(root.path());
  const auto open = [&](std::uint64_t stream) {
    v1::OpenLogs asked;
    asked.set_stream_id(stream);
    asked.mutable_selection()->set_job("job-1");
    streams.Open(connection, NodeId("node"), "n", asked, false);
  };
  open(1);  // Whatever threads gRPC needs are there from then on.
  EXPECT_TRUE(Eventually([&] { return coordinator.named() == 1 && coordinator.ended() == 1; }));
  WithoutThreads([&] { open(2); });
  EXPECT_EQ(coordinator.named(), 1);
  open(2);
  EXPECT_TRUE(Eventually([&] { return coordinator.named() == 2 && coordinator.ended() > 1; }));
}

}  // namespace
}  // namespace regroup::agent
