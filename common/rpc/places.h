#pragma once

// Where a coordinator lives in a state directory and how it is started: what coordinator, agent and
// command line have to agree on. <state>/coordinator-<port>/, or <state>/coordinator-local/ for one
// that has only a Unix socket.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace regroup {

inline constexpr std::uint16_t kDefaultCoordinatorPort = 29400;

inline constexpr char kCoordinatorLockName[] =
    "lock";  // flocked for life; its text names the holder.
inline constexpr char kCoordinatorSocketName[] = "socket";  // 0600; every call is served here.
inline constexpr char kCoordinatorJournalName[] = "journal.db";
inline constexpr char kCoordinatorTokenName[] = "token";  // 0600; shown over TCP (proof.h).
inline constexpr char kCoordinatorLogName[] =
    "coordinator.log";  // Where an ad-hoc coordinator's output goes.

std::string CoordinatorFolder(std::string_view state_dir, std::uint16_t port);
std::string LocalCoordinatorFolder(std::string_view state_dir);

// argv (after the path of `regroup`) of the detached coordinator of a launch command. It exits when
// its last job is over. It must be started in its own session, with default signal dispositions, an
// empty signal mask and standard input from /dev/null; standard output and error may be any file,
// its log goes to <folder>/coordinator.log.
struct AdHocCoordinator {
  std::string state_dir;
  std::vector<std::string> listen;  // ADDRESS:PORT each, IP literals; empty: coordinator-local.
  std::string token_file;           // Empty: of REGROUP_TOKEN, or made by it.
  bool insecure = false;
};
std::vector<std::string> CoordinatorArguments(const AdHocCoordinator& coordinator);

}  // namespace regroup
