#pragma once

// What the workers of a launch command print, and its own lines, on the command's stdout and
// stderr. A thread of its own follows the log files that shims write, so that a slow disk or a
// terminal that does not read stops no loop.

#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "agent/shell/line_filter.h"
#include "agent/shell/line_mixer.h"
#include "common/io/log_files.h"

namespace regroup::agent {

class Relay {
 public:
  Relay(int stdout_fd, int stderr_fd);
  ~Relay();  // Without Finish, what was not shown yet is dropped, once the write in flight is over.
  Relay(const Relay&) = delete;

  struct Rule {          // Of one stream of one rank.
    std::string prefix;  // Empty: bytes pass as they are.
    bool shown = true;
    std::vector<std::string> filters;  // Lines with one of them go to filtered_file as well.
    std::string filtered_file;
    friend bool operator==(const Rule&, const Rule&) = default;
  };
  struct Rules {
    Rule out, err;
    // A symbolic link to be made, with the folders above it; what is there stays. Empty: none.
    std::string link, link_target;
  };

  // Any thread; none of them waits for a disk or a reader.
  // Follows one rank's logs from their beginning.
  void Follow(std::string log_directory, Rules rules);
  // Nothing more will be written there: shows what there is, then lets go.
  void Unfollow(std::string log_directory);
  void Poke();                 // There may be more in the logs.
  void Say(std::string text);  // Whole lines of ours, to stderr.
  // Shows all that the logs hold, then what is said last. False: it took longer than `limit`, and
  // goes on.
  bool Finish(std::string last_words, Duration limit);

 private:
  struct Stream {
    std::string directory;
    io::LogReader reader;
    int source;  // kNotShown: of none of the mixer's.
    LineFilter filter;
    std::string filtered_file;
  };
  static constexpr int kNotShown = -1;
  void Start(const std::string& directory, Rules rules);
  void Keep(const Stream& stream, const std::string& lines);
  void Run();
  void Drop(const std::vector<std::string>& directories, std::vector<LineMixer::Piece>& out);
  bool ReadSome(std::vector<LineMixer::Piece>& out);
  void Write(const std::vector<LineMixer::Piece>& pieces);

  const int fds_[2];
  LineMixer mixer_;            // Thread.
  std::list<Stream> streams_;  // Thread.

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<std::string, Rules>> to_follow_;
  std::vector<std::string> to_unfollow_;
  std::deque<std::string> to_say_;
  bool poked_ = false, finish_ = false, drop_ = false, done_ = false;
  std::string last_words_;
  std::thread thread_;
};

}  // namespace regroup::agent
