// Nobody gets to gRPC over TCP who does not know the token.

#include <gmock/gmock.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/user_error.h"
#include "common/io/address.h"
#include "common/io/fd.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "common/rpc/describe_listener.h"
#include "common/rpc/proof.h"
#include "launcher/coordinator/core/authority.h"
#include "launcher/coordinator/shell/http2_meter.h"
#include "tests/hostile/fake_agent/fake_agent.h"
#include "tests/launcher/coordinator/shell/daemon_fixture.h"

namespace regroup::coordinator {
namespace {

using ::testing::AllOf;
using testing::FakeAgent;
using ::testing::HasSubstr;

class Gated : public DaemonFixture {
 protected:
  void SetUp() override {
    asks_for_token_ = true;
    Start();
    token_ = *io::ReadFile(TokenPath(), 1 << 10);
    token_.pop_back();
  }
  std::string TokenPath() const { return daemon_->folder() + "/token"; }
  Address At() const { return daemon_->addresses().front(); }
  // A bare connection.
  io::UniqueFd Connected() {
    const io::SocketAddress at = *io::ToSocketAddress(At());
    io::UniqueFd fd(::socket(at.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd.get(), at.get(), at.size), 0);
    const timeval limit{5, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
  }
  static void Say(const io::UniqueFd& fd, const std::string& bytes) {
    EXPECT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // What comes until the other end closes or `enough` bytes are there.
  static std::string Hear(const io::UniqueFd& fd, std::size_t enough) {
    std::string heard(enough, '\0');
    const ssize_t got = ::recv(fd.get(), heard.data(), enough, MSG_WAITALL);
    heard.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return heard;
  }
  // The coordinator's nonce.
  static std::string Greet(const io::UniqueFd& fd, const std::string& nonce) {
    Say(fd, std::string(kProofMagic) + nonce);
    const std::string answer = Hear(fd, 1 + kNonceBytes);
    EXPECT_EQ(answer.size(), 1 + kNonceBytes);
    EXPECT_EQ(answer.front(), kAsks);
    return answer.substr(1);
  }

  std::string token_;
};

TEST_F(Gated, TheTokenIsMadeAtTheFirstStartAndForThisUserOnly) {
  struct stat info {};
  ASSERT_EQ(::stat(TokenPath().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(token_.size(), 64u);
  EXPECT_EQ(Stop(), 0);
  Start();
  EXPECT_EQ(*io::ReadFile(TokenPath(), 1 << 10), token_ + "\n");
}

TEST_F(Gated, WithoutItNothingIsServed) {
  FakeAgent stranger(Dial(At()), std::chrono::seconds(3));
  EXPECT_FALSE(stranger.Join("stranger"));
  EXPECT_FALSE(OverTcp().ReadJob("last").ok());
  const ListenerDescription found = DescribeListener(At());
  EXPECT_EQ(found.kind, ListenerKind::kAsksForToken);
  EXPECT_THAT(found.sentence, HasSubstr("asks for its token"));
  pb::ReadRequest nodes;
  nodes.set_what(pb::ReadRequest::WHAT_NODES);
  EXPECT_EQ(OverUnix().Read(nodes)->nodes_size(), 0);  // The socket knows whose a caller is.
}

TEST_F(Gated, WithItEverythingIs) {
  absl::StatusOr<Connection> connection = DialProved(At(), token_);
  ASSERT_TRUE(connection.ok()) << connection.status();
  FakeAgent agent(*connection);
  EXPECT_TRUE(agent.Join("agent"));
  Client client(*DialProved(At(), token_));
  EXPECT_TRUE(client.Submit(SubmittedJob("job", 1, 1), "key").ok());
  EXPECT_TRUE(client.ReadJob("job").ok());
  EXPECT_TRUE(agent.TakeJob().has_value());
}

int SocketsOfThisProcess() {
  int sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string what = std::filesystem::read_symlink(entry, gone).string();
    sockets += what.rfind("socket:", 0) == 0 ? 1 : 0;
  }
  return sockets;
}

// Its holder may run programs everywhere: no gate counts what it does.
TEST_F(Gated, WhoHasProvedItTakesOneDescriptor) {
  constexpr int kClients = 20;
  Client first(*DialProved(At(), token_));  // gRPC has looked at what the host can by then.
  ASSERT_TRUE(first.Submit(SubmittedJob("job", 1, 1), "key").ok());
  const int before = SocketsOfThisProcess();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<Client>(*DialProved(At(), token_)));
    ASSERT_TRUE(clients.back()->Submit(SubmittedJob("job", 1, 1), absl::StrCat("key-", i)).ok());
  }
  EXPECT_EQ(SocketsOfThisProcess() - before, 2 * kClients);  // The client's is of this process too.
  int given_up = 0;  // By the kernel, once two minutes of what was sent are not acknowledged.
  io::ShutDownSockets([&](int fd) {
    int limit = 0;
    socklen_t size = sizeof limit;
    given_up +=
        ::getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, &size) == 0 && limit == 120'000;
    return false;
  });
  EXPECT_EQ(given_up, kClients + 1);
}

// As a call does that comes through the gate.
TEST_F(Gated, AProofPaysOfWhatItsAddressOwes) {
  const auto greet_and_leave = [this] {
    for (int i = 0; i < 350; ++i) Greet(Connected(), NewNonce());  // 10 ms each.
  };
  greet_and_leave();
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(DialProved(At(), token_).ok());
  greet_and_leave();
  EXPECT_TRUE(DialProved(At(), token_).ok());
}

// Passes one connection on to another address, and counts what HTTP/2 on it is no stream's.
class CountingRelay {
 public:
  explicit CountingRelay(const Address& to) {
    listener_ = *io::BindTcp(at_);
    at_ = *io::LocalAddressOf(listener_.get());
    EXPECT_TRUE(io::ListenAt(listener_.get()).ok());
    thread_ = std::thread([this, to] { Pass(to); });
  }
  ~CountingRelay() {
    if (thread_.joinable()) thread_.join();
  }
  const Address& at() const { return at_; }
  // Once either end has closed.
  const Http2Counts& counts() {
    if (thread_.joinable()) thread_.join();
    return counts_;
  }

