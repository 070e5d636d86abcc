// The coordinator as a whole, in this process: real sockets, a real journal, agents that only
// speak.

#include "launcher/coordinator/shell/daemon.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <sqlite3.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <sstream>

#include "common/base/user_error.h"
#include "common/io/address.h"
#include "common/rpc/describe_listener.h"
#include "launcher/coordinator/shell/job_numbers.h"
#include "launcher/coordinator/shell/offline.h"
#include "launcher/coordinator/shell/records.h"
#include "launcher/coordinator/shell/sqlite_journal.h"
#include "tests/launcher/coordinator/shell/daemon_fixture.h"
#include "tests/launcher/coordinator/shell/journal_contract.h"

namespace regroup::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::LogicalAgent;
using testing::LogicalAgentState;

bool IsRunning(const LogicalAgentState& state, const JobId& job) {
  const auto group = state.groups.find(job);
  return group != state.groups.end() && group->second.phase == Phase::kRunning;
}

class DaemonTest : public DaemonFixture {};

TEST_F(DaemonTest, AJobRunsFromSubmitToSucceeded) {
  Start();
  LogicalAgent& a = AddAgent("node0", 2);
  LogicalAgent& b = AddAgent("node1", 2);
  ASSERT_TRUE(a.WaitFor([](const auto& s) { return s.attached; }));
  ASSERT_TRUE(b.WaitFor([](const auto& s) { return s.attached; }));
  Client client = OverUnix();
  const auto job = client.Submit(SubmittedJob("train", 2, 2, 2), "key-1");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(*job, JobId("train-1"));
  ASSERT_TRUE(a.WaitFor([&](const auto& s) { return IsRunning(s, *job); }));
  ASSERT_TRUE(b.WaitFor([&](const auto& s) { return IsRunning(s, *job); }));
  EXPECT_EQ(a.state().runs.at(*job).world_size, 4);
  EXPECT_EQ(a.state().runs.at(*job).store, b.state().runs.at(*job).store);
  EXPECT_NE(a.state().runs.at(*job).group_rank, b.state().runs.at(*job).group_rank);
  ASSERT_TRUE(Eventually([&] { return client.ReadJob("train-1")->state == "running"; }));
  a.ExitAll(*job);
  b.ExitAll(*job);
  const auto end = client.WaitForEnd("last", seconds(10));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->state, "succeeded");
  EXPECT_EQ(end->exit_code, 0);
  // What is over is forgotten on the nodes.
  EXPECT_TRUE(a.WaitFor([](const auto& s) { return s.groups.empty(); }));
  EXPECT_EQ(Stop(), 0);
}

TEST_F(DaemonTest, AFailedWorkerBringsANewGeneration) {
  Start();
  LogicalAgent& a = AddAgent("node0");
  LogicalAgent& b = AddAgent("node1");
  Client client = OverUnix();
  const JobId job = *client.Submit(SubmittedJob("train", 2, 2), "key-1");
  ASSERT_TRUE(a.WaitFor([&](const auto& s) { return IsRunning(s, job); }));
  ASSERT_TRUE(b.WaitFor([&](const auto& s) { return IsRunning(s, job); }));
  b.Exit(job, 0, ExitKind::kSignaled, 9);
  ASSERT_TRUE(
      a.WaitFor([&](const auto& s) { return IsRunning(s, job) && s.times_started.at(job) == 2; }));
  ASSERT_TRUE(
      b.WaitFor([&](const auto& s) { return IsRunning(s, job) && s.times_started.at(job) == 2; }));
  EXPECT_EQ(a.state().runs.at(job).generation, Generation(2));
  const auto view = client.ReadJob("train-1");
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(view->restarts_charged, 1);
}

