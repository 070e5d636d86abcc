#pragma once

// A coordinator's folder: one process at a time, by an flock that ends with it. Its text names the
// holder.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/control.h"
#include "common/io/files.h"

namespace regroup::coordinator {

class Folder {
 public:
  // Makes the folder (0700) when missing. When another process holds it: a UserError (UNAVAILABLE)
  // that names it.
  static absl::StatusOr<Folder> Acquire(const std::string& path);
  // An existing one, for reading. NOT_FOUND when there is none.
  static absl::StatusOr<Folder> AcquireExisting(const std::string& path);

  const std::string& path() const { return path_; }
  std::string JournalPath() const;
  // The token that TCP callers show: `given`, else the one that lies here, else a new one. It lies
  // in the folder (0600) on return.
  absl::StatusOr<std::string> Token(const std::string& given) const;
  void ForgetToken() const;
  // Tells others who holds it, where it listens, and by which command it is started again (empty:
  // by a launch command).
  absl::Status Describe(const std::vector<Address>& listening, const std::string& command) const;

 private:
  static absl::StatusOr<Folder> Lock(const std::string& path, int tries);
  Folder(std::string path, io::FileLock lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  io::FileLock lock_;
};

}  // namespace regroup::coordinator
