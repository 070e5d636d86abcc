#include "agent/shim/cgroup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/shim/client.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"

namespace regroup::shim {
namespace {

constexpr std::size_t kMaxFileBytes = 1u << 20;

// "key value" lines.
std::optional<long> ValueOf(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.size() <= key.size() || line.substr(0, key.size()) != key || line[key.size()] != ' ')
      continue;
    line.remove_prefix(key.size() + 1);
    long value = 0;
    if (std::from_chars(line.data(), line.data() + line.size(), value).ec == std::errc())
      return value;
  }
  return std::nullopt;
}

// Where the (first) cgroup2 hierarchy is mounted, and which part of it: "/sys/fs/cgroup", "/".
struct CgroupMount {
  std::string mount_point, root;
};
absl::StatusOr<CgroupMount> FindMount() {
  ASSIGN_OR_RETURN(std::string text, io::ReadFile("/proc/self/mountinfo", 16u << 20));
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    std::vector<std::string> fields = absl::StrSplit(line, ' ');
    auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 7 || dash == fields.end() || dash + 1 == fields.end() ||
        *(dash + 1) != "cgroup2")
      continue;
    return CgroupMount{fields[4], fields[3]};
  }
  return absl::NotFoundError("no cgroup v2 hierarchy is mounted");
}

absl::StatusOr<std::string> OwnCgroup() {
  ASSIGN_OR_RETURN(std::string text, io::ReadFile("/proc/self/cgroup", kMaxFileBytes));
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    if (line.rfind("0::", 0) == 0) return line.substr(3);
  }
  return absl::NotFoundError("this process is in no cgroup v2");
}

// Workers may have made folders of their own below.
absl::Status RemoveFolders(const std::string& path) {
  absl::StatusOr<std::vector<std::string>> names = io::ListDirectory(path);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    const std::string child = absl::StrCat(path, "/", name);
    struct stat info;
    if (::lstat(child.c_str(), &info) == 0 && S_ISDIR(info.st_mode))
      RETURN_IF_ERROR(RemoveFolders(child));
  }
  if (::rmdir(path.c_str()) < 0 && errno != ENOENT)
    return io::ErrnoStatus(errno, absl::StrCat("rmdir ", path));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> FindCgroupBase() {
  ASSIGN_OR_RETURN(CgroupMount mount, FindMount());
  ASSIGN_OR_RETURN(std::string own, OwnCgroup());
  // Inside a container only part of the hierarchy is mounted; /proc/self/cgroup shows paths
  // relative to the namespace.
  if (mount.root != "/" && own.rfind(mount.root, 0) == 0) own = own.substr(mount.root.size());
  const std::string base =
      own.empty() || own == "/" ? mount.mount_point : absl::StrCat(mount.mount_point, own);
  // Moving a process needs write access to cgroup.procs of the common ancestor, which is this
  // folder.
  if (::access(absl::StrCat(base, "/cgroup.procs").c_str(), W_OK) < 0) {
    return absl::NotFoundError(absl::StrCat(base, " is not writable by this user"));
  }
  if (::access(base.c_str(), W_OK | X_OK) < 0)
    return absl::NotFoundError(absl::StrCat(base, " takes no folders of this user"));
  // A hierarchy's root has no cgroup.kill to look at, and a folder made to look for one stays when
  // this process is killed before it removes it.
  utsname kernel;
  CHECK(::uname(&kernel) == 0);
  if (!HasCgroupKill(kernel.release)) {
    return absl::NotFoundError(
        absl::StrCat("Linux ", kernel.release, " has no cgroup.kill (Linux 5.14)"));
  }
  return base;
}

bool HasCgroupKill(const std::string& release) {
  int major = 0, minor = 0;
  std::sscanf(release.c_str(), "%d.%d", &major, &minor);
  return std::pair(major, minor) >= std::pair(5, 14);
}

