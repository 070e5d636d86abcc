#include "tests/launcher/coordinator/shell/daemon_fixture.h"

#include "common/base/status_macros.h"
#include "common/io/address.h"

namespace regroup::coordinator {
namespace {

void SetDeadline(grpc::ClientContext& context,
                 std::chrono::milliseconds limit = std::chrono::seconds(10)) {
  context.set_deadline(std::chrono::system_clock::now() + limit);
  context.set_wait_for_ready(true);
}

absl::StatusOr<JobView> OnlyJob(const absl::StatusOr<pb::ReadReply>& reply) {
  if (!reply.ok()) return reply.status();
  if (reply->jobs_size() != 1)
    return absl::NotFoundError(std::to_string(reply->jobs_size()) + " jobs");
  return FromProto(reply->jobs(0));
}

}  // namespace

absl::StatusOr<JobId> Client::Submit(const JobSpec& spec, const std::string& key) {
  grpc::ClientContext context;
  SetDeadline(context);
  pb::SubmitRequest request;
  request.set_key(key);
  *request.mutable_spec() = ToProto(spec);
  pb::SubmitReply reply;
  RETURN_IF_ERROR(FromGrpcStatus(stub_->Submit(&context, request, &reply)));
  return JobId(reply.job());
}

absl::StatusOr<JobId> Client::Cancel(const std::string& job, bool now) {
  grpc::ClientContext context;
  SetDeadline(context);
  pb::CancelRequest request;
  request.set_key("cancel-" + job);
  request.set_job(job);
  request.set_now(now);
  request.set_who("a test");
  pb::CancelReply reply;
  RETURN_IF_ERROR(FromGrpcStatus(stub_->Cancel(&context, request, &reply)));
  return JobId(reply.job());
}

absl::StatusOr<pb::ReadReply> Client::Read(const pb::ReadRequest& request,
                                           std::chrono::milliseconds limit) {
  grpc::ClientContext context;
  SetDeadline(context, limit);
  pb::ReadReply reply;
  RETURN_IF_ERROR(FromGrpcStatus(stub_->Read(&context, request, &reply)));
  return reply;
}

absl::StatusOr<JobView> Client::ReadJob(const std::string& job, bool detail) {
  pb::ReadRequest request;
  request.set_what(pb::ReadRequest::WHAT_JOBS);
  request.set_selector(job);
  request.set_detail(detail);
  return OnlyJob(Read(request));
}

absl::StatusOr<JobView> Client::WaitForEnd(const std::string& job,
                                           std::chrono::milliseconds limit) {
  pb::ReadRequest request;
  request.set_what(pb::ReadRequest::WHAT_JOBS);
  request.set_selector(job);
  request.set_wait_for_end(true);
  return OnlyJob(Read(request, limit));
}

bool Eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

pb::AgentMessage SomeHello(const std::string& node) {
  Hello hello;
  hello.node = NodeId("id-" + node);
  hello.incarnation = Incarnation(1);
  hello.boot = BootId("boot");
  hello.name = node;
  hello.version.major = kProtocolMajor;
  hello.version.minor = kProtocolMinor;
  hello.address = "127.0.0.1";
  pb::AgentMessage message;
  *message.mutable_hello() = ToProto(hello);
  return message;
}

JobSpec SubmittedJob(const std::string& name, int min_nodes, int max_nodes, int workers) {
  JobSpec spec;
  spec.name = name;
  spec.min_nodes = min_nodes;
  spec.max_nodes = max_nodes;
  spec.workers_per_node = workers;
  spec.command = {"true"};
  spec.directory = "/";
  spec.max_restarts = 3;
  return spec;
}

void DaemonFixture::Start() {
  if (config_.state_dir.empty()) {
    config_.state_dir = dir_.path() + "/state";
    config_.listen = {"127.0.0.1:0"};
    config_.log_file = dir_.path() + "/coordinator.log";
    config_.insecure = !asks_for_token_;
    config_.build = "test";
  }
  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Open(config_);
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  daemon_ = *std::move(daemon);
  config_.listen = {io::FormatAddress(daemon_->addresses().front())};
  thread_ = std::thread([this] { exit_status_ = daemon_->Run(/*catch_signals=*/false); });
}

int DaemonFixture::Stop() {
  if (!thread_.joinable()) return 0;
  daemon_->RequestStop();
  thread_.join();
  daemon_ = nullptr;
  return exit_status_;
}

testing::LogicalAgent& DaemonFixture::AddAgent(const std::string& name, int slots) {
  testing::LogicalAgentOptions options;
  options.coordinator = daemon_->addresses().front();
  options.name = name;
  options.slots = slots;
  return fleet_.Add(options);
}

}  // namespace regroup::coordinator
