#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace regroup::worker {

// Test-only: a planted defect, to show that what must notice it does (REGROUP_TEST_MUTATION).
enum class Mutation { kNone, kSkipBatch, kRepeatBatch, kResumeFromZero, kGradientScale, kFlipBit };

// What the launcher tells a worker through its environment; the torchrun names.
struct WorkerEnvironment {
  int rank = 0, world_size = 1;  // RANK, WORLD_SIZE.
  int local_rank = 0;            // REGROUP_LOCAL_RANK, else LOCAL_RANK.
  int device_rank = 0;           // LOCAL_RANK: 0 where each rank is shown one GPU alone.
  int ranks_of_node = 1;         // LOCAL_WORLD_SIZE; without it, the world.
  std::string store_host;        // MASTER_ADDR.
  std::uint16_t store_port = 0;  // MASTER_PORT.
  std::string job;               // REGROUP_JOB; empty without Regroup.
  std::uint64_t generation = 0;  // REGROUP_GENERATION; 0 without Regroup.
  std::int64_t resume_step =
      0;               // REGROUP_RESUME_STEP: of the newest commit that the coordinator accepted.
  std::string socket;  // REGROUP_SOCKET; empty: nobody to talk to.
  std::string token;   // REGROUP_WORKER_TOKEN.
  Mutation mutation = Mutation::kNone;
};

// Invalid argument in three parts, naming variable and value. A process without RANK is a world of
// one.
absl::StatusOr<WorkerEnvironment> ReadWorkerEnvironment();

}  // namespace regroup::worker