TEST_F(DaemonTest, StartedAgainItGoesOnAndNothingIsStartedTwice) {
  Start();
  LogicalAgent& a = AddAgent("node0");
  LogicalAgent& b = AddAgent("node1");
  JobId job;
  {
    Client client = OverUnix();
    job = *client.Submit(SubmittedJob("train", 2, 2), "key-1");
  }
  for (LogicalAgent* agent : {&a, &b}) {
    ASSERT_TRUE(agent->WaitFor([&](const auto& s) { return IsRunning(s, job); }));
  }
  const Epoch before = a.state().epoch;
  EXPECT_EQ(Stop(), 0);
  ASSERT_TRUE(a.WaitFor([](const auto& s) { return !s.attached; }));
  Start();
  ASSERT_TRUE(a.WaitFor([](const auto& s) { return s.attached && s.welcomes == 2; }));
  ASSERT_TRUE(b.WaitFor([](const auto& s) { return s.attached && s.welcomes == 2; }));
  EXPECT_EQ(a.state().epoch, before.Next());
  Client client = OverUnix();
  const auto view = client.ReadJob("train");
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->state, "running");
  EXPECT_EQ(view->generation, Generation(1));
  // A submit that is retried with its key across the restart is the same job.
  EXPECT_EQ(*client.Submit(SubmittedJob("train", 2, 2), "key-1"), job);
  a.ExitAll(job);
  b.ExitAll(job);
  EXPECT_EQ(client.WaitForEnd("train-1", seconds(10))->state, "succeeded");
  EXPECT_EQ(a.state().times_started.at(job), 1);
  EXPECT_EQ(b.state().times_started.at(job), 1);
}

TEST_F(DaemonTest, CancelStopsWhatRuns) {
  Start();
  LogicalAgent& a = AddAgent("node0");
  Client client = OverUnix();
  const JobId job = *client.Submit(SubmittedJob("train", 1, 1), "key-1");
  ASSERT_TRUE(a.WaitFor([&](const auto& s) { return IsRunning(s, job); }));
  EXPECT_EQ(*client.Cancel("train"), job);
  const auto end = client.WaitForEnd("train-1", seconds(10));
  EXPECT_EQ(end->state, "cancelled");
  EXPECT_EQ(end->exit_code, 143);
}

TEST_F(DaemonTest, WaitAnswersBeforeItsDeadline) {
  Start();
  Client client = OverUnix();
  const JobId job = *client.Submit(SubmittedJob("train", 1, 1), "key-1");
  const auto view = client.WaitForEnd("train-1", milliseconds(700));
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->id, job);
  EXPECT_NE(view->state, "succeeded");
}

TEST_F(DaemonTest, RefusalsNameWhatIsWrong) {
  Start();
  Client client = OverUnix();
  const absl::Status none = client.ReadJob("nothing").status();
  EXPECT_TRUE(absl::IsNotFound(none)) << none;
  JobSpec bad = SubmittedJob("train", 4, 4);
  bad.max_nodes = 2;
  const absl::Status shape = client.Submit(bad, "key").status();
  EXPECT_TRUE(absl::IsInvalidArgument(shape)) << shape;
  EXPECT_THAT(PartsOf(shape).because, HasSubstr("max_nodes: 2 is below min_nodes 4"));
  EXPECT_FALSE(client.Submit(SubmittedJob("train", 1, 1), "").ok());
  EXPECT_FALSE(client.Cancel("nothing").ok());
  pb::ReadRequest request;
  EXPECT_THAT(PartsOf(client.Read(request).status()).because, HasSubstr("what: 0"));
}

TEST_F(DaemonTest, ACallWithoutADeadlineIsRefused) {
  Start();
  Client client = OverUnix();
  grpc::ClientContext context;
  pb::ReadRequest request;
  request.set_what(pb::ReadRequest::WHAT_JOBS);
  pb::ReadReply reply;
  const absl::Status status = FromGrpcStatus(client.stub().Read(&context, request, &reply));
  EXPECT_THAT(std::string(status.message()), HasSubstr("deadline"));
}

TEST_F(DaemonTest, ASecondOneInTheFolderNamesTheFirst) {
  Start();
  const absl::Status status = Daemon::Open(config_).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(PartsOf(status).because, HasSubstr("pid " + std::to_string(getpid())));
  EXPECT_THAT(PartsOf(status).because, HasSubstr(config_.listen.front()));
}

TEST_F(DaemonTest, APortInUseIsSaidWithWhoHasIt) {
  Start();
  CoordinatorConfig other = config_;
  other.state_dir = dir_.path() + "/other";
  const absl::Status status = Daemon::Open(other).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(PartsOf(status).because, HasSubstr("a Regroup coordinator listens on"));
}