 private:
  void Pass(const Address& to) {
    pollfd dialled{listener_.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&dialled, 1, 10'000), 1);
    const io::UniqueFd caller(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const io::SocketAddress address = *io::ToSocketAddress(to);
    const io::UniqueFd server(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(server.get(), address.get(), address.size), 0);
    pollfd both[2] = {{caller.get(), POLLIN, 0}, {server.get(), POLLIN, 0}};
    std::size_t proof = kProofMagic.size() + kNonceBytes + kProofBytes;
    Http2Meter meter(Http2Meter::From::kClient);
    std::vector<char> piece(1 << 20);
    while (::poll(both, 2, 10'000) > 0) {
      for (int from = 0; from < 2; ++from) {
        if (both[from].revents == 0) continue;
        const ssize_t got = ::recv(both[from].fd, piece.data(), piece.size(), 0);
        if (got <= 0) return;
        std::string_view bytes(piece.data(), static_cast<std::size_t>(got));
        ASSERT_EQ(::send(both[1 - from].fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), got);
        if (from == 1) continue;
        const std::size_t skipped = std::min(proof, bytes.size());
        proof -= skipped;
        bytes.remove_prefix(skipped);
        meter.Take(bytes, Instant{}, counts_);  // All in one second.
      }
    }
  }

  Address at_{"127.0.0.1", 0};
  io::UniqueFd listener_;
  Http2Counts counts_;
  std::thread thread_;
};

// gRPC's probes of the bandwidth, pings after what was read, double what a session costs.
TEST_F(Gated, WhoHasProvedItPingsForNothing) {
  CountingRelay relay(At());
  {
    Client client(*DialProved(relay.at(), token_));
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(client.Submit(SubmittedJob("job", 1, 1), absl::StrCat("key-", i)).ok());
      pb::ReadRequest jobs;
      jobs.set_what(pb::ReadRequest::WHAT_JOBS);
      ASSERT_TRUE(client.Read(jobs).ok());
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // It probes less often.
    }
  }
  EXPECT_GE(relay.counts().streams, 40);
  EXPECT_LE(relay.counts().controls, 3);  // Settings, and their acknowledgement.
}

// Also who has a token goes through the gate there.
TEST_F(Gated, UnderInsecureAProofIsNoneAndHarmsNobody) {
  EXPECT_EQ(Stop(), 0);
  config_.insecure = true;
  Start();
  for (const std::string& token : {token_, std::string(64, 'f')}) {
    absl::StatusOr<Connection> proved = DialProved(At(), token);
    if (!proved.ok()) continue;
    EXPECT_TRUE(Client(*proved).Submit(SubmittedJob("job", 1, 1), "key").ok());
  }
  const auto taken = OverTcp().Submit(SubmittedJob("job", 1, 1), "other");
  EXPECT_TRUE(taken.ok()) << taken.status();
}

TEST_F(Gated, AnotherTokenIsToldApartOnBothSides) {
  const absl::Status status = DialProved(At(), std::string(64, 'f')).status();
  EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
  EXPECT_THAT(PartsOf(status).try_this, HasSubstr("regroup token"));
  // The log has a thread of its own.
  EXPECT_TRUE(Eventually([this] {
    const std::string log = *io::ReadFile(config_.log_file, 1 << 20);
    return ::testing::Value(
        log, AllOf(HasSubstr("a caller was turned away"), HasSubstr("it has another token")));
  }));
}

// Both ends prove, each for its own end and for the nonces of this connection only.
TEST_F(Gated, NoProofServesTwice) {
  const std::string nonce = NewNonce();
  const io::UniqueFd first = Connected();
  const Nonces nonces{nonce, Greet(first, nonce)};
  const std::string proof = CallerProof(token_, nonces);
  EXPECT_NE(proof, CoordinatorProof(token_, nonces));
  EXPECT_NE(proof, CallerProof(token_, {NewNonce(), nonces.coordinator}));

  const io::UniqueFd replay = Connected();  // The same proof again.
  EXPECT_NE(Greet(replay, nonce), nonces.coordinator);
  Say(replay, proof);
  EXPECT_EQ(Hear(replay, 1 + kProofBytes), "N");

  const io::UniqueFd mirror = Connected();  // A proof of the other end.
  const Nonces mirrored{nonce, Greet(mirror, nonce)};
  Say(mirror, CoordinatorProof(token_, mirrored));
  EXPECT_EQ(Hear(mirror, 1 + kProofBytes), "N");

  const io::UniqueFd guess = Connected();
  Greet(guess, nonce);
  Say(guess, std::string(kProofBytes, '\0'));
  EXPECT_EQ(Hear(guess, 1 + kProofBytes), "N");

  Say(first, proof);  // Not spent by all of that.
  EXPECT_EQ(Hear(first, 1 + kProofBytes), "Y" + CoordinatorProof(token_, nonces));
  Say(first, std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33));
  EXPECT_EQ(Hear(first, 9).size(), 9u);  // gRPC's settings.
}

// Who listens in its place gets nothing that follows.
TEST(ProveTo, ACoordinatorThatCannotProveItselfIsNotTaken) {
  for (const std::string& proof :
       {std::string(kProofBytes, '\0'), CoordinatorProof("another token", {"", NewNonce()})}) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const io::UniqueFd caller(ends[0]), impostor(ends[1]);
    const std::string said = kAsks + NewNonce() + kProved + proof;
    ASSERT_EQ(::send(impostor.get(), said.data(), said.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(said.size()));
    const absl::Status proved =
        ProveTo(caller.get(), "token", "there", io::MonotonicNow() + std::chrono::seconds(5));
    EXPECT_TRUE(absl::IsUnauthenticated(proved)) << proved;
  }
}

TEST_F(Gated, TheOldestThatHasProvedNothingMakesRoom) {
  io::RaiseDescriptorLimit();
  constexpr int kUnheard = 4096;  // As in listener.cc.
  const io::UniqueFd oldest = Connected();
  Greet(oldest, NewNonce());
  std::vector<io::UniqueFd> silent;
  for (int i = 0; i < kUnheard; ++i) silent.push_back(Connected());
  EXPECT_EQ(Hear(oldest, 1), "");
  EXPECT_TRUE(DialProved(At(), token_).ok());
}

TEST_F(Gated, GarbageInPlaceOfAProofHarmsNobody) {
  for (const std::string& bytes :
       {std::string("R"), std::string("REGROUP\2") + std::string(32, 'x'), std::string(kProofMagic),
        std::string(kProofMagic) + std::string(31, 'x'), std::string("\x16\x03\x01", 3),
        std::string("GET / HTTP/1.1\r\n\r\n")}) {
    const io::UniqueFd fd = Connected();
    Say(fd, bytes);
    ::shutdown(fd.get(), SHUT_WR);
    const std::string answer = Hear(fd, 1 << 10);
    EXPECT_TRUE(bytes.front() != kProofMagic.front() || answer.empty()) << bytes;
  }
  EXPECT_TRUE(OverUnix().Submit(SubmittedJob("job", 1, 1), "key").ok());
}

TEST(SameSecret, ComparesWholeTexts) {
  EXPECT_TRUE(SameSecret("abc", "abc"));
  EXPECT_FALSE(SameSecret("abc", "abd"));
  EXPECT_FALSE(SameSecret("abc", "abcd"));
}

// By a caller that the table does not know: one of this very process.
TEST_F(Gated, EveryHandlerAsksTheTable) {
  grpc::GenericStub stub(daemon_->FromThisProcess());
  const grpc::Slice nothing("");
  const grpc::ByteBuffer empty(&nothing, 1);  // A message of every call without a field.
  const auto* service = pb::AgentMessage::descriptor()->file()->FindServiceByName("Coordinator");
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string call = service->method(i)->name();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    grpc::CompletionQueue queue;
    const auto reader = stub.PrepareUnaryCall(
        &context, absl::StrCat("/", service->full_name(), "/", call), empty, &queue);
    grpc::ByteBuffer reply;
    grpc::Status status;
    reader->StartCall();
    reader->Finish(&reply, &status, &queue);
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED)
        << call << ": " << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(call));
  }
}

TEST(Authority, EveryCallOfTheServiceHasARowAndNothingElseMayBeCalled) {
  const auto* service = pb::AgentMessage::descriptor()->file()->FindServiceByName("Coordinator");
  ASSERT_NE(service, nullptr);
  EXPECT_EQ(static_cast<std::size_t>(service->method_count()), AuthorityTable().size());
  for (int i = 0; i < service->method_count(); ++i)
    EXPECT_TRUE(MayCall(Caller::kHost, service->method(i)->name())) << service->method(i)->name();
  for (const Caller caller : {Caller::kHost, Caller::kToken, Caller::kAnyone})
    EXPECT_FALSE(MayCall(caller, "Reset"));
}

}  // namespace
}  // namespace regroup::coordinator
