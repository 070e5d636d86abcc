#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <sys/socket.h>

#include <thread>

#include "common/io/address.h"
#include "common/io/unix_socket.h"
#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "common/rpc/describe_listener.h"
#include "common/rpc/places.h"
#include "common/rpc/resolve.h"
#include "common/rpc/server.h"
#include "proto/coordinator.grpc.pb.h"

namespace regroup {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

io::UniqueFd Listen(Address& address) {
  absl::StatusOr<io::UniqueFd> fd = io::ListenTcp(address);
  EXPECT_TRUE(fd.ok()) << fd.status();
  io::SetNonBlocking(fd->get(), false).IgnoreError();
  address = *io::LocalAddressOf(fd->get());
  return *std::move(fd);
}

// Accepts connections and lets `talk` have each, until closed.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(int)> talk)
      : fd_(Listen(address_)), thread_([this, talk = std::move(talk)] {
          for (;;) {
            const int connection = accept(fd_.get(), nullptr, nullptr);
            if (connection < 0) return;
            talk(connection);
            close(connection);
          }
        }) {}
  ~FakeServer() {
    shutdown(fd_.get(), SHUT_RDWR);
    thread_.join();
  }
  const Address& address() const { return address_; }

 private:
  Address address_{"127.0.0.1", 0};
  io::UniqueFd fd_;
  std::thread thread_;
};

class RefusingService final : public pb::Coordinator::Service {
  grpc::Status Read(grpc::ServerContext*, const pb::ReadRequest*, pb::ReadReply*) override {
    return ToGrpcStatus(absl::PermissionDeniedError("not here"));
  }
};

class GrpcServer {
 public:
  explicit GrpcServer(grpc::Service* service) {
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    if (service != nullptr) {
      builder.RegisterService(service);
    } else {
      builder.RegisterCallbackGenericService(&generic_);
    }
    server_ = builder.BuildAndStart();
    address_ = {"127.0.0.1", static_cast<std::uint16_t>(port)};
  }
  ~GrpcServer() { server_->Shutdown(std::chrono::system_clock::now()); }
  const Address& address() const { return address_; }

 private:
  grpc::CallbackGenericService generic_;  // Answers UNIMPLEMENTED.
  std::unique_ptr<grpc::Server> server_;
  Address address_;
};

TEST(DescribeListener, Nobody) {
  Address address{"127.0.0.1", 0};
  Listen(address);
  EXPECT_EQ(DescribeListener(address).kind, ListenerKind::kNobody);
}