std::string GroupCgroupPrefix(const std::string& node_base, const JobId& job,
                              Generation generation) {
  std::uint32_t mark = 2'166'136'261u;  // FNV-1a.
  for (const char letter : node_base)
    mark = (mark ^ static_cast<unsigned char>(letter)) * 16'777'619u;
  return absl::StrCat("regroup-", job.value(), ".", generation.value(), ".",
                      absl::Hex(mark, absl::kZeroPad8), "-");
}

std::string GroupCgroup(const std::string& base, const std::string& node_base, const Spec& spec) {
  return absl::StrCat(base, "/", GroupCgroupPrefix(node_base, spec.job, spec.generation),
                      spec.nonce.substr(0, 12));
}

absl::Status MakeGroupCgroup(const Spec& spec) {
  if (::mkdir(spec.cgroup.c_str(), 0755) < 0)
    return io::ErrnoStatus(errno, absl::StrCat("make cgroup ", spec.cgroup));
  return absl::OkStatus();
}

void RemoveEmptyCgroup(const std::string& path) {
  absl::StatusOr<Cgroup> cgroup = Cgroup::Open(path);
  if (!cgroup.ok()) return;
  const absl::StatusOr<bool> populated = cgroup->Populated();
  if (populated.ok() && !*populated) cgroup->Remove().IgnoreError();
}

absl::StatusOr<Cgroup> Cgroup::Open(const std::string& path) {
  ASSIGN_OR_RETURN(io::UniqueFd fd, io::OpenDirectory(path));
  io::UniqueFd events(::openat(fd.get(), "cgroup.events", O_RDONLY | O_CLOEXEC));
  if (!events) return io::ErrnoStatus(errno, absl::StrCat("open ", path, "/cgroup.events"));
  return Cgroup(path, std::move(fd), std::move(events));
}

absl::StatusOr<bool> Cgroup::Populated() const {
  char buffer[256];
  ssize_t n = ::pread(events_.get(), buffer, sizeof(buffer), 0);
  if (n < 0 && errno == ENODEV) return false;  // Removed meanwhile, so it was empty.
  if (n < 0) return io::ErrnoStatus(errno, absl::StrCat("read ", path_, "/cgroup.events"));
  return ValueOf({buffer, static_cast<std::size_t>(n)}, "populated").value_or(0) != 0;
}

std::vector<pid_t> Cgroup::Processes() const {
  std::vector<pid_t> pids;
  absl::StatusOr<std::string> text = io::ReadFileAt(fd_.get(), "cgroup.procs", kMaxFileBytes);
  if (!text.ok()) return pids;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(*text, '\n'))) {
    pid_t pid = 0;
    if (std::from_chars(line.data(), line.data() + line.size(), pid).ec == std::errc())
      pids.push_back(pid);
  }
  return pids;
}

absl::Status Cgroup::KillAll() const {
  io::UniqueFd fd(::openat(fd_.get(), "cgroup.kill", O_WRONLY | O_CLOEXEC));
  if (!fd) return io::ErrnoStatus(errno, absl::StrCat("open ", path_, "/cgroup.kill"));
  if (::write(fd.get(), "1", 1) != 1)
    return io::ErrnoStatus(errno, absl::StrCat("write ", path_, "/cgroup.kill"));
  return absl::OkStatus();
}

absl::StatusOr<long> Cgroup::OomKills() const {
  ASSIGN_OR_RETURN(std::string text, io::ReadFileAt(fd_.get(), "memory.events", kMaxFileBytes));
  return ValueOf(text, "oom_kill").value_or(0);
}

absl::Status Cgroup::Remove() {
  events_.reset();
  return RemoveFolders(path_);
}

long HostOomKills() {
  absl::StatusOr<std::string> text = io::ReadFile("/proc/vmstat", kMaxFileBytes);
  return text.ok() ? ValueOf(*text, "oom_kill").value_or(0) : 0;
}

}  // namespace regroup::shim
