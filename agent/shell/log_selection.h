#pragma once

// The lines of one job on this node that a reader asked for, in the order they were written, each
// chunk with the mark behind it. A reader that brings marks gets what follows them. Reads files;
// one thread.

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/ids.h"
#include "common/io/log_files.h"
#include "common/rpc/log_marks.h"
#include "proto/coordinator.pb.h"

namespace regroup::agent {

class LogSelectionReader {
 public:
  LogSelectionReader(std::string log_root, std::string node_name, v1::LogSelection selection);

  // The next chunks, oldest first; none: there is nothing more now. `last`: also lines without an
  // end.
  std::vector<v1::LogChunk> Next(bool last);
  // Not empty: a part could not be read, and why.
  const std::string& problem() const { return problem_; }

 private:
  struct Line {
    io::LogLine line;
    io::LogPosition end;  // Where the stream goes on behind it.
  };
  struct Stream {
    Generation generation;
    int rank = 0, local_rank = 0;
    io::LogStream kind;
    io::LogReader reader;
    io::LineSplitter splitter;
    std::deque<Line> lines;
    std::uint64_t not_kept_bytes = 0;  // In front of what is sent next.
    bool over = false;                 // Of a generation that is long over.
    bool looked_at_last = false;       // Found without more when the last of all was asked for.
  };
  bool MayHaveNew();
  void FindStreams();
  io::LogPosition FirstPosition(Generation generation, int rank, io::LogStream kind,
                                const std::string& directory, bool existed);
  void Tell(Generation generation, int rank, bool is_stderr, io::LogPosition position);
  void AddStream(Generation generation, int rank, int first_rank, io::LogStream kind, bool existed);
  bool Refill(Stream& stream, bool last);
  v1::LogChunk TakeChunk(Stream& stream);

  const std::string log_root_, node_name_;
  const v1::LogSelection selection_;
  const JobId job_;
  LogMarks marks_;       // What the reader has had already.
  bool looked_ = false;  // What is found from now on is new.
  Generation oldest_, newest_;
  std::vector<std::int64_t> times_;  // Of the directories at the last look; unlike any: look again.
  std::map<std::tuple<Generation, int, io::LogStream>, Stream> streams_;
  std::vector<v1::LogChunk> told_;  // Marks without lines, not given out yet.
  std::string problem_;
};

}  // namespace regroup::agent