TEST(DescribeListener, ATorchStoreEchoesItsPing) {
  FakeServer store([](int fd) {
    char bytes[10];
    if (recv(fd, bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes) return;
    if (std::string(bytes, 6) == std::string("\x00\xce\xf7\x85\x3c\x0d", 6))
      send(fd, bytes + 6, 4, MSG_NOSIGNAL);
  });
  const ListenerDescription description = DescribeListener(store.address());
  EXPECT_EQ(description.kind, ListenerKind::kTorchStore);
  EXPECT_EQ(description.sentence,
            "a torchrun seems to listen on " + io::FormatAddress(store.address()));
}

TEST(DescribeListener, SomethingThatGreets) {
  FakeServer ssh([](int fd) { send(fd, "SSH-2.0-x\r\n", 11, MSG_NOSIGNAL); });
  EXPECT_EQ(DescribeListener(ssh.address()).kind, ListenerKind::kSomething);
}

// It may be a coordinator, which hears an address again after some seconds.
TEST(DescribeListener, SomethingThatClosesIsAskedAgain) {
  FakeServer closes([](int) {});
  const ListenerDescription found = DescribeListener(closes.address());
  EXPECT_EQ(found.kind, ListenerKind::kSilent);
  EXPECT_NE(found.sentence.find("ends every connection without a word"), std::string::npos);
}

// A coordinator that ends while an agent dials again is not "something that is not Regroup".
TEST(DescribeListener, OneThatWasEndingIsNobody) {
  Address address{"127.0.0.1", 0};
  io::UniqueFd listener = Listen(address);
  std::thread dying([&] {
    const io::UniqueFd connection(accept(listener.get(), nullptr, nullptr));
    listener.reset();
  });
  const ListenerDescription description = DescribeListener(address);
  dying.join();
  EXPECT_EQ(description.kind, ListenerKind::kNobody) << description.sentence;
}

TEST(DescribeListener, AGrpcServerIsOursOnlyIfItAnswersAsOurs) {
  GrpcServer other(nullptr);
  EXPECT_EQ(DescribeListener(other.address()).kind, ListenerKind::kGrpc);
  RefusingService service;
  GrpcServer ours(&service);
  EXPECT_EQ(DescribeListener(ours.address()).kind, ListenerKind::kRegroup);
}

TEST(Channel, ReconnectsSoonAfterTheServerComesUp) {
  Address address{"127.0.0.1", 0};
  Listen(address);
  const Connection connection = Dial(address);
  EXPECT_EQ(connection.target, io::FormatAddress(address));
  auto stub = pb::Coordinator::NewStub(connection.channel);
  grpc::ClientContext first;
  first.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  pb::ReadReply reply;
  EXPECT_EQ(stub->Read(&first, {}, &reply).error_code(), grpc::StatusCode::UNAVAILABLE);
  RefusingService service;
  grpc::ServerBuilder builder;
  ConfigureServer(builder);
  builder.AddListeningPort(connection.target, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const auto begin = std::chrono::steady_clock::now();
  grpc::ClientContext second;
  second.set_wait_for_ready(true);
  second.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  EXPECT_EQ(stub->Read(&second, {}, &reply).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500));
}

TEST(Channel, GoesThroughNoProxy) {
  Address nobody{"127.0.0.1", 0};
  Listen(nobody);
  const std::string proxy = "http://" + io::FormatAddress(nobody);
  const std::vector<const char*> names = {"grpc_proxy", "https_proxy", "http_proxy"};
  for (const char* name : names) ASSERT_EQ(setenv(name, proxy.c_str(), 1), 0);
  RefusingService service;
  GrpcServer server(&service);
  const Connection connection = Dial(server.address());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  pb::ReadReply reply;
  EXPECT_EQ(pb::Coordinator::NewStub(connection.channel)->Read(&context, {}, &reply).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  for (const char* name : names) unsetenv(name);
}

TEST(Channel, TwoServersDoNotShareAPort) {
  RefusingService service;
  GrpcServer first(&service);
  grpc::ServerBuilder builder;
  ConfigureServer(builder);
  int port = 0;
  builder.AddListeningPort(io::FormatAddress(first.address()), grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&service);
  auto second = builder.BuildAndStart();
  EXPECT_EQ(port, 0);
}

TEST(Resolve, LiteralsAreTheirOwnAnswer) {
  EXPECT_EQ(*ResolveHost("10.0.0.4"), std::vector<std::string>{"10.0.0.4"});
  EXPECT_EQ(Resolve({"::1", 29400})->front(), (Address{"::1", 29400}));
}

TEST(Resolve, NamesBecomeLiterals) {
  const auto found = ResolveHost("localhost");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(*found, Contains("127.0.0.1"));
  const absl::Status none = ResolveHost("no-such-host.invalid").status();
  EXPECT_FALSE(none.ok());
  EXPECT_THAT(std::string(none.message()), HasSubstr("no-such-host.invalid"));
}

TEST(Places, AnAdHocCoordinatorListensWhereItIsTold) {
  EXPECT_EQ(
      CoordinatorArguments({"/s", {"10.0.0.4:29400", "[::1]:29400"}, "/t", true}),
      (std::vector<std::string>{"coordinator", "--ad-hoc", "--state-dir", "/s", "--listen",
                                "10.0.0.4:29400,[::1]:29400", "--token-file", "/t", "--insecure"}));
  EXPECT_EQ(CoordinatorArguments({"/s", {}, "", false}),
            (std::vector<std::string>{"coordinator", "--ad-hoc", "--state-dir", "/s", "--local"}));
}

}  // namespace
}  // namespace regroup
