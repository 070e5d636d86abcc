// A Regroup of another protocol version, as far as a test needs one: as a coordinator that welcomes
// everybody, or as an agent that says hello. Both print what the other side answers, if it does.
//
//   other_version serve PORT MAJOR MINOR       until it is killed
//   other_version join HOST:PORT MAJOR MINOR   exit 0: welcomed, 1: refused, 2: neither

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "proto/coordinator.grpc.pb.h"

namespace regroup {
namespace {

v1::Version OfThem(char** words) {
  v1::Version version;
  version.set_major(static_cast<std::uint32_t>(std::atoi(words[0])));
  version.set_minor(static_cast<std::uint32_t>(std::atoi(words[1])));
  version.set_build("another build");
  return version;
}

class Service final : public v1::Coordinator::Service {
 public:
  explicit Service(v1::Version version) : version_(std::move(version)) {}

  grpc::Status Session(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::AgentMessage>* stream) override {
    v1::AgentMessage hello;
    if (!stream->Read(&hello)) return grpc::Status::OK;
    v1::CoordinatorMessage answer;
    v1::Welcome& welcome = *answer.mutable_welcome();
    welcome.set_cluster("0123456789abcdef");
    welcome.set_epoch(1);
    welcome.set_name(hello.hello().name());
    *welcome.mutable_version() = version_;
    welcome.set_heartbeat_ns(1'000'000'000);
    welcome.set_lease_ns(5'000'000'000);
    stream->Write(answer);
    while (stream->Read(&hello)) {
    }
    return grpc::Status::OK;
  }
  grpc::Status Read(grpc::ServerContext*, const v1::ReadRequest*, v1::ReadReply* reply) override {
    *reply->mutable_version() = version_;
    return grpc::Status::OK;
  }

 private:
  const v1::Version version_;
};

int Serve(const std::string& port, const v1::Version& version) {
  Service service(version);
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:" + port, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  server->Wait();
  return 0;
}

int Join(const std::string& address, const v1::Version& version) {
  const auto stub =
      v1::Coordinator::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  const auto stream = stub->Session(&context);
  v1::AgentMessage message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_node("0123456789abcdef");
  hello.set_incarnation(1);
  hello.set_boot("boot");
  hello.set_name("other");
  hello.set_slots(1);
  hello.set_address("127.0.0.1");
  hello.set_dialled("127.0.0.1");
  *hello.mutable_version() = version;
  stream->Write(message);
  v1::CoordinatorMessage answer;
  if (!stream->Read(&answer)) return 2;
  std::printf("%s\n", answer.ShortDebugString().c_str());
  context.TryCancel();
  return answer.has_welcome() ? 0 : answer.has_refused() ? 1 : 2;
}

int Main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string what = argv[1];
  const v1::Version version = OfThem(argv + 3);
  return what == "serve" ? Serve(argv[2], version) : Join(argv[2], version);
}

}  // namespace
}  // namespace regroup

int main(int argc, char** argv) { return regroup::Main(argc, argv); }
