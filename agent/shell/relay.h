#pragma once

// What the workers of a launch command print, and its own lines, on the command's stdout and
// stderr. A thread of its own follows the log files that shims write, so that a slow disk or a
// terminal that does not read stops no loop. What shims have written is shown to the last byte:
// they keep what ShownSoFar does not cover, and where that is too much, workers wait (LogDrain).

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/shell/line_filter.h"
#include "agent/shell/line_mixer.h"
#include "common/io/log_files.h"

namespace regroup::agent {

class Relay {
 public:
  // What to say on the other stream when one cannot be written; called at most once for each, on
  // the thread. Empty: nothing.
  using OnWriteError = std::function<std::string(LineMixer::Sink, int error)>;
  // What to say on stderr of output that is gone before it was shown, once for each stream, or that
  // cannot be read; called on the thread.
  using OnReadTrouble = std::function<std::string(const std::string& log_directory, io::LogStream,
                                                  const std::string& what)>;
  // `progressed`, if given, is called by the relay's thread, after so and so many bytes and when
  // all is shown: ShownSoFar says more than it did.
  Relay(int stdout_fd, int stderr_fd, OnWriteError on_write_error = nullptr,
        std::function<void()> progressed = {}, OnReadTrouble on_read_trouble = {});
  ~Relay();  // Without Finish, what was not shown yet is dropped, once the write in flight is over.
  Relay(const Relay&) = delete;

  struct Rule {  // Of one stream of one rank.
    std::string prefix;
    bool raw = true;  // Bytes pass as they are; else whole lines.
    bool shown = true;
    std::vector<std::string> filters;  // Lines with one of them go to filtered_file as well.
    std::string filtered_file, filtered_prefix;
    friend bool operator==(const Rule&, const Rule&) = default;
  };
  struct Rules {
    Rule out, err;
    int generation = 0;  // Bars of an earlier one are over when it starts.
    std::string label;   // Of rows that are redrawn in place.
    // A symbolic link to be made, with the folders above it; what is there stays. Empty: none.
    std::string link, link_target;
    std::string passing{};   // As of io::LogReader; removed once all is shown.
    io::LogLimits limits{};  // Applied once all is shown.
  };
  struct ShownOf {  // Of one rank: handed to stdout and stderr, up to there.
    io::LogPosition out, err;
    friend bool operator==(const ShownOf&, const ShownOf&) = default;
  };

  // Any thread; none of them waits for a disk or a reader.
  // Follows one rank's logs from their beginning.
  void Follow(std::string log_directory, Rules rules);
  // Nothing more will be written there: shows what there is, then lets go.
  void Unfollow(std::string log_directory);
  // By log directory, from Follow until Unfollow has taken effect.
  std::map<std::string, ShownOf> ShownSoFar() const;
  void Poke();  // There may be more in the logs.
  // A part of a log that cannot be read is asked for again; what lies behind it waits for so long,
  // and no longer once nothing more is written there. It is left out then.
  static constexpr Duration kUnreadableLimit = std::chrono::seconds(5);
  // Whole lines of ours, to stderr; `at_once`: also into a worker's line that grows.
  void Say(std::string text, bool at_once = false);
  // Shows all that the logs hold, then what is said last. False: it took longer than `limit`, and
  // goes on; may be called again.
  bool Finish(std::string last_words, Duration limit);

 private:
  struct Stream {
    std::string directory;
    io::LogStream kind;
    io::LogLimits limits;
    std::string passing;
    io::LogReader reader;
    int source;  // kNotShown: of none of the mixer's.
    LineFilter filter;
    std::string filtered_file;
    int generation;
    bool ending = false;  // Nothing more is written there.
    bool empty = false;   // The last look found nothing more.
    bool gap_told = false;
    std::string unread{};  // Why the last look failed; empty: it did not.
    std::optional<Instant> unread_since{};  // No look has succeeded from there on.
    bool left_out = false;       // Some of it.
    bool left_out_told = false;  // Since a look last succeeded.
  };
  struct Said {
    std::string text;
    bool at_once;
  };
  static constexpr int kNotShown = -1;
  static constexpr std::size_t kTellBytes = 256 << 10;
  void TellShown(bool all);
  void LetGo(const Stream& stream);
  void ForgetEnded();
  void Start(const std::string& directory, Rules rules);
  void Keep(const Stream& stream, const std::string& lines);
  void Run();
  void End(const std::vector<std::string>& directories);
  void DropEnded(std::vector<LineMixer::Piece>& out);
  void MeasureScreen();
  void Failed(LineMixer::Sink sink, int error);
  bool ReadSome(bool finishing, std::vector<LineMixer::Piece>& out);
  bool LeaveOut(Stream& stream, bool finishing, std::vector<LineMixer::Piece>& out);
  void Tell(const Stream& stream, const std::string& what, std::vector<LineMixer::Piece>& out);
  void TellUnread(const Stream& stream, std::vector<LineMixer::Piece>& out);
  void Write(const std::vector<LineMixer::Piece>& pieces);

  const int fds_[2];
  const OnWriteError on_write_error_;
  const bool one_device_;
  const std::optional<LineMixer::Sink> live_;  // The terminal that a live area may stand on.
  bool told_[2] = {};                          // Thread. A write to it has failed.
  bool gone_[2] = {};                          // Thread. It has no reader any more.
  LineMixer mixer_;                            // Thread.
  std::list<Stream> streams_;                  // Thread.
  std::vector<std::string> ending_;            // Thread. Unfollowed, and not yet shown to the end.
  std::size_t untold_bytes_ = 0;               // Thread. Shown since it was told.
  const std::function<void()> progressed_;
  const OnReadTrouble on_read_trouble_;

  mutable std::mutex mutex_;
  std::map<std::string, ShownOf> shown_;
  std::condition_variable changed_;
  std::vector<std::pair<std::string, Rules>> to_follow_;
  std::vector<std::string> to_unfollow_;
  std::deque<Said> to_say_;
  bool poked_ = false, finish_ = false, drop_ = false, done_ = false;
  std::string last_words_;
  std::thread thread_;
};

}  // namespace regroup::agent
