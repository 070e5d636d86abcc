#include "worker/train/environment.h"

#include <limits>

#include "common/base/status_macros.h"
#include "common/config/env.h"
#include "common/config/values.h"

namespace regroup::worker {
namespace {

template <class T>
absl::Status ReadInteger(const char* name, T& value, std::int64_t min, std::int64_t max) {
  const std::optional<std::string> text = GetEnv(name);
  if (!text || text->empty()) return absl::OkStatus();
  const absl::StatusOr<std::int64_t> number = ParseNumber(*text, min, max);
  if (!number.ok()) return AtField(name, number.status());
  value = static_cast<T>(*number);
  return absl::OkStatus();
}

absl::StatusOr<Mutation> ReadMutation() {
  const std::string name = GetEnv("REGROUP_TEST_MUTATION").value_or("");
  if (name.empty()) return Mutation::kNone;
  if (name == "skip_batch") return Mutation::kSkipBatch;
  if (name == "repeat_batch") return Mutation::kRepeatBatch;
  if (name == "resume_from_zero") return Mutation::kResumeFromZero;
  if (name == "gradient_scale") return Mutation::kGradientScale;
  if (name == "flip_bit") return Mutation::kFlipBit;
  return absl::InvalidArgumentError(
      "REGROUP_TEST_MUTATION is " + name +
      ", which is none of skip_batch, repeat_batch, resume_from_zero, gradient_scale, flip_bit");
}

}  // namespace

absl::StatusOr<WorkerEnvironment> ReadWorkerEnvironment() {
  constexpr std::int64_t kMax = std::numeric_limits<int>::max();
  WorkerEnvironment e;
  RETURN_IF_ERROR(ReadInteger("WORLD_SIZE", e.world_size, 1, kMax));
  RETURN_IF_ERROR(ReadInteger("RANK", e.rank, 0, e.world_size - 1));
  e.ranks_of_node = e.world_size;
  RETURN_IF_ERROR(ReadInteger("LOCAL_WORLD_SIZE", e.ranks_of_node, 1, kMax));
  RETURN_IF_ERROR(ReadInteger("LOCAL_RANK", e.device_rank, 0, kMax));
  e.local_rank = e.device_rank;
  RETURN_IF_ERROR(ReadInteger("REGROUP_LOCAL_RANK", e.local_rank, 0, kMax));  // Never virtual.
  RETURN_IF_ERROR(ReadInteger("MASTER_PORT", e.store_port, 0, 65535));
  RETURN_IF_ERROR(
      ReadInteger("REGROUP_GENERATION", e.generation, 0, std::numeric_limits<std::int64_t>::max()));
  RETURN_IF_ERROR(ReadInteger("REGROUP_RESUME_STEP", e.resume_step, 0,
                              std::numeric_limits<std::int64_t>::max()));
  e.store_host = GetEnv("MASTER_ADDR").value_or("");
  e.job = GetEnv("REGROUP_JOB").value_or("");
  e.socket = GetEnv("REGROUP_SOCKET").value_or("");
  e.token = GetEnv("REGROUP_WORKER_TOKEN").value_or("");
  if (e.world_size > 1 && (e.store_host.empty() || e.store_port == 0)) {
    return absl::InvalidArgumentError(
        "WORLD_SIZE is " + std::to_string(e.world_size) +
        ", but MASTER_ADDR or MASTER_PORT is missing: start the ranks with regroup run");
  }
  ASSIGN_OR_RETURN(e.mutation, ReadMutation());
  return e;
}

}  // namespace regroup::worker
