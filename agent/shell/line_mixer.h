#pragma once

// Output of several workers on one terminal or file: whole lines, each behind its prefix, never one
// inside another.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/time.h"

namespace regroup::agent {

// Pure. Sources are numbered from 0. A line ends in \n or \r (progress bars). Of a line that is not
// finished, what is older than kHold is shown; when another source has something to say first, the
// open line is broken with a newline.
class LineMixer {
 public:
  enum class Sink { kStdout, kStderr };
  struct Piece {
    Sink sink;
    std::string bytes;
    friend bool operator==(const Piece&, const Piece&) = default;
  };

  // `one_device`: both sinks are the same terminal or file, so that a line open on one is in the
  // way of the other.
  explicit LineMixer(bool one_device) : one_device_(one_device) {}

  // An empty prefix: bytes pass as they come.
  int AddSource(Sink sink, std::string prefix);
  // Shows what it held. Its number may be given again.
  void RemoveSource(int source, std::vector<Piece>& out);
  void Add(int source, std::string_view bytes, Instant now, std::vector<Piece>& out);
  // Whole lines of ours, to stderr.
  void Say(std::string_view text, std::vector<Piece>& out);
  // Shows unfinished lines that are due; all of them with `all`.
  void Flush(Instant now, bool all, std::vector<Piece>& out);
  std::optional<Instant> NextFlush() const;

  static constexpr Duration kHold = std::chrono::milliseconds(30);
  static constexpr std::size_t kMaxHeldBytes = 64 << 10;

 private:
  struct Source {
    Sink sink = Sink::kStdout;
    std::string prefix;
    std::string held;  // Unfinished, not shown.
    Instant held_since{};
    bool used = true;
  };
  static constexpr int kNobody = -1;
  int& OpenOn(Sink sink) { return open_[one_device_ || sink == Sink::kStdout ? 0 : 1]; }
  void Emit(int source, std::string_view text, std::vector<Piece>& out);
  void BreakOpenLine(Sink sink, std::vector<Piece>& out);
  void Put(Sink sink, std::string_view bytes, std::vector<Piece>& out);

  const bool one_device_;
  std::vector<Source> sources_;
  int open_[2] = {kNobody, kNobody};  // Whose line is unfinished there.
};

}  // namespace regroup::agent
