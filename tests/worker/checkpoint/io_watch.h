#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace regroup::worker {

// One system call of this process that changes a file system, or makes a change durable.
struct IoCall {
  enum Kind { kMakeDirectory, kCreate, kWrite, kTruncate, kSync, kLink, kRename, kUnlink };
  Kind kind = kSync;
  std::string path;          // Absolute.
  std::string other;         // kLink, kRename: the new name.
  std::uint64_t offset = 0;  // kWrite; of kTruncate the new size.
  std::string bytes;         // kWrite.
};

// While it lives, every such call below `root`, of any thread, is first shown to `before`, whose
// answer is 0 or the errno with which the call fails instead of being made, and, if it was made and
// succeeded, to `after`. One call at a time. At most one watch exists. What the standard library's
// streams do is not seen.
class IoWatch {
 public:
  using Before = std::function<int(const IoCall&)>;
  using After = std::function<void(const IoCall&)>;
  IoWatch(std::string root, Before before, After after);
  ~IoWatch();
  IoWatch(const IoWatch&) = delete;
  IoWatch& operator=(const IoWatch&) = delete;
};

// What pread has given this thread so far, of whatever file.
std::uint64_t BytesRead();

}  // namespace regroup::worker
