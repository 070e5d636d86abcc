#pragma once

// How far a reader of logs has got in each stream of each node, so that it goes on at that very
// byte after an agent, a coordinator or the connection was gone: kept by the reader of `logs -f`
// and by the coordinator's relay, obeyed by the agent. Generations follow one another on a node:
// once lines of one were taken, those before the previous one are done, and their marks are
// dropped.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/base/ids.h"
#include "common/io/log_files.h"
#include "proto/coordinator.pb.h"

namespace regroup {

inline constexpr std::size_t kMaxLogMarks = 65'536;  // Of one reader.

class LogMarks {
 public:
  void Take(const v1::LogChunk& chunk);
  void Take(const v1::LogMark& mark);

  // Marks of this node, or of all. Beyond kMaxLogMarks streams the rest is not taken, nor told:
  // lines come twice.
  void AddTo(v1::LogSelection& selection, const std::string& node) const;
  void AddTo(v1::LogSelection& selection) const;

  bool empty() const { return nodes_.empty(); }
  // Whether this node was read at all.
  bool Knows(const std::string& node) const { return nodes_.contains(node); }
  // Generations of this node before this one are read.
  Generation ReadBefore(const std::string& node) const;
  // Where this stream goes on; none: at its beginning, unless ReadBefore says that it is read.
  std::optional<io::LogPosition> Find(const std::string& node, Generation generation, int rank,
                                      io::LogStream stream) const;

 private:
  struct Key {
    std::uint64_t generation = 0;
    int rank = 0;
    bool is_stderr = false;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Node {
    std::uint64_t read_before = 0;
    std::map<Key, io::LogPosition> streams;
  };
  void Set(Node& node, const v1::LogMark& mark);
  static void Add(const std::string& name, const Node& node, v1::LogSelection& selection);

  std::map<std::string, Node> nodes_;
  std::size_t streams_ = 0;  // Of all nodes; at most kMaxLogMarks.
};

}  // namespace regroup
