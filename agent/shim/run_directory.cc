#include "agent/shim/run_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"
#include "common/io/proc.h"

namespace regroup::shim {
namespace {

constexpr std::size_t kMaxSpecBytes = 4u << 20, kMaxStateBytes = 1u << 20,
                      kMaxNotesBytes = 4u << 20;

absl::Status TryBase(const std::string& base) {
  RETURN_IF_ERROR(io::MakePrivateDirectory(base));
  ASSIGN_OR_RETURN(io::FileSystemKind kind, io::FileSystemKindOf(base));
  if (kind != io::FileSystemKind::kMemory)
    return absl::FailedPreconditionError("is not on a tmpfs");
  // Says whether it is writable, also where the permission bits say nothing (read-only mounts).
  const std::string probe = absl::StrCat(base, "/.probe.", ::getpid());
  absl::Status written = io::ReplaceFile(probe, "", io::Durability::kVolatile);
  ::unlink(probe.c_str());
  return written;
}

// /run/regroup is only made where /run is a tmpfs: on other hosts an empty folder on disk would be
// left behind.
bool ParentIsMemory(const std::string& base) {
  absl::StatusOr<io::FileSystemKind> kind =
      io::FileSystemKindOf(base.substr(0, base.find_last_of('/')));
  return kind.ok() && *kind == io::FileSystemKind::kMemory;
}

}  // namespace

absl::StatusOr<std::string> MakeRunBase(const NodeId& node, const std::string& xdg_runtime_dir) {
  std::vector<std::string> bases = {"/run/regroup"};
  if (!xdg_runtime_dir.empty()) bases.push_back(absl::StrCat(xdg_runtime_dir, "/regroup"));
  bases.push_back(absl::StrCat("/dev/shm/regroup-", ::geteuid()));
  std::vector<std::string> reasons;
  for (const std::string& base : bases) {
    const bool exists = ::access(base.c_str(), F_OK) == 0;
    absl::Status usable = exists || ParentIsMemory(base)
                              ? TryBase(base)
                              : absl::FailedPreconditionError("is not on a tmpfs");
    if (usable.ok()) {
      const std::string node_base = absl::StrCat(base, "/", node.value());
      RETURN_IF_ERROR(io::MakePrivateDirectory(node_base));
      return node_base;
    }
    reasons.push_back(absl::StrCat(base, ": ", usable.message()));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no place for run directories (", absl::StrJoin(reasons, "; "), ")"));
}

std::string RunDirectoryName(const JobId& job, Generation generation, Role role) {
  return absl::StrCat(job.value(), ".", generation.value(), role == Role::kStore ? ".store" : "");
}

absl::StatusOr<RunDirectory> CreateRunDirectory(const std::string& node_base, const Spec& spec) {
  const std::string path =
      absl::StrCat(node_base, "/", RunDirectoryName(spec.job, spec.generation, spec.role));
  const std::string bytes = Encode(spec);
  if (bytes.size() > kMaxSpecBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("command and environment of ", spec.job.value(), " have ", bytes.size(),
                     " bytes, at most ", kMaxSpecBytes, " are allowed"));
  }
  int made = ::mkdir(path.c_str(), 0700);
  if (made < 0 && errno == ENOENT) {  // Whoever tidies up /dev/shm has taken its place away.
    const std::string base = node_base.substr(0, node_base.find_last_of('/'));
    if (::access(base.c_str(), F_OK) != 0) RETURN_IF_ERROR(io::MakePrivateDirectory(base));
    RETURN_IF_ERROR(io::MakePrivateDirectory(node_base));
    made = ::mkdir(path.c_str(), 0700);
  }
  if (made < 0) return io::ErrnoStatus(errno, absl::StrCat("make run directory ", path));
  ASSIGN_OR_RETURN(RunDirectory directory, OpenRunDirectory(path));
  absl::Status written = WriteSpec(directory, spec);
  if (!written.ok()) {
    io::RemoveTree(path).IgnoreError();
    return written;
  }
  return directory;
}

absl::StatusOr<RunDirectory> OpenRunDirectory(const std::string& path) {
  ASSIGN_OR_RETURN(io::UniqueFd fd, io::OpenDirectory(path));
  return RunDirectory{path, std::move(fd)};
}

absl::Status WriteSpec(const RunDirectory& directory, const Spec& spec) {
  return io::ReplaceFileAt(directory.fd.get(), kSpecFile, Encode(spec), io::Durability::kVolatile);
}

absl::StatusOr<Spec> ReadSpec(const RunDirectory& directory) {
  ASSIGN_OR_RETURN(const std::string bytes,
                   io::ReadFileAt(directory.fd.get(), kSpecFile, kMaxSpecBytes));
  return DecodeSpec(bytes);
}

absl::StatusOr<StartRanks> ReadStarted(const RunDirectory& directory) {
  ASSIGN_OR_RETURN(const std::string bytes,
                   io::ReadFileAt(directory.fd.get(), kStartedFile, kMaxMessageBytes));
  ASSIGN_OR_RETURN(Command command, DecodeCommand(bytes));
  auto* start = std::get_if<StartRanks>(&command);
  if (start == nullptr) return absl::InvalidArgumentError("damaged started mark");
  return std::move(*start);
}

absl::StatusOr<RunRecord> ReadRunDirectory(const std::string& path) {
  ASSIGN_OR_RETURN(RunDirectory directory, OpenRunDirectory(path));
  const int fd = directory.fd.get();
  RunRecord record;
  record.path = path;
  ASSIGN_OR_RETURN(record.spec, ReadSpec(directory));
  ASSIGN_OR_RETURN(BootId boot, io::ReadBootId());
  record.other_boot = record.spec.boot != boot;
  // The lock before the state: a shim that ends in between has written its last state by then.
  ASSIGN_OR_RETURN(record.shim_alive, io::IsLocked(fd, kLockFile));
  record.started = ::faccessat(fd, kStartedFile, F_OK, 0) == 0;
  if (!record.started && errno != ENOENT)
    return io::ErrnoStatus(errno, absl::StrCat("look for ", kStartedFile));
  absl::StatusOr<std::string> state = io::ReadFileAt(fd, kStateFile, kMaxStateBytes);
  if (state.ok()) {
    ASSIGN_OR_RETURN(record.state, DecodeState(*state));
  } else if (!absl::IsNotFound(state.status())) {
    return state.status();
  }
  absl::StatusOr<std::string> notes = io::ReadFileAt(fd, kAgentFile, kMaxNotesBytes);
  if (notes.ok()) {
    record.agent_notes = *std::move(notes);
  } else if (!absl::IsNotFound(notes.status())) {
    return notes.status();
  }
  return record;
}

namespace {

// Says the error something about the directory? Others are of this process or of the host.
bool IsOfTheDirectory(const absl::Status& error) {
  switch (io::ErrnoOf(error)) {
    case 0:  // Not the kernel's: what was read makes no sense, or is too long.
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case EACCES:
    case EPERM: return true;
    default: return false;
  }
}

// "<job>.<generation>" or "<job>.<generation>.store"; a job's id may have dots of its own.
void TakeName(std::string_view name, UnreadableRun& run) {
  constexpr std::string_view kStore = ".store";
  if (name.size() > kStore.size() && name.substr(name.size() - kStore.size()) == kStore) {
    name.remove_suffix(kStore.size());
    run.role = Role::kStore;
  }
  const std::size_t dot = name.rfind('.');
  std::uint64_t generation = 0;
  if (dot == std::string_view::npos || dot == 0 ||
      !absl::SimpleAtoi(std::string(name.substr(dot + 1)), &generation) || generation == 0)
    return;
  run.job = JobId(std::string(name.substr(0, dot)));
  run.generation = Generation(generation);
}

absl::StatusOr<UnreadableRun> LookAtUnreadable(const std::string& path, const std::string& name,
                                               const absl::Status& why) {
  UnreadableRun run;
  run.path = path;
  run.why = std::string(why.message());
  TakeName(name, run);
  ASSIGN_OR_RETURN(RunDirectory directory, OpenRunDirectory(path));
  const int fd = directory.fd.get();
  ASSIGN_OR_RETURN(run.held, io::IsLocked(fd, kLockFile));
  run.had_shim = run.held || ::faccessat(fd, kLockFile, F_OK, 0) == 0;
  absl::StatusOr<std::string> bytes = io::ReadFileAt(fd, kSpecFile, kMaxSpecBytes);
  absl::StatusOr<Spec> spec = bytes.ok() ? DecodeSpec(*bytes) : bytes.status();
  if (spec.ok()) run.spec = *std::move(spec);
  return run;
}

}  // namespace

absl::StatusOr<RunScan> ScanRunDirectories(const std::string& node_base) {
  RunScan scan;
  ASSIGN_OR_RETURN(std::vector<std::string> names, io::ListDirectory(node_base));
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(node_base, "/", name);
    struct stat info;
    if (::lstat(path.c_str(), &info) < 0 || !S_ISDIR(info.st_mode)) continue;
    if (path == PassingRoot(node_base)) continue;
    absl::StatusOr<RunRecord> record = ReadRunDirectory(path);
    if (record.ok()) {
      scan.records.push_back(*std::move(record));
      continue;
    }
    if (::lstat(path.c_str(), &info) < 0 && errno == ENOENT) continue;  // Removed meanwhile.
    absl::Status why = record.status();
    if (IsOfTheDirectory(why)) {
      absl::StatusOr<UnreadableRun> run = LookAtUnreadable(path, name, why);
      if (run.ok()) {
        scan.unreadable.push_back(*std::move(run));
        continue;
      }
      why = run.status();
    }
    return absl::UnavailableError(
        absl::StrCat("cannot look at run directory ", path, ": ", std::string(why.message())));
  }
  return scan;
}

absl::Status WriteAgentNotes(const std::string& path, std::string_view notes) {
  return io::ReplaceFile(absl::StrCat(path, "/", kAgentFile), notes, io::Durability::kVolatile);
}

std::string PassingRoot(const std::string& node_base) {
  return absl::StrCat(node_base, "/passing");
}

std::string PassingDirectory(const std::string& node_base, const JobId& job,
                             Generation generation) {
  return absl::StrCat(PassingRoot(node_base), "/", job.value(), ".", generation.value());
}

absl::StatusOr<bool> IsHeld(const std::string& path) {
  absl::StatusOr<RunDirectory> directory = OpenRunDirectory(path);
  if (absl::IsNotFound(directory.status())) return false;
  RETURN_IF_ERROR(directory.status());
  return io::IsLocked(directory->fd.get(), kLockFile);
}

absl::Status RemoveRunDirectory(const std::string& path) {
  ASSIGN_OR_RETURN(const bool held, IsHeld(path));
  if (held) return absl::FailedPreconditionError(absl::StrCat(path, ": its process lives"));
  return io::RemoveTree(path);
}

}  // namespace regroup::shim
