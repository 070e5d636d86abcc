#include "common/config/state_dir.h"

#include <pwd.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/env.h"
#include "common/config/text.h"

namespace regroup {
namespace {

absl::Status Refuse(std::string_view what, std::string_view because, std::string_view try_this) {
  return UserError(absl::StatusCode::kFailedPrecondition, what, because, try_this);
}

std::string Absolute(const std::string& path) {
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(path, error);
  std::string text = error ? path : absolute.lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

std::string ParentOf(const std::string& path) {
  std::size_t slash = path.rfind('/');
  if (slash == std::string::npos || slash == 0) return "/";
  return path.substr(0, slash);
}

// A home or a system's folder must not be closed to others because it was named by mistake.
bool HoldsOnlyOurs(const std::string& directory) {
  std::error_code error;
  auto at = std::filesystem::directory_iterator(directory, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    const auto begins = [&name](std::string_view with) { return name.rfind(with, 0) == 0; };
    if (!begins("coordinator-") && !begins("node-") && name != "logs") return false;
  }
  return !error;
}

}  // namespace

std::string HostName() {
  char buffer[HOST_NAME_MAX + 1] = {};
  std::string host = ::gethostname(buffer, sizeof buffer - 1) == 0 ? buffer : "";
  host = host.substr(0, host.find('.'));
  std::string name;
  for (char c : host) {
    bool fine = std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
    name += fine ? c : '-';
  }
  constexpr std::size_t kLongest = 63;
  name = name.substr(0, kLongest);
  bool starts_well = !name.empty() && std::isalnum(static_cast<unsigned char>(name.front()));
  return starts_well ? name : "node";
}

std::string HomeDirectory() {
  std::string home = GetEnv("HOME").value_or("");
  if (!home.empty() && home.front() == '/') return home;
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 16384> buffer{};
  if (::getpwuid_r(::getuid(), &entry, buffer.data(), buffer.size(), &found) != 0 ||
      found == nullptr)
    return "";
  return found->pw_dir == nullptr ? "" : found->pw_dir;
}

bool OnNetworkFileSystem(const std::string& path) {
  // Names are those of linux/magic.h and the kernel's file systems. FUSE may be local, but rarely
  // obeys flock.
  constexpr std::array<unsigned long, 13> kNetwork = {0x6969 /* nfs */,
                                                      0xFF534D42 /* cifs */,
                                                      0xFE534D42 /* smb2 */,
                                                      0x517B /* smb */,
                                                      0x0BD00BD0 /* lustre */,
                                                      0x65735546 /* fuse */,
                                                      0x00C36400 /* ceph */,
                                                      0x19830326 /* beegfs */,
                                                      0x47504653 /* gpfs */,
                                                      0x01021997 /* 9p */,
                                                      0x5346414F /* afs */,
                                                      0x6B414653 /* kafs */,
                                                      0x7461636f /* ocfs2 */};
  std::string at = Absolute(path);
  struct statfs info {};
  while (::statfs(at.c_str(), &info) != 0) {
    if (at == "/") return false;
    at = ParentOf(at);
  }
  auto type = static_cast<unsigned long>(info.f_type) & 0xFFFFFFFFul;
  return std::find(kNetwork.begin(), kNetwork.end(), type) != kNetwork.end();
}

absl::StatusOr<StateDirectory> DefaultStateDirectory(std::string_view given, bool service) {
  if (!given.empty()) return StateDirectory{Absolute(std::string(given)), ""};
  if (service && ::geteuid() == 0) return StateDirectory{"/var/lib/regroup", ""};
  std::string base = GetEnv("XDG_STATE_HOME").value_or("");
  if (base.empty() || base.front() != '/') {
    std::string home = HomeDirectory();
    if (home.empty()) {
      return Refuse("no state directory",
                    "neither XDG_STATE_HOME nor HOME is set, and the user has no home directory",
                    "--state-dir /var/tmp/regroup");
    }
    base = home + "/.local/state";
  }
  std::string path = Absolute(Cat(base, "/regroup/", HostName()));
  if (!OnNetworkFileSystem(path)) return StateDirectory{path, ""};
  std::string local = Cat("/var/tmp/regroup-", ::geteuid(), "/", HostName());
  return StateDirectory{local,
                        Cat(path, " is on a network file system, so state is kept in ", local)};
}

absl::StatusOr<std::string> MakeStateDirectory(const std::string& path) {
  std::string normal = Absolute(path);
  std::string refused;  // What may exist all the same: a folder that we may not make again.
  for (std::size_t slash = normal.find('/', 1);; slash = normal.find('/', slash + 1)) {
    std::string part = normal.substr(0, slash);
    if (int error = ::mkdir(part.c_str(), 0700) == 0 ? 0 : errno; error != 0 && error != EEXIST) {
      if (refused.empty()) refused = Cat(part, ": ", std::strerror(error));
      if (error != EACCES && error != EROFS) {
        return Refuse(Cat("cannot make the state directory ", normal), refused,
                      "--state-dir DIRECTORY");
      }
    }
    if (slash == std::string::npos) break;
  }
  struct stat info {};
  if (::stat(normal.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return Refuse(Cat("cannot make the state directory ", normal),
                  refused.empty() ? "it is no directory" : refused, "--state-dir DIRECTORY");
  }
  if (info.st_uid != ::geteuid()) {
    return Refuse(Cat("the state directory ", normal, " belongs to another user"),
                  Cat("its owner is user ", info.st_uid, ", you are ", ::geteuid()),
                  "--state-dir DIRECTORY");
  }
  std::string tightened;
  if ((info.st_mode & 0077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", info.st_mode & 07777);
    const bool shared = (info.st_mode & S_ISVTX) != 0 || !HoldsOnlyOurs(normal);
    if (shared || ::chmod(normal.c_str(), 0700) != 0) {
      return Refuse(Cat("other users can read the state directory ", normal),
                    Cat("its mode is ", mode, ", 0700 is needed"), Cat("chmod 700 ", normal));
    }
    tightened =
        Cat("the state directory ", normal, " was open to others (", mode, "): it is 0700 now");
  }
  if (::access(normal.c_str(), W_OK | X_OK) != 0) {
    return Refuse(Cat("the state directory ", normal, " is not writable"), std::strerror(errno),
                  "--state-dir DIRECTORY");
  }
  return tightened;
}

}  // namespace regroup
