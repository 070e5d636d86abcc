#include "common/rpc/log_marks.h"

#include <algorithm>

namespace regroup {

void LogMarks::Set(Node& node, const v1::LogMark& mark) {
  if (mark.rank() < 0) {
    node.read_before = std::max(node.read_before, mark.generation());
  } else {
    const Key key{mark.generation(), mark.rank(), mark.is_stderr()};
    const auto at = node.streams.find(key);
    if (at == node.streams.end() && streams_ >= kMaxLogMarks) return;
    if (at == node.streams.end()) ++streams_;
    node.streams[key] = {static_cast<int>(mark.segment()), mark.offset()};
  }
  const auto done = [&](const auto& entry) { return entry.first.generation < node.read_before; };
  streams_ -= std::erase_if(node.streams, done);
}

void LogMarks::Take(const v1::LogChunk& chunk) {
  if (!chunk.has_mark()) return;  // From an agent that tells none: a break repeats its lines.
  Node& node = nodes_[chunk.node()];
  Set(node, chunk.mark());
  if (chunk.data().empty() || chunk.generation() < node.read_before + 2) return;
  v1::LogMark older;
  older.set_rank(-1);
  older.set_generation(chunk.generation() - 1);
  Set(node, older);
}

void LogMarks::Take(const v1::LogMark& mark) { Set(nodes_[mark.node()], mark); }

void LogMarks::Add(const std::string& name, const Node& node, v1::LogSelection& selection) {
  if (selection.marks_size() + node.streams.size() >= kMaxLogMarks) return;
  v1::LogMark* seen = selection.add_marks();
  seen->set_node(name);
  seen->set_rank(-1);
  seen->set_generation(node.read_before);
  for (const auto& [key, position] : node.streams) {
    v1::LogMark* mark = selection.add_marks();
    mark->set_node(name);
    mark->set_generation(key.generation);
    mark->set_rank(key.rank);
    mark->set_is_stderr(key.is_stderr);
    mark->set_segment(position.segment);
    mark->set_offset(position.offset);
  }
}

void LogMarks::AddTo(v1::LogSelection& selection, const std::string& node) const {
  if (const auto at = nodes_.find(node); at != nodes_.end()) Add(node, at->second, selection);
}

void LogMarks::AddTo(v1::LogSelection& selection) const {
  for (const auto& [name, node] : nodes_) Add(name, node, selection);
}

Generation LogMarks::ReadBefore(const std::string& node) const {
  const auto at = nodes_.find(node);
  return Generation(at == nodes_.end() ? 0 : at->second.read_before);
}

std::optional<io::LogPosition> LogMarks::Find(const std::string& node, Generation generation,
                                              int rank, io::LogStream stream) const {
  const auto at = nodes_.find(node);
  if (at == nodes_.end()) return std::nullopt;
  const auto mark =
      at->second.streams.find({generation.value(), rank, stream == io::LogStream::kStderr});
  if (mark == at->second.streams.end()) return std::nullopt;
  return mark->second;
}

}  // namespace regroup
