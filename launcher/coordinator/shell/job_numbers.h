#pragma once

// The highest number of a job in a state directory. Several coordinators may have their folders
// there, and a job's id should be one job to whoever types it: each takes the next number of all of
// them. A file beside the folders holds it, under a lock that is held for one step of the core. It
// is not synced, and where it cannot be used a coordinator counts by itself: at worst two of them
// have a job of the same id, and commands ask which is meant.

#include <cstdint>
#include <string>
#include <utility>

#include "common/io/fd.h"

namespace regroup::coordinator {

inline constexpr char kJobNumberName[] = "job-number";

class JobNumbers {
 public:
  explicit JobNumbers(std::string path) : path_(std::move(path)) {}

  // While it lives no other coordinator begins a job.
  class Turn {
   public:
    explicit Turn(const std::string& path);
    std::uint64_t used() const { return used_; }
    void Use(std::uint64_t number);  // Kept if it is higher.

   private:
    io::UniqueFd file_;  // Closed, and so unlocked, at the end.
    std::uint64_t used_ = 0;
  };
  Turn Take() const { return Turn(path_); }

 private:
  const std::string path_;
};

}  // namespace regroup::coordinator
