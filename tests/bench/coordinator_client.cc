#include "tests/bench/coordinator_client.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "common/rpc/convert.h"

namespace regroup::bench {

template <class Request, class Reply, class Call>
Reply CoordinatorClient::Repeat(const Request& request, Call call) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  std::string why = "no socket";
  while (std::chrono::steady_clock::now() < limit) {
    if (stub_ == nullptr) {
      if (absl::StatusOr<Connection> dialled = DialUnix(socket_path_); dialled.ok()) {
        connection_ = *std::move(dialled);
        stub_ = pb::Coordinator::NewStub(connection_.channel);
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        continue;
      }
    }
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    context.set_wait_for_ready(true);
    Reply reply;
    const grpc::Status status = call(*stub_, context, request, reply);
    if (status.ok()) return reply;
    why = status.error_message();
  }
  std::fprintf(stderr, "the coordinator did not answer for a minute: %s\n", why.c_str());
  std::_Exit(1);
}

JobId CoordinatorClient::Submit(const std::string& name, int nodes, const std::string& key) {
  JobSpec spec;
  spec.name = name;
  spec.min_nodes = spec.max_nodes = nodes;
  spec.command = {"true"};
  spec.directory = "/";
  pb::SubmitRequest request;
  request.set_key(key);
  *request.mutable_spec() = ToProto(spec);
  return JobId(Repeat<pb::SubmitRequest, pb::SubmitReply>(request, [](auto& stub, auto& context,
                                                                      auto& q, auto& r) {
                 return stub.Submit(&context, q, &r);
               }).job());
}

std::set<JobId> CoordinatorClient::Jobs() {
  pb::ReadRequest request;
  request.set_what(pb::ReadRequest::WHAT_JOBS);
  const pb::ReadReply reply = Repeat<pb::ReadRequest, pb::ReadReply>(
      request,
      [](auto& stub, auto& context, auto& q, auto& r) { return stub.Read(&context, q, &r); });
  std::set<JobId> jobs;
  for (const pb::JobView& job : reply.jobs()) jobs.insert(JobId(job.id()));
  return jobs;
}

}  // namespace regroup::bench
