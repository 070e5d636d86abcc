#include "launcher/coordinator/shell/job_numbers.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <charconv>

#include "absl/status/statusor.h"
#include "common/io/files.h"

namespace regroup::coordinator {
namespace {

// Another coordinator holds it for less than a millisecond, unless it was stopped just then.
constexpr int kTries = 20;
constexpr useconds_t kPauseUs = 1'000;
constexpr std::size_t kDigits = 20;
constexpr std::uint64_t kMaxNumber = 1'000'000'000'000;

}  // namespace

JobNumbers::Turn::Turn(const std::string& path) {
  absl::StatusOr<io::UniqueFd> file = io::OpenRegular(path, O_RDWR | O_CREAT, 0600);
  if (!file.ok()) return;
  file_ = *std::move(file);
  for (int tries = 0; flock(file_.get(), LOCK_EX | LOCK_NB) != 0; ++tries) {
    if (tries == kTries) {
      file_.reset();
      return;
    }
    usleep(kPauseUs);
  }
  char text[kDigits];
  const ssize_t n = pread(file_.get(), text, sizeof text, 0);
  if (n > 0) std::from_chars(text, text + n, used_);
  if (used_ > kMaxNumber) used_ = 0;  // No count of jobs: the file is damaged.
}

void JobNumbers::Turn::Use(std::uint64_t number) {
  if (!file_ || number <= used_) return;
  used_ = number;
  const std::string text = std::to_string(number) + "\n";
  // Digits only ever grow in number: what was there is written over.
  if (pwrite(file_.get(), text.data(), text.size(), 0) < 0) file_.reset();
}

}  // namespace regroup::coordinator
