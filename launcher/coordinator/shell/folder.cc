#include "launcher/coordinator/shell/folder.h"

#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/token.h"
#include "common/io/fd.h"
#include "common/rpc/local_coordinator.h"
#include "common/rpc/places.h"

namespace regroup::coordinator {
namespace {

// A command that reads an ended run holds the lock for some milliseconds: a coordinator that starts
// meanwhile must not give up, nor a second command. A coordinator that runs keeps it for good, and
// readers should learn that soon.
constexpr int kServeTries = 100, kReadTries = 10;
constexpr useconds_t kLockPauseUs = 10'000;

std::string LockPath(const std::string& folder) { return folder + "/" + kCoordinatorLockName; }

absl::Status CanNotKeep(const std::string& folder, const absl::Status& why) {
  return UserError(why.code(), "the coordinator cannot keep its state in " + folder,
                   std::string(why.message()), "df " + folder + ", or --state-dir DIRECTORY");
}

absl::Status Held(const std::string& folder) {
  absl::StatusOr<std::string> holder = io::ReadFile(LockPath(folder), 4096);
  std::string who = holder.ok() ? *holder : "";
  who = who.substr(0, who.find('\n'));
  return UserError(absl::StatusCode::kUnavailable, "a coordinator already runs in " + folder,
                   who.empty() ? "another process holds its lock" : who,
                   "use that one (regroup nodes), or give another --listen port or --state-dir");
}

}  // namespace

absl::StatusOr<Folder> Folder::Lock(const std::string& path, int tries) {
  absl::StatusOr<io::FileLock> lock = io::FileLock::TryAcquire(LockPath(path));
  for (; tries > 1 && absl::IsUnavailable(lock.status()); --tries) {
    usleep(kLockPauseUs);
    lock = io::FileLock::TryAcquire(LockPath(path));
  }
  if (absl::IsUnavailable(lock.status())) return Held(path);
  if (!lock.ok()) return CanNotKeep(path, lock.status());
  return Folder(path, *std::move(lock));
}

absl::StatusOr<Folder> Folder::Acquire(const std::string& path) {
  const absl::Status made = io::MakePrivateDirectory(path);
  return made.ok() ? Lock(path, kServeTries) : CanNotKeep(path, made);
}

absl::StatusOr<Folder> Folder::AcquireExisting(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return io::ErrnoStatus(errno, "coordinator folder " + path);
  return Lock(path, kReadTries);
}

std::string Folder::JournalPath() const { return path_ + "/" + kCoordinatorJournalName; }

absl::StatusOr<std::string> Folder::Token(const std::string& given) const {
  constexpr std::size_t kRandomBytes = 32;
  const std::string path = path_ + "/" + kCoordinatorTokenName;
  absl::StatusOr<std::string> known = ReadCoordinatorToken(path_);
  const bool usable = known.ok() && ValidateToken(*known).ok();
  if (usable && (given.empty() || given == *known)) return known;
  const std::string token = given.empty() ? io::RandomHex(kRandomBytes) : given;
  const absl::Status written = io::ReplaceFile(path, token + "\n", io::Durability::kDurable);
  if (!written.ok()) return CanNotKeep(path_, written);
  return token;
}

void Folder::ForgetToken() const { unlink((path_ + "/" + kCoordinatorTokenName).c_str()); }

absl::Status Folder::Describe(const std::vector<Address>& listening,
                              const std::string& command) const {
  const std::string text = FormatCoordinatorLock({getpid(), listening, command});
  // In place: a new file would have another lock.
  if (ftruncate(lock_.fd(), 0) == 0 &&
      pwrite(lock_.fd(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size())) {
    return absl::OkStatus();
  }
  return CanNotKeep(path_, io::ErrnoStatus(errno, LockPath(path_)));
}

}  // namespace regroup::coordinator