TEST_F(DaemonTest, FolderAndSocketAreForThisUserOnly) {
  Start();
  struct stat status {};
  ASSERT_EQ(stat(daemon_->folder().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  ASSERT_EQ(stat(daemon_->socket_path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

// README's own blocks begin a job under two coordinators of one state directory.
TEST_F(DaemonTest, AJobsNumberIsUniqueInAStateDirectory) {
  Start();
  EXPECT_EQ(*OverUnix().Submit(SubmittedJob("train", 1, 1), "a"), JobId("train-1"));
  const std::string state_dir = std::filesystem::path(daemon_->folder()).parent_path();
  EXPECT_EQ(JobNumbers(state_dir + "/job-number").Take().used(), 1u);
  JobNumbers(state_dir + "/job-number").Take().Use(7);  // Another coordinator's.
  EXPECT_EQ(*OverUnix().Submit(SubmittedJob("train", 1, 1), "b"), JobId("train-8"));
  EXPECT_EQ(*OverUnix().Submit(SubmittedJob("train", 1, 1), "b"), JobId("train-8"));
  EXPECT_EQ(JobNumbers(state_dir + "/job-number").Take().used(), 8u);
  // A file that is gone, or held for long, stops nobody.
  ASSERT_EQ(unlink((state_dir + "/job-number").c_str()), 0);
  EXPECT_EQ(*OverUnix().Submit(SubmittedJob("train", 1, 1), "c"), JobId("train-9"));
  const JobNumbers::Turn held = JobNumbers(state_dir + "/job-number").Take();
  EXPECT_EQ(held.used(), 9u);
  EXPECT_EQ(*OverUnix().Submit(SubmittedJob("train", 1, 1), "d"), JobId("train-10"));
}

TEST_F(DaemonTest, ALongStateDirectoryWorks) {
  config_.state_dir = dir_.path() + "/" + std::string(120, 'a') + "/" + std::string(120, 'b');
  config_.listen = {"127.0.0.1:0"};
  config_.log_file = dir_.path() + "/coordinator.log";
  Start();
  Client client = OverUnix();
  EXPECT_TRUE(client.Submit(SubmittedJob("train", 1, 1), "key").ok());
}

TEST_F(DaemonTest, WhatNobodyServesCanBeRead) {
  Start();
  ASSERT_TRUE(OverUnix().Submit(SubmittedJob("train", 1, 1), "key").ok());
  const std::string folder = daemon_->folder();
  ReadFilter filter;
  filter.job = "train-1";
  EXPECT_TRUE(absl::IsUnavailable(ReadOffline(folder, filter).status()));
  // Of one that runs, but perhaps does not answer, what is durable.
  const auto held = ReadHeld(folder, filter);
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ(held->jobs.front().id, JobId("train-1"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/journal.damaged"));
  ASSERT_EQ(Stop(), 0);
  const auto read = ReadOffline(folder, filter);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->jobs.size(), 1u);
  EXPECT_EQ(read->jobs.front().id, JobId("train-1"));
  filter.job = "nothing";
  EXPECT_FALSE(ReadOffline(folder, filter).ok());
  EXPECT_TRUE(absl::IsNotFound(ReadOffline(folder + "-none", {}).status()));
}

TEST_F(DaemonTest, ADamagedJournalEndsItWithTheReason) {
  Start();
  const std::string folder = daemon_->folder();
  ASSERT_EQ(Stop(), 0);
  std::ofstream(folder + "/journal.db") << std::string(8192, 'x');
  Start();
  thread_.join();
  EXPECT_EQ(exit_status_, 125);
  daemon_ = nullptr;
  std::ifstream log(config_.log_file);
  std::ostringstream text;
  text << log.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("is damaged"));
}

// Garbage on the port and on the socket: the connection ends, the others live on.
TEST_F(DaemonTest, GarbageIsCutAndNobodyElseNotices) {
  Start();
  LogicalAgent& a = AddAgent("node0");
  ASSERT_TRUE(a.WaitFor([](const auto& s) { return s.attached; }));
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(70'000, '\0'),
        std::string("\x00\xce\xf7\x85\x3c\x0d", 6),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string(1'000, '\xff')}) {
    io::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto address = io::ToSocketAddress(daemon_->addresses().front());
    ASSERT_EQ(connect(fd.get(), address->get(), address->size), 0);
    send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    // What answers is HTTP/2's own settings and goodbye; then the end. A handshake cut short ends
    // within 5 s.
    char bytes[1024];
    const timeval limit{8, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ssize_t size = 0;
    do {
      size = recv(fd.get(), bytes, sizeof bytes, 0);
    } while (size > 0 || (size < 0 && errno == EINTR));
    EXPECT_TRUE(size == 0 || errno == ECONNRESET) << errno;
  }
  EXPECT_TRUE(a.state().attached);
  EXPECT_EQ(a.state().breaks, 0);
}

// One call of any method with any bytes.
grpc::Status Call(const std::string& socket, const std::string& method, const std::string& bytes) {
  const Connection connection = *DialUnix(socket);
  grpc::GenericStub stub(connection.channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(10));
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer reply;
  std::promise<grpc::Status> ended;
  stub.UnaryCall(&context, "/regroup.v1.Coordinator/" + method, {}, &request, &reply,
                 [&](grpc::Status status) { ended.set_value(std::move(status)); });
  return ended.get_future().get();
}

TEST_F(DaemonTest, WhatIsNoRequestIsRefusedByName) {
  Start();
  for (const char* method : {"Submit", "Cancel", "Read", "ForgetNode", "Logs"}) {
    const grpc::Status status = Call(daemon_->socket_path(), method, "\xff\xff\xff");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(RenderUserError(FromGrpcStatus(status)), HasSubstr("no message of this kind"))
        << method;
  }
  const grpc::Status unknown = Call(daemon_->socket_path(), "Nothing", "");
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(std::string(FromGrpcStatus(unknown).message()), HasSubstr("its version differs"));
  const grpc::Status large =
      Call(daemon_->socket_path(), "Submit", std::string(kMaxCallMessageBytes + 1, '\n'));
  EXPECT_EQ(large.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  // A stream's message is one that its reader's agent never sent.
  EXPECT_TRUE(Call(daemon_->socket_path(), "SendLogs", "\xff\xff\xff").ok());
  EXPECT_EQ(OverUnix().ReadJob("none").status().code(), absl::StatusCode::kNotFound);
}

// 256 KiB may be 256 MiB, unpacked.
TEST_F(DaemonTest, WhatIsPackedIsNotUnpacked) {
  Start();
  Client client = OverUnix();
  for (const auto packed : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(packed);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    pb::ReadRequest request;
    request.set_selector(std::string(1 << 20, 'x'));
    pb::ReadReply reply;
    const grpc::Status status = client.stub().Read(&context, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << packed;
    EXPECT_THAT(RenderUserError(FromGrpcStatus(status)), HasSubstr("no message of this kind"));
  }
}

TEST_F(DaemonTest, ARehearsedSubmitLeavesNoJob) {
  Start();
  pb::SubmitRequest request;
  *request.mutable_spec() = ToProto(SubmittedJob("train", 1, 1));
  request.set_dry_run(true);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(10));
  pb::SubmitReply reply;
  Client client = OverUnix();
  EXPECT_TRUE(client.stub().Submit(&context, request, &reply).ok());
  EXPECT_EQ(reply.job(), "");
  EXPECT_TRUE(absl::IsNotFound(client.ReadJob("train").status()));
}

// ---- sessions by hand

// Whoever comes while the journal still opens is answered once it is open.
TEST_F(DaemonTest, ItListensBeforeItsJournalIsOpen) {
  config_.state_dir = dir_.path() + "/state";
  config_.listen = {"127.0.0.1:0"};
  config_.log_file = dir_.path() + "/coordinator.log";
  config_.insecure = true;
  daemon_ = *Daemon::Open(config_);
  EXPECT_NE(access((daemon_->folder() + "/journal.db").c_str(), F_OK), 0);
  const io::SocketAddress target = *io::ToSocketAddress(daemon_->addresses().front());
  const io::UniqueFd early(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(early.get(), target.get(), target.size), 0) << strerror(errno);
  Client client = OverTcp();
  std::future<absl::Status> answer =
      std::async(std::launch::async, [&] { return client.ReadJob("none").status(); });
  EXPECT_EQ(answer.wait_for(milliseconds(200)), std::future_status::timeout);
  thread_ = std::thread([this] { exit_status_ = daemon_->Run(/*catch_signals=*/false); });
  EXPECT_TRUE(absl::IsNotFound(answer.get()));
}

// Calls in flight: a wait for a job's end, its logs, an agent's session.
class CallsInFlight {
 public:
  CallsInFlight(Client& client, const std::string& node) {
    for (grpc::ClientContext* context : {&wait_, &logs_, &session_})
      context->set_deadline(std::chrono::system_clock::now() + seconds(60));
    question_.set_what(pb::ReadRequest::WHAT_JOBS);
    question_.set_selector("last");
    question_.set_wait_for_end(true);
    // On its way before the others are: it is there when they are answered.
    client.stub().async()->Read(&wait_, &question_, &answer_, [this](const grpc::Status& status) {
      waited_.set_value(FromGrpcStatus(status));
    });
    pb::LogSelection selection;
    selection.set_job("last");
    selection.set_follow(true);
    lines_ = client.stub().Logs(&logs_, selection);
    stream_ = client.stub().Session(&session_);
    pb::CoordinatorMessage welcome;
    EXPECT_TRUE(stream_->Write(SomeHello(node)) && stream_->Read(&welcome));
    pb::LogsReply first;
    EXPECT_TRUE(lines_->Read(&first));
  }
  void Cancel() {
    for (grpc::ClientContext* context : {&wait_, &logs_, &session_}) context->TryCancel();
  }
  std::vector<absl::Status> Ends() {
    std::vector<absl::Status> ends = {waited_.get_future().get()};
    for (pb::LogsReply reply; lines_->Read(&reply);) {
    }
    ends.push_back(FromGrpcStatus(lines_->Finish()));
    for (pb::CoordinatorMessage message; stream_->Read(&message);) {
    }
    ends.push_back(FromGrpcStatus(stream_->Finish()));
    return ends;
  }

 private:
  grpc::ClientContext wait_, logs_, session_;
  pb::ReadRequest question_;
  pb::ReadReply answer_;
  std::promise<absl::Status> waited_;
  std::unique_ptr<grpc::ClientReader<pb::LogsReply>> lines_;
  std::unique_ptr<grpc::ClientReaderWriter<pb::AgentMessage, pb::CoordinatorMessage>> stream_;
};

TEST_F(DaemonTest, ItsEndFinishesEveryCallFirst) {
  Start();
  Client client = OverTcp();
  ASSERT_TRUE(client.Submit(SubmittedJob("train", 1, 2), "key").ok());
  CallsInFlight calls(client, "node0");
  const auto begin = std::chrono::steady_clock::now();
  daemon_->RequestStop();
  for (const absl::Status& end : calls.Ends())
    EXPECT_THAT(std::string(end.message()), HasSubstr("the coordinator is shutting down"));
  EXPECT_EQ(Stop(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(2));  // Nobody had to be cut.
}

// A second Finish ends the process, and a call without one never lets it end.
TEST_F(DaemonTest, WhoCancelsHasNoControlCharacters) {
  Start();
  Client client = OverUnix();
  const JobId job = *client.Submit(SubmittedJob("train", 1, 1), "k");
  for (const char* who : {"\x1b]0;pwn\x07", "a\nb",
                          "\xc2\x9b"
                          "2J"}) {
    pb::CancelRequest request;
    request.set_job(job.value());
    request.set_key("k2");
    request.set_who(who);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    pb::CancelReply reply;
    const grpc::Status refused = client.stub().Cancel(&context, request, &reply);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(PartsOf(FromGrpcStatus(refused)).because, HasSubstr("who"));
  }
  EXPECT_EQ(client.ReadJob("train")->state, "queued");
}

TEST_F(DaemonTest, ACancelledCallIsFinishedOnce) {
  Start();
  Client client = OverTcp();
  ASSERT_TRUE(client.Submit(SubmittedJob("train", 1, 2), "key").ok());
  for (int i = 0; i < 20; ++i) {
    CallsInFlight calls(client, "node0");
    calls.Cancel();
    if (i == 10) {  // Answers those that wait, too.
      EXPECT_TRUE(client.Cancel("train").ok());
    }
    for (const absl::Status& end : calls.Ends())
      EXPECT_TRUE(i >= 10 || absl::IsCancelled(end)) << end;
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Stop(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(2));
}

TEST_F(DaemonTest, ASessionThatDoesNotSpeakTheProtocolIsRefusedNamingWhy) {
  Start();
  struct Row {
    std::vector<pb::AgentMessage> sent;
    std::string because;
  };
  pb::AgentMessage bad_hello = SomeHello("node0");
  bad_hello.mutable_hello()->set_slots(-1);
  pb::AgentMessage heartbeat;
  heartbeat.mutable_heartbeat();
  const std::vector<Row> rows = {{{bad_hello}, "slots: -1 is not in [1, 4096]"},
                                 {{heartbeat}, "did not begin with hello"},
                                 {{pb::AgentMessage()}, "message: is empty"},
                                 {{SomeHello("node0"), SomeHello("node0")}, "said hello twice"}};
  Client client = OverTcp();
  for (const Row& row : rows) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(10));
    auto stream = client.stub().Session(&context);
    for (const pb::AgentMessage& message : row.sent) stream->Write(message);
    pb::CoordinatorMessage answer;
    std::string refused;
    while (stream->Read(&answer)) {
      if (answer.has_refused())
        refused = answer.refused().what() + " " + answer.refused().because();
    }
    EXPECT_THAT(refused, HasSubstr(row.because));
    EXPECT_FALSE(stream->Finish().ok());
  }
}

// It may have been held up: it dials again, as no answer tells it to stay away.
TEST_F(DaemonTest, ASessionWithoutAWordIsClosedAndNotRefused) {
  Start();
  Client client = OverTcp();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(60));
  auto stream = client.stub().Session(&context);
  pb::CoordinatorMessage answer;
  EXPECT_FALSE(stream->Read(&answer)) << answer.DebugString();
  const absl::Status end = FromGrpcStatus(stream->Finish());
  EXPECT_THAT(std::string(end.message()), HasSubstr("did not say hello within 10 s")) << end;
}

// An agent that never reads: it is cut once 64 answers wait; the others are served meanwhile.
TEST_F(DaemonTest, AnAgentThatDoesNotReadIsCut) {
  Start();
  LogicalAgent& other = AddAgent("node1");
  Client client = OverTcp();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(60));
  auto stream = client.stub().Session(&context);
  ASSERT_TRUE(stream->Write(SomeHello("node0")));
  pb::CoordinatorMessage answer;
  ASSERT_TRUE(stream->Read(&answer));
  ASSERT_TRUE(answer.has_welcome());
  // Launches that are refused, each with a long answer: nobody reads them.
  pb::AgentMessage launch;
  LaunchRequest request{"key", "train", false, SubmittedJob("train", 1, 1), {}};
  request.spec.max_restarts = -1;
  for (int i = 0; i < 20'000; ++i) {
    pb::AgentMessage message;
    *message.mutable_launch() = ToProto(request);
    message.mutable_launch()->mutable_spec()->set_max_restarts(2'000'000'000);
    if (!stream->Write(message)) break;
  }
  const absl::Status end = [&] {
    while (stream->Read(&answer)) {
    }
    return FromGrpcStatus(stream->Finish());
  }();
  EXPECT_FALSE(end.ok());
  EXPECT_TRUE(other.WaitFor([](const auto& s) { return s.attached; }));
}

// ---- many

TEST_F(DaemonTest, SubmitsOfManyClientsAreAllKept) {
  Start();
  constexpr int kClients = 8, kJobs = 25;
  std::vector<std::thread> threads;
  std::atomic<int> acknowledged = 0;
  for (int c = 0; c < kClients; ++c) {
    threads.emplace_back([&, c] {
      Client client = OverUnix();
      for (int i = 0; i < kJobs; ++i) {
        const std::string key = std::to_string(c) + "-" + std::to_string(i);
        acknowledged += client.Submit(SubmittedJob("train", 1, 1), key).ok() ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(acknowledged, kClients * kJobs);
  const std::string folder = daemon_->folder();
  EXPECT_EQ(Stop(), 0);
  const auto read = ReadOffline(folder, ReadFilter{});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->jobs.size(), static_cast<std::size_t>(kClients * kJobs));
}

pb::ReadRequest EveryJob() {
  pb::ReadRequest request;
  request.set_what(pb::ReadRequest::WHAT_JOBS);
  request.set_ended(true);
  return request;
}

// A list that takes several turns of the loop: each reader's shows what was answered before it
// asked, also of jobs that another reader's pages have passed already.
TEST_F(DaemonTest, AListOfManyPagesIsWholeAndNotOlderThanItsQuestion) {
  Start();
  Client client = OverUnix();
  constexpr int kJobs = 400;
  for (int i = 0; i < kJobs; ++i)
    ASSERT_TRUE(client.Submit(SubmittedJob("train", 2, 2), std::to_string(i)).ok());
  std::atomic<bool> over = false;
  std::vector<std::thread> others;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back([&] {
      Client other = OverUnix();
      while (!over) {
        const auto list = other.Read(EveryJob());
        ASSERT_TRUE(list.ok()) << list.status();
        EXPECT_EQ(list->jobs_size(), kJobs);
        EXPECT_FALSE(list->cluster().empty());
      }
    });
  }
  for (int i = 1; i <= 40; ++i) {
    ASSERT_TRUE(client.Cancel("train-" + std::to_string(i)).ok());
    const auto list = client.Read(EveryJob());
    ASSERT_TRUE(list.ok()) << list.status();
    ASSERT_EQ(list->jobs_size(), kJobs);
    EXPECT_EQ(list->jobs(i - 1).state(), "cancelled") << i;
  }
  over = true;
  for (std::thread& other : others) other.join();
}

// It is in no coordinator's memory, but whoever asks is shown all of it: by one job, in a list, and
// by several readers at once.
TEST_F(DaemonTest, TheHistoryOfEndedJobsIsReadWhenSomebodyAsks) {
  Start();
  LogicalAgent& agent = AddAgent("node0");
  std::vector<JobId> jobs;
  {
    Client client = OverUnix();
    for (int i = 0; i < 3; ++i) {
      jobs.push_back(*client.Submit(SubmittedJob("train", 1, 1), std::to_string(i)));
      ASSERT_TRUE(agent.WaitFor([&](const auto& s) { return IsRunning(s, jobs.back()); }));
      agent.ExitAll(jobs.back());
      const auto end = client.WaitForEnd(jobs.back().value(), seconds(10));
      ASSERT_TRUE(end.ok()) << end.status();
    }
  }
  const auto whole = [](const JobView& job) {
    EXPECT_EQ(job.state, "succeeded");
    ASSERT_EQ(job.generations.size(), 1u);
    EXPECT_EQ(job.generations.front().members.size(), 1u);
    ASSERT_GE(job.events.size(), 4u);
    EXPECT_EQ(job.events.front().number, 1u);
    EXPECT_TRUE(std::holds_alternative<JobEnded>(job.events.back().body));
  };
  for (const bool again : {false, true}) {
    if (again) {
      ASSERT_EQ(Stop(), 0);
      Start();
    }
    std::vector<std::thread> readers;
    for (int i = 0; i < 4; ++i) {
      readers.emplace_back([&] {
        Client client = OverUnix();
        for (const JobId& job : jobs) {
          const auto read = client.ReadJob(job.value());
          ASSERT_TRUE(read.ok()) << read.status();
          whole(*read);
          EXPECT_TRUE(client.ReadJob(job.value(), /*detail=*/false)->events.empty());
        }
        pb::ReadRequest all = EveryJob();
        all.set_detail(true);
        const auto list = client.Read(all);
        ASSERT_TRUE(list.ok()) << list.status();
        ASSERT_EQ(list->jobs_size(), 3);
        for (const pb::JobView& job : list->jobs()) {
          EXPECT_GE(job.events_size(), 4);
          EXPECT_EQ(job.generations_size(), 1);
        }
      });
    }
    for (std::thread& reader : readers) reader.join();
  }
}

// Whoever asks is told which row cannot be read, and is shown what is in memory: with it the output
// of the job is found.
TEST_F(DaemonTest, AHistoryThatCannotBeReadIsToldAndHidesNothingElse) {
  Start();
  LogicalAgent& agent = AddAgent("node0");
  JobId job;
  {
    Client client = OverUnix();
    job = *client.Submit(SubmittedJob("train", 1, 1), "key");
    ASSERT_TRUE(agent.WaitFor([&](const auto& s) { return IsRunning(s, job); }));
    agent.ExitAll(job);
    ASSERT_TRUE(client.WaitForEnd(job.value(), seconds(10)).ok());
  }
  const std::string journal = daemon_->folder() + "/journal.db";
  ASSERT_EQ(Stop(), 0);
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(journal.c_str(), &database), SQLITE_OK);
  const char* const sql =
      "UPDATE rows SET sum = sum + 1 WHERE key = CAST('job/train-1/event/000002' AS BLOB)";
  ASSERT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK);
  ASSERT_EQ(sqlite3_changes(database), 1);
  sqlite3_close(database);
  Start();
  Client client = OverUnix();
  pb::ReadRequest request = EveryJob();
  request.set_detail(true);
  for (const char* selector : {"", "train-1"}) {
    request.set_selector(selector);
    const auto read = client.Read(request);
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_EQ(read->jobs_size(), 1);
    EXPECT_EQ(read->jobs(0).state(), "succeeded");
    EXPECT_EQ(read->jobs(0).generations_size(), 1);
    ASSERT_EQ(read->warnings_size(), 1);
    EXPECT_THAT(read->warnings(0), HasSubstr("job/train-1/event/000002"));
  }
}

// While the history of one job is read, another one takes its place: who asks then is told of that.
// Repeated until the first question did come before the other job, with more time for it each
// round.
TEST_F(DaemonTest, AnAnswerWithAHistoryIsNotOlderThanItsQuestion) {
  bool shown = false;
  for (int round = 0; !shown && round < 20; ++round) {
    Start();
    JobId first;
    {
      Client client = OverUnix();
      first = *client.Submit(SubmittedJob("train", 1, 1), std::to_string(2 * round));
      ASSERT_TRUE(client.Cancel("last").ok());
    }
    const std::string journal = daemon_->folder() + "/journal.db";
    ASSERT_EQ(Stop(), 0);
    {
      Journal::Batch long_history;  // It takes a while to read.
      for (std::uint64_t i = 0; i < 50'000; ++i)
        long_history.push_back(EncodeRow(
            {JobEventKey(first, i), JobEventRow{first, {i + 1, WallTime(), CommitAccepted{}}}}));
      const std::unique_ptr<Journal> writer = MakeSqliteJournal(journal);
      ASSERT_TRUE(LoadNow(*writer).ok());
      ASSERT_TRUE(CommitNow(*writer, long_history).ok());
    }
    Start();
    std::promise<JobId> answered;
    std::future<JobId> answer = answered.get_future();
    std::thread reader([&, client = std::make_shared<Client>(OverUnix())] {
      answered.set_value(client->ReadJob("last")->id);
    });
    Client client = OverUnix();
    std::this_thread::sleep_for(milliseconds(5) * round);
    const auto second = client.Submit(SubmittedJob("train", 1, 1), std::to_string(2 * round + 1));
    const bool waits = answer.wait_for(seconds(0)) == std::future_status::timeout;
    const auto newest = client.ReadJob("last");
    reader.join();
    ASSERT_TRUE(second.ok()) << second.status();
    ASSERT_TRUE(newest.ok()) << newest.status();
    EXPECT_EQ(newest->id, *second);
    shown = waits && answer.get() == first;
    ASSERT_EQ(Stop(), 0);
  }
  EXPECT_TRUE(shown);
}

TEST_F(DaemonTest, ItsEndInTheMidstOfHistoriesIsClean) {
  for (int i = 0; i < 5; ++i) {
    Start();
    std::atomic<bool> over = false;
    std::vector<std::thread> readers;
    {
      Client client = OverUnix();
      ASSERT_TRUE(client.Submit(SubmittedJob("train", 1, 1), std::to_string(i)).ok());
      ASSERT_TRUE(client.Cancel("last").ok());
    }
    std::atomic<int> answers = 0;
    for (int k = 0; k < 4; ++k) {
      readers.emplace_back([&, client = std::make_shared<Client>(OverUnix())] {
        while (!over) answers += client->ReadJob("last").ok() ? 1 : 0;
      });
    }
    EXPECT_TRUE(Eventually([&] { return answers > 8; }));
    over = true;  // What is asked now is the last: it would wait 10 s for another coordinator.
    EXPECT_EQ(Stop(), 0);
    for (std::thread& reader : readers) reader.join();
  }
}

TEST_F(DaemonTest, AThousandSessionsFormOneGroup) {
  Start();
  constexpr int kNodes = 1'000;
  for (int i = 0; i < kNodes; ++i) AddAgent("node" + std::to_string(i));
  Client client = OverUnix();
  const auto job = client.Submit(SubmittedJob("train", kNodes, kNodes), "key");
  ASSERT_TRUE(job.ok()) << job.status();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kNodes; ++i) {
    ASSERT_TRUE(
        fleet_.at(i).WaitFor([&](const auto& s) { return IsRunning(s, *job); }, seconds(60)))
        << i;
  }
  std::printf("formed after %.2f s\n",
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  std::set<int> ranks;
  for (int i = 0; i < kNodes; ++i)
    ranks.insert(fleet_.at(i).state().runs.at(*job).mine.front().rank);
  EXPECT_EQ(ranks.size(), static_cast<std::size_t>(kNodes));
}

}  // namespace
}  // namespace regroup::coordinator
