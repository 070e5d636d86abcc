#include "worker/checkpoint/owner.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/fd.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "common/io/thread.h"

namespace regroup::worker {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr std::size_t kMaxOwnerBytes = 64 << 10;
constexpr int kRenewalsPerLease = 12;
constexpr Duration kLeaving = std::chrono::seconds(5);
constexpr Duration kOwnerLook = milliseconds(20);

struct Record {
  std::string job;
  std::uint64_t generation = 0;
  // Of an owner without a launcher, whose job ends with its process.
  std::string boot;
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;
};

std::string HostName() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string Serialize(const OwnerClaim& claim) {
  nlohmann::ordered_json record = {{"job", claim.job}, {"generation", claim.generation}};
  if (claim.job.empty()) {
    const auto self = io::ReadProcessStat(getpid());
    const auto boot = io::ReadBootId();
    record["job"] = absl::StrCat("process ", getpid(), " on ", HostName());
    record["boot"] = boot.ok() ? boot->value() : "";
    record["pid"] = getpid();
    record["start_ticks"] = self ? self->start_ticks : 0;
  }
  record["token"] = io::RandomHex(16);
  return record.dump() + "\n";
}

// A record that nobody can read is one of an owner without a name, not none.
Record Parse(const std::string& text) {
  const nlohmann::json tree = nlohmann::json::parse(text, nullptr, false);
  Record record;
  record.job = "a job that cannot be named";
  if (!tree.is_object()) return record;
  if (const auto job = tree.find("job"); job != tree.end() && job->is_string())
    record.job = job->get<std::string>();
  const auto number = [&](const char* name) -> std::uint64_t {
    const auto found = tree.find(name);
    return found != tree.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
  };
  record.generation = number("generation");
  record.pid = static_cast<pid_t>(number("pid"));
  record.start_ticks = number("start_ticks");
  if (const auto boot = tree.find("boot"); boot != tree.end() && boot->is_string())
    record.boot = boot->get<std::string>();
  return record;
}

bool ProcessIsGone(const Record& record) {
  if (record.pid <= 0) return false;
  const auto boot = io::ReadBootId();
  return boot.ok() && boot->value() == record.boot && !io::IsAlive(record.pid, record.start_ticks);
}

std::optional<nanoseconds> ModifiedAt(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  return std::chrono::seconds(info.st_mtim.tv_sec) + nanoseconds(info.st_mtim.tv_nsec);
}

// By the clock that stamps the files there, which need not be this host's.
std::optional<nanoseconds> FileSystemNow(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/.tmp-owner-", io::RandomHex(8));
  if (!io::ReplaceFile(path, "", io::Durability::kVolatile, 0644).ok()) return std::nullopt;
  const std::optional<nanoseconds> now = ModifiedAt(path);
  unlink(path.c_str());
  return now;
}

absl::Status Held(const std::string& directory, const std::string& by) {
  return absl::FailedPreconditionError(absl::StrCat(directory, " is in use by ", by));
}

bool DiskIsFull(const absl::Status& status) {
  return io::ErrnoOf(status) == ENOSPC || io::ErrnoOf(status) == EDQUOT;
}

// The claim under its final name: all of it or nothing, over whatever is there. On a full disk only
// the former owner goes; Check writes the new one before anything is published.
absl::Status Install(const std::string& temporary, const std::string& path, bool full) {
  if (full)
    return unlink(path.c_str()) == 0 || errno == ENOENT ? absl::OkStatus()
                                                        : io::ErrnoStatus(errno, path);
  if (rename(temporary.c_str(), path.c_str()) != 0) return io::ErrnoStatus(errno, path);
  return absl::OkStatus();
}

// Waits until the holder's lease is over. Failed precondition: it renews, or another job came
// first.
absl::Status AwaitEnd(const std::string& directory, const std::string& path,
                      const std::string& text, const Record& holder, nanoseconds renewed,
                      Duration left) {
  const auto end = steady_clock::now() + left;
  const timespec pause{0, duration_cast<nanoseconds>(kOwnerLook).count()};
  while (steady_clock::now() < end) {
    nanosleep(&pause, nullptr);
    const absl::StatusOr<std::string> now = io::ReadFile(path, kMaxOwnerBytes);
    if (absl::IsNotFound(now.status())) return absl::OkStatus();
    if (!now.ok()) return now.status();
    if (*now != text) return Held(directory, Parse(*now).job);
    const auto modified = ModifiedAt(path);
    if (modified && *modified > renewed) return Held(directory, holder.job);
    // An owner that leaves sets the time back: it is gone, and what is left of its lease is short.
    if (modified && *modified < renewed) {
      return AwaitEnd(directory, path, text, holder, *modified, std::min(left, kLeaving));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Owner>> Owner::Take(
    const std::string& directory, const OwnerClaim& claim,
    const std::function<void(const std::string& holder, Duration left)>& waiting) {
  const std::string path = absl::StrCat(directory, "/owner"), record = Serialize(claim);
  const std::string temporary = absl::StrCat(directory, "/.tmp-owner-", io::RandomHex(8));
  const absl::Status written = io::ReplaceFile(temporary, record, io::Durability::kVolatile, 0644);
  const bool full = DiskIsFull(written);
  if (!written.ok() && !full) return written;
  // Without room for a file that would tell the file system's time, this host's has to do.
  const auto now =
      full ? std::optional<nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
           : ModifiedAt(temporary);
  const auto take = [&]() -> absl::Status {
    if (claim.take_over) return Install(temporary, path, full);
    const absl::StatusOr<std::string> text = io::ReadFile(path, kMaxOwnerBytes);
    if (!text.ok() && !absl::IsNotFound(text.status())) return text.status();
    const std::optional<nanoseconds> renewed = ModifiedAt(path);
    if (!text.ok() || !renewed || !now) return Install(temporary, path, full);
    const Record holder = Parse(*text);
    const bool successor = holder.job == claim.job && holder.generation < claim.generation;
    // Whatever the file's time is, who renews it does so within a lease.
    const Duration left =
        std::min(claim.lease, duration_cast<Duration>(*renewed + claim.lease - *now));
    if (!successor && left > Duration::zero() && !ProcessIsGone(holder)) {
      waiting(holder.job, left);
      RETURN_IF_ERROR(AwaitEnd(directory, path, *text, holder, *renewed, left));
    }
    return Install(temporary, path, full);
  };
  const absl::Status taken = take();
  if (!taken.ok()) {
    unlink(temporary.c_str());
    return taken;
  }
  std::unique_ptr<Owner> owner(new Owner(path, claim, record));
  if (!full) RETURN_IF_ERROR(owner->Renew());
  owner->thread_ = std::thread([o = owner.get()] { o->Run(); });
  return owner;
}

Owner::Owner(std::string path, OwnerClaim claim, std::string record)
    : path_(std::move(path)), claim_(std::move(claim)), record_(std::move(record)) {}

Owner::~Owner() {
  Leave();
  if (thread_.joinable()) thread_.join();
}

absl::Status Owner::Check() {
  const absl::StatusOr<std::string> text = io::ReadFile(path_, kMaxOwnerBytes);
  if (text.ok() && *text == record_) return absl::OkStatus();
  // A directory that somebody emptied is nobody else's.
  if (absl::IsNotFound(text.status()))
    return io::ReplaceFile(path_, record_, io::Durability::kVolatile, 0644);
  if (!text.ok()) return text.status();
  lost_ = true;
  return Held(path_.substr(0, path_.rfind('/')), Parse(*text).job);
}

absl::Status Owner::Renew() {
  const std::scoped_lock lock(file_);
  if (over_) return absl::OkStatus();
  RETURN_IF_ERROR(Check());
  if (utimensat(AT_FDCWD, path_.c_str(), nullptr, 0) != 0) return io::ErrnoStatus(errno, path_);
  return absl::OkStatus();
}

void Owner::Run() {
  while (!lost_) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, claim_.lease / kRenewalsPerLease, [&] { return over_.load(); });
    }
    if (over_) return;
    // A disk that does not answer makes the lease run out, which is what it is for.
    (void)Renew();
  }
}

bool Owner::End() {
  {
    const std::scoped_lock lock(mutex_);
    if (over_.exchange(true)) return false;
  }
  changed_.notify_all();
  return true;
}

void Owner::Release() {
  const std::scoped_lock lock(file_);
  if (!End()) return;
  if (const auto text = io::ReadFile(path_, kMaxOwnerBytes); text.ok() && *text == record_)
    unlink(path_.c_str());
}

void Owner::Leave() {
  const std::scoped_lock lock(file_);
  if (!End()) return;
  const absl::StatusOr<std::string> text = io::ReadFile(path_, kMaxOwnerBytes);
  std::optional<nanoseconds> time = FileSystemNow(path_.substr(0, path_.rfind('/')));
  // Without room for a file, what is left counts from the last renewal.
  if (!time) time = ModifiedAt(path_);
  if (!text.ok() || *text != record_ || !time) return;
  const nanoseconds ends = *time - std::max(claim_.lease - kLeaving, Duration::zero());
  const auto whole = std::chrono::floor<std::chrono::seconds>(ends);
  const std::array<timespec, 2> times{timespec{0, UTIME_OMIT},
                                      timespec{whole.count(), (ends - whole).count()}};
  utimensat(AT_FDCWD, path_.c_str(), times.data(), 0);
}

void Owner::LeaveWithin(Duration at_most) {
  struct Outcome {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto outcome =
      std::make_shared<Outcome>();  // Of this call and the thread, whoever is last.
  absl::StatusOr<std::thread> leaving = io::StartThread([this, outcome] {
    Leave();
    const std::scoped_lock lock(outcome->mutex);
    outcome->done = true;
    outcome->changed.notify_all();
  });
  if (!leaving.ok()) return;  // Its lease ends by itself.
  leaving->detach();
  std::unique_lock lock(outcome->mutex);
  outcome->changed.wait_for(lock, at_most, [&] { return outcome->done; });
}

}  // namespace regroup::worker
