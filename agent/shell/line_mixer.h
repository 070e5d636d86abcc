#pragma once

// Output of several workers on one terminal, pipe or file: whole lines of any length, never one
// inside another, and progress bars that do not scroll.
//
// A device (a descriptor, or both where they are the same) belongs to the source whose unfinished
// line stands on it. While that line grows the others wait, until 1 s after its last byte: then it
// is broken with a newline. Of a source that waits at most kMaxHeldBytes and one more Add are held:
// see Full.

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/shell/live_area.h"
#include "common/base/time.h"

namespace regroup::agent {

// Pure. Sources are numbered from 0. A line ends in \n. Text that a lone \r ends or begins is a
// state of a progress bar: it goes into the live area, or, without one, becomes a line at most once
// a second; the last state becomes a line when the bar ends. A stream with bytes that no text has
// is binary: its \r are bytes like others.
class LineMixer {
 public:
  enum class Sink { kStdout, kStderr };
  struct Piece {
    Sink sink;
    std::string bytes;
    friend bool operator==(const Piece&, const Piece&) = default;
  };
  struct Devices {
    bool one = false;          // Both sinks are the same terminal or file.
    std::optional<Sink> live;  // A terminal that a live area may stand on.
  };
  struct Look {
    std::string prefix;
    bool raw = false;   // It is alone: bytes pass as they come.
    std::string label;  // Of its row in the live area.
  };

  explicit LineMixer(Devices devices) : devices_(devices) {}

  int AddSource(Sink sink, Look look);
  // Nothing more is added to it. Its number may be given again once all of it has been shown.
  void RemoveSource(int source, Instant now, std::vector<Piece>& out);
  void Add(int source, std::string_view bytes, Instant now, std::vector<Piece>& out);
  // It holds what it may while another's line grows: its bytes have to stay where they are.
  bool Full(int source) const;
  // Its bar is over though nothing said so.
  void EndBar(int source, Instant now, std::vector<Piece>& out);
  // Whole lines of ours, to stderr. They wait for a line that grows as others do, but not for long;
  // `at_once`: not at all.
  void Say(std::string_view text, bool at_once, Instant now, std::vector<Piece>& out);
  // Shows what is due; everything with `all`: nothing grows any more.
  void Flush(Instant now, bool all, std::vector<Piece>& out);
  bool Holds() const;
  std::optional<Instant> NextFlush() const;
  void SetScreen(Screen screen) { screen_ = screen; }

  static constexpr Duration kHold = std::chrono::milliseconds(30);
  static constexpr Duration kGrowth = std::chrono::seconds(1);
  static constexpr Duration kOwnLines = std::chrono::seconds(10);  // How long ours wait.
  static constexpr Duration kBarLine = std::chrono::seconds(1);
  static constexpr std::size_t kMaxHeldBytes = 64 << 10;

 private:
  struct Source {
    Sink sink = Sink::kStdout;
    Look look;
    std::string held;  // Not shown: lines that wait, then one that is not finished.
    Instant held_since{}, last_byte{};
    bool used = true, closing = false, binary = false;
    bool bar = false;            // The row that is being written began with, or had, a lone \r.
    std::string state;           // The bar's, as it is shown.
    bool state_shown = false;    // As a line.
    std::size_t state_held = 0;  // Of held, when it was last taken for the state.
    Instant bar_next{};          // When a state may become a line.
  };
  struct Said {
    std::string text;
    Instant at{};
  };
  static constexpr int kNobody = -1;
  Source& At(int source) { return sources_[static_cast<std::size_t>(source)]; }
  const Source& At(int source) const { return sources_[static_cast<std::size_t>(source)]; }
  int Count() const { return static_cast<int>(sources_.size()); }
  int DeviceOf(Sink sink) const { return devices_.one || sink == Sink::kStdout ? 0 : 1; }
  int OpenFor(Sink sink) const { return open_[DeviceOf(sink)]; }
  bool MayWrite(int source) const;
  bool IsLive(Sink sink) const;
  static bool IsPending(const Source& source);
  bool Wanted(int device) const;
  bool TailDue(const Source& source, Instant now, bool all) const;
  std::size_t Take(int source, std::string_view bytes, Instant now, std::vector<Piece>& out);
  void TakeHeld(int source, Instant now, std::vector<Piece>& out);
  void Line(int source, std::string_view text, Instant now, std::vector<Piece>& out);
  void Refresh(int source, std::string_view text, Instant now, std::vector<Piece>& out);
  void SetState(int source, std::string_view text, Instant now, std::vector<Piece>& out);
  void ShowState(int source, Instant now, std::vector<Piece>& out);
  void ShowTail(int source, Instant now, bool all, std::vector<Piece>& out);
  void Release(int device, Instant now, bool all, std::vector<Piece>& out);
  void ShowSaid(Instant now, bool all, std::vector<Piece>& out);
  void Pump(Instant now, bool all, std::vector<Piece>& out);
  void Draw(Instant now, std::vector<Piece>& out);
  void Emit(int source, std::string_view text, std::vector<Piece>& out);
  void BreakOpenLine(Sink sink, std::vector<Piece>& out);
  void Put(Sink sink, std::string_view bytes, std::vector<Piece>& out);

  const Devices devices_;
  std::vector<Source> sources_;
  int open_[2] = {kNobody, kNobody};  // Whose line is unfinished there.
  int first_ = 0;                     // Source that is shown first when a device is free again.
  std::deque<Said> said_;
  LiveArea area_;
  Screen screen_;
};

}  // namespace regroup::agent
