#pragma once

// Between the plain values of common/base and their protobuf twins. ToProto is total. FromProto
// checks everything a peer could get wrong (sizes, counts, grammar of ids, numbers out of range or
// not finite, missing messages, unknown enum values) and answers InvalidArgument naming the field,
// its value and its limit; it never allocates more than it was given. Pure; any thread.

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/control.h"
#include "common/base/job_spec.h"
#include "common/base/limits.h"
#include "common/base/reasons.h"
#include "common/base/views.h"
#include "proto/coordinator.pb.h"
#include "proto/job.pb.h"

namespace grpc {
class Status;
}

namespace regroup {

namespace pb = ::regroup::v1;

// Limits of what a peer may send. Those of a job's text are of the whole job, so that its row stays
// below the 512 KiB of one step.
inline constexpr int kMaxNodes = 10'000;
inline constexpr int kMaxRanks = 65'536;  // Per job: max_nodes × workers_per_node.
inline constexpr int kMaxWorkersPerNode = 4'096;
inline constexpr int kMaxGroupsPerNode = 4'096;  // In one inventory.
inline constexpr int kMaxRanksPerHello = 16'384;  // Started or ended, of all its groups.
inline constexpr std::size_t kMaxIdBytes =
    128;  // Node, cluster and boot ids, idempotency keys, job ids.
inline constexpr std::size_t kMaxTextBytes = 4'096;  // One text for people, one path.
inline constexpr std::size_t kMaxJobTextBytes =
    120'000;  // Command, directory and environment together.

// [a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?: jobs and rendezvous ids.
bool IsJobName(std::string_view name);
// NAME-N, N ≥ 1 without leading zeros.
bool IsJobId(std::string_view id);
// [A-Za-z0-9]([A-Za-z0-9._-]{0,252})?: a node's label, as host names are.
bool IsNodeName(std::string_view name);
// 1 to kMaxIdBytes of [A-Za-z0-9._:-]: random ids and keys.
bool IsToken(std::string_view token);
bool IsIpLiteral(std::string_view host);

// job.proto
pb::JobSpec ToProto(const JobSpec& value);
pb::Address ToProto(const Address& value);
pb::RankExit ToProto(const RankExit& value);
pb::Notice ToProto(const Notice& value);
pb::WaitReason ToProto(const WaitReason& value);
pb::RankCause ToProto(const RankCause& value);
pb::EndReason ToProto(const EndReason& value);
pb::FailReason ToProto(const FailReason& value);
pb::RestartPhases ToProto(const RestartPhases& value);
pb::JobEvent ToProto(const JobEvent& value);
absl::StatusOr<JobSpec> FromProto(const pb::JobSpec& value);
absl::StatusOr<Address> FromProto(const pb::Address& value);
absl::StatusOr<RankExit> FromProto(const pb::RankExit& value);
absl::StatusOr<Notice> FromProto(const pb::Notice& value);
absl::StatusOr<WaitReason> FromProto(const pb::WaitReason& value);
absl::StatusOr<RankCause> FromProto(const pb::RankCause& value);
absl::StatusOr<EndReason> FromProto(const pb::EndReason& value);
absl::StatusOr<FailReason> FromProto(const pb::FailReason& value);
absl::StatusOr<RestartPhases> FromProto(const pb::RestartPhases& value);
absl::StatusOr<JobEvent> FromProto(const pb::JobEvent& value);

// coordinator.proto, agent → coordinator
pb::Version ToProto(const Version& value);
pb::GroupReport ToProto(const GroupReport& value);
pb::Hello ToProto(const Hello& value);
pb::LaunchRequest ToProto(const LaunchRequest& value);
pb::Heartbeat ToProto(const HeartbeatMessage& value);
pb::Gpu ToProto(const Gpu& value);
pb::WorkerProgress ToProto(const WorkerProgress& value);
pb::CommitRequest ToProto(const CommitRequest& value);
absl::StatusOr<Version> FromProto(const pb::Version& value);
absl::StatusOr<GroupReport> FromProto(const pb::GroupReport& value);
absl::StatusOr<Hello> FromProto(const pb::Hello& value);
absl::StatusOr<LaunchRequest> FromProto(const pb::LaunchRequest& value);
absl::StatusOr<HeartbeatMessage> FromProto(const pb::Heartbeat& value);
absl::StatusOr<std::vector<Gpu>> GpusFromProto(
    const google::protobuf::RepeatedPtrField<pb::Gpu>& value);
absl::StatusOr<WorkerProgress> FromProto(const pb::WorkerProgress& value);
absl::StatusOr<CommitRequest> FromProto(const pb::CommitRequest& value);

// coordinator.proto, coordinator → agent
pb::Welcome ToProto(const Welcome& value);
pb::Order ToProto(const Order& value);
pb::CommitAnswer ToProto(const CommitAnswer& value);
absl::StatusOr<Welcome> FromProto(const pb::Welcome& value);
absl::StatusOr<Order> FromProto(const pb::Order& value);
absl::StatusOr<CommitAnswer> FromProto(const pb::CommitAnswer& value);

// coordinator.proto, views
pb::GenerationView ToProto(const GenerationView& value);
pb::JobView ToProto(const JobView& value);
pb::NodeView ToProto(const NodeView& value);
pb::MemoryUse ToProto(const MemoryUse& value);
MemoryUse FromProto(const pb::MemoryUse& value);
absl::StatusOr<GenerationView> FromProto(const pb::GenerationView& value);
absl::StatusOr<JobView> FromProto(const pb::JobView& value);
absl::StatusOr<NodeView> FromProto(const pb::NodeView& value);

// What can be shown of a view that somebody sent: all of it; or, where a part is none of our
// protocol, the rest; at worst only its id, in state "damaged". `problem` names the job or node and
// the part; OK: all. One that is damaged hides no other.
JobView ShowableJob(const pb::JobView& value, absl::Status* problem);
NodeView ShowableNode(const pb::NodeView& value, absl::Status* problem);
inline constexpr char kDamaged[] = "damaged";

namespace wire {
inline constexpr std::pair<int, ExecObstacle> kObstacles[] = {
    {pb::EXEC_OBSTACLE_PROGRAM, ExecObstacle::kProgram},
    {pb::EXEC_OBSTACLE_INTERPRETER, ExecObstacle::kInterpreter},
    {pb::EXEC_OBSTACLE_DIRECTORY, ExecObstacle::kDirectory}};
}  // namespace wire

// A refusal with its three parts (common/base/user_error.h): inside a session as a message, in a
// call as error details.
pb::Refused RefusedFrom(const absl::Status& status);  // REQUIRES: !status.ok().
absl::Status StatusFrom(const pb::Refused& refused);  // Never ok.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);  // Of a foreign server too.

}  // namespace regroup
