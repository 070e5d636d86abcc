#include "common/rpc/local_coordinator.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "common/io/files.h"
#include "common/rpc/places.h"
#include "common/rpc/resolve.h"

namespace regroup {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPid = "pid ", kListens = " listens on";
constexpr std::string_view kFolderPrefix = "coordinator-", kProgram = "regroup\n";
constexpr std::size_t kLockBytes = 16 << 10, kTokenBytes = 1 << 10;

// Its effective user, where that is not hidden. Root could look into every process, and must not
// follow whoever says that he coordinates.
bool IsOurs(const std::string& process) {
  struct stat info {};
  return ::stat(process.c_str(), &info) == 0 && info.st_uid == ::geteuid();
}

bool IsNumber(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

// Network namespaces are told apart by the inode of their file.
std::optional<ino_t> NetworkOf(const std::string& process) {
  struct stat info {};
  if (::stat((process + "/ns/net").c_str(), &info) != 0) return std::nullopt;
  return info.st_ino;
}

// The folders whose lock a process has open.
std::vector<std::string> LockedFolders(const std::string& process) {
  std::vector<std::string> folders;
  std::error_code error;
  for (auto at = fs::directory_iterator(process + "/fd", error);
       !error && at != fs::directory_iterator(); at.increment(error)) {
    std::error_code gone;
    const fs::path target = fs::read_symlink(at->path(), gone);
    if (gone || target.filename() != kCoordinatorLockName) continue;
    const std::string folder = target.parent_path().filename().string();
    if (folder.rfind(kFolderPrefix, 0) == 0) folders.push_back(target.parent_path().string());
  }
  return folders;
}

bool HasPort(const std::vector<Address>& listening, std::uint16_t port) {
  return std::any_of(listening.begin(), listening.end(),
                     [port](const Address& address) { return address.port == port; });
}

}  // namespace

std::string FormatCoordinatorLock(const CoordinatorLock& lock) {
  std::string text = std::string(kPid) + std::to_string(lock.pid);
  if (!lock.listening.empty()) text += kListens;
  for (const Address& address : lock.listening) text += " " + io::FormatAddress(address);
  text += "\n";
  if (!lock.command.empty()) text += lock.command + "\n";
  return text;
}

std::optional<CoordinatorLock> ParseCoordinatorLock(std::string_view text) {
  if (text.substr(0, kPid.size()) != kPid) return std::nullopt;
  std::string_view line = text.substr(kPid.size(), text.find('\n') - kPid.size());
  CoordinatorLock lock;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), lock.pid);
  if (error != std::errc() || lock.pid <= 0) return std::nullopt;
  line.remove_prefix(static_cast<std::size_t>(end - line.data()));
  if (line.substr(0, kListens.size()) == kListens) {
    line.remove_prefix(kListens.size());
    while (!line.empty()) {
      line.remove_prefix(1);  // The space before it.
      const std::size_t length = std::min(line.find(' '), line.size());
      absl::StatusOr<Address> address = io::ParseAddress(line.substr(0, length));
      if (!address.ok()) return std::nullopt;
      lock.listening.push_back(*std::move(address));
      line.remove_prefix(length);
    }
  }
  const std::size_t first = text.find('\n');
  if (first != std::string_view::npos) {
    text.remove_prefix(first + 1);
    lock.command = text.substr(0, text.find('\n'));
  }
  return lock;
}

std::optional<CoordinatorLock> ReadCoordinatorLock(const std::string& folder) {
  absl::StatusOr<std::string> text = io::ReadFile(folder + "/" + kCoordinatorLockName, kLockBytes);
  return text.ok() ? ParseCoordinatorLock(*text) : std::nullopt;
}

absl::StatusOr<std::string> ReadCoordinatorToken(const std::string& folder) {
  absl::StatusOr<std::string> token =
      io::ReadFile(folder + "/" + kCoordinatorTokenName, kTokenBytes);
  if (token.ok() && !token->empty() && token->back() == '\n') token->pop_back();
  return token;
}

std::string LocalCoordinator::Socket() const { return folder + "/" + kCoordinatorSocketName; }

std::vector<LocalCoordinator> LocalCoordinators() {
  std::vector<LocalCoordinator> found;
  const std::optional<ino_t> network = NetworkOf("/proc/self");
  std::error_code error;
  for (auto at = fs::directory_iterator("/proc", error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    const std::string pid = at->path().filename().string(), process = at->path().string();
    if (!IsNumber(pid) || !IsOurs(process)) continue;
    const absl::StatusOr<std::string> program = io::ReadFile(process + "/comm", 64);
    if (!program.ok() || *program != kProgram || NetworkOf(process) != network) continue;
    for (std::string& folder : LockedFolders(process)) {
      std::optional<CoordinatorLock> lock = ReadCoordinatorLock(folder);
      // Another pid: the process is about to begin, or only reads what an ended coordinator has
      // left.
      if (lock && std::to_string(lock->pid) == pid)
        found.push_back({std::move(folder), *std::move(lock)});
    }
  }
  std::sort(found.begin(), found.end(), [](const LocalCoordinator& a, const LocalCoordinator& b) {
    return a.folder < b.folder;
  });
  return found;
}

bool ServedBy(const std::vector<Address>& listening, const Address& address) {
  return std::any_of(listening.begin(), listening.end(), [&](const Address& at) {
    if (at.port != address.port) return false;
    if (at.host == address.host) return true;
    const bool v6 = address.host.find(':') != std::string::npos;
    const bool same_family = (at.host.find(':') != std::string::npos) == v6;
    return io::IsWildcard(at.host) && same_family &&
           (io::IsLoopback(address.host) || io::InterfaceOwning(address.host).ok());
  });
}

std::optional<LocalCoordinator> FindLocalCoordinator(const io::HostPort& endpoint) {
  std::vector<LocalCoordinator> local = LocalCoordinators();
  std::erase_if(local, [&](const LocalCoordinator& coordinator) {
    return !HasPort(coordinator.lock.listening, endpoint.port);
  });
  if (local.empty()) return std::nullopt;
  const absl::StatusOr<std::vector<Address>> addresses = Resolve(endpoint);
  if (!addresses.ok()) return std::nullopt;
  for (const Address& address : *addresses) {
    for (LocalCoordinator& coordinator : local) {
      if (ServedBy(coordinator.lock.listening, address)) return std::move(coordinator);
    }
  }
  return std::nullopt;
}

}  // namespace regroup
