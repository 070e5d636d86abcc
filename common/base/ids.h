#pragma once

#include <cstdint>
#include <string>

#include "common/base/strong_id.h"

namespace regroup {

using ClusterId = StrongId<struct ClusterIdTag, std::string>;  // Random, born with the journal.
using JobId = StrongId<struct JobIdTag, std::string>;          // NAME-N, as people see it.
using NodeId = StrongId<struct NodeIdTag, std::string>;  // Random, in the node's flocked folder.
using BootId = StrongId<struct BootIdTag, std::string>;  // /proc/sys/kernel/random/boot_id.
using Epoch = StrongId<struct EpochTag, std::uint64_t>;  // One life of a coordinator.
using Generation =
    StrongId<struct GenerationTag, std::uint64_t>;  // One incarnation of a job's group; from 1.
using Incarnation =
    StrongId<struct IncarnationTag, std::uint64_t>;  // One life of an agent; rises per start.
using OrderNo = StrongId<struct OrderNoTag, std::uint64_t>;      // Rises per session.
using ReportNo = StrongId<struct ReportNoTag, std::uint64_t>;    // Rises per agent incarnation.
using SessionId = StrongId<struct SessionIdTag, std::uint64_t>;  // Rises per coordinator process.
using CallId = StrongId<struct CallIdTag, std::uint64_t>;        // One pending RPC of a client.

}  // namespace regroup
