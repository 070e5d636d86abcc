#pragma once

// A daemon's own log: one line per record, key=value or JSON, to standard error or a file. Lines
// are written by a thread of the logger, so that a loop never waits for a disk or a pipe; when that
// thread falls behind by 8,192 lines the oldest are dropped and counted. Text from elsewhere can
// not forge a line: control bytes are escaped.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time.h"

namespace regroup::obs {

enum class Level { kDebug, kInfo, kWarning, kError };

using Fields = std::vector<std::pair<std::string, std::string>>;

struct LogConfig {
  std::string path;                       // Empty: standard error.
  std::uint64_t max_bytes = 10ull << 20;  // Of one file; at most two are kept, PATH and PATH.1.
  bool json = false;
  Level level = Level::kInfo;
};

class Logger {
 public:
  // Opens the file (0600). The error names the path.
  static absl::StatusOr<std::unique_ptr<Logger>> Create(const LogConfig& config);
  virtual ~Logger();  // Everything logged before is written.

  // Any thread. `what` is a sentence without ids: it can be searched for; ids and numbers are
  // fields.
  virtual void Log(Level level, std::string_view what, const Fields& fields) = 0;
  // Returns once everything logged so far is written.
  virtual void Flush() = 0;

  void Info(std::string_view what, const Fields& fields = {}) { Log(Level::kInfo, what, fields); }
  void Warning(std::string_view what, const Fields& fields = {}) {
    Log(Level::kWarning, what, fields);
  }
  void Error(std::string_view what, const Fields& fields = {}) { Log(Level::kError, what, fields); }
};

// One record without the newline: `2026-11-21T09:26:01.123456Z info what="node joined" node=node1`,
// or the same as JSON. Values that are not plain words are quoted; bytes below 0x20, 0x7f and what
// is not UTF-8 become \n, \t, \xNN.
std::string RenderLine(WallTime at, Level level, std::string_view what, const Fields& fields,
                       bool json);

}  // namespace regroup::obs
