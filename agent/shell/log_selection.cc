#include "agent/shell/log_selection.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/io/proc.h"

namespace regroup::agent {
namespace {

constexpr std::size_t kChunkBytes = 32 << 10;  // A message is at most 64 KiB.
constexpr std::size_t kHeldLines = 256;        // Read ahead, per stream.
constexpr int kMaxTail = 1'000'000;

}  // namespace

LogSelectionReader::LogSelectionReader(std::string log_root, std::string node_name,
                                       v1::LogSelection selection)
    : log_root_(std::move(log_root)),
      node_name_(std::move(node_name)),
      selection_(std::move(selection)),
      job_(selection_.job()) {}

void LogSelectionReader::FindStreams() {
  absl::StatusOr<std::map<Generation, std::vector<int>>> found = io::ListLogs(log_root_, job_);
  const bool existed = !std::exchange(looked_, true);
  if (!found.ok()) {
    if (!absl::IsNotFound(found.status())) problem_ = std::string(found.status().message());
    return;
  }
  // The end of a job's output is the end of its newest generation, and what follows.
  if (existed && selection_.has_tail() && selection_.generation() == 0 && !found->empty())
    oldest_ = found->rbegin()->first;
  for (const auto& [generation, ranks] : *found) {
    if (selection_.generation() != 0 && selection_.generation() != generation.value()) continue;
    if (generation < oldest_) continue;
    const int first = ranks.empty() ? 0 : *std::min_element(ranks.begin(), ranks.end());
    for (int rank : ranks) {
      const auto& wanted = selection_.ranks();
      if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), rank) == wanted.end())
        continue;
      if (!selection_.stderr_only())
        AddStream(generation, rank, first, io::LogStream::kStdout, existed);
      if (!selection_.stdout_only())
        AddStream(generation, rank, first, io::LogStream::kStderr, existed);
    }
  }
}

void LogSelectionReader::AddStream(Generation generation, int rank, int first_rank,
                                   io::LogStream kind, bool existed) {
  const std::tuple key(generation, rank, kind);
  if (streams_.contains(key)) return;
  const std::string directory = io::LogDirectory(log_root_, job_, generation, rank);
  io::LogPosition from;
  if (existed && selection_.has_tail()) {
    const int lines = static_cast<int>(std::clamp<std::int64_t>(selection_.tail(), 0, kMaxTail));
    from = io::TailPosition(directory, kind, lines, 64 << 20).value_or(io::LogPosition());
  }
  if (existed && selection_.has_since_ns()) {
    const WallTime since = io::WallNow() - std::chrono::duration_cast<std::chrono::microseconds>(
                                               Duration(selection_.since_ns()));
    from = std::max(from, io::PositionSince(directory, kind, since).value_or(io::LogPosition()));
  }
  streams_.emplace(std::piecewise_construct, std::forward_as_tuple(key),
                   std::forward_as_tuple(Stream{generation,
                                                rank,
                                                rank - first_rank,
                                                kind,
                                                io::LogReader(directory, kind, from),
                                                io::LineSplitter(kChunkBytes),
                                                {},
                                                0}));
}

// False: nothing more now.
bool LogSelectionReader::Refill(Stream& stream, bool last) {
  while (stream.lines.empty()) {
    absl::StatusOr<io::LogReader::Chunk> chunk = stream.reader.Next(kChunkBytes);
    if (!chunk.ok()) {
      problem_ = std::string(chunk.status().message());
      return false;
    }
    stream.not_kept_bytes += chunk->lost_before;
    if (chunk->bytes.empty()) {
      std::optional<io::LogLine> partial;
      if (last) partial = stream.splitter.TakePartial();
      if (!partial) return false;
      stream.lines.push_back(*std::move(partial));
      return true;
    }
    std::vector<io::LogLine> lines;
    stream.splitter.Add(chunk->bytes, chunk->at, lines);
    for (io::LogLine& line : lines) stream.lines.push_back(std::move(line));
  }
  return true;
}

// Lines that were written together stay together.
v1::LogChunk LogSelectionReader::TakeChunk(Stream& stream) {
  v1::LogChunk chunk;
  chunk.set_node(node_name_);
  chunk.set_generation(stream.generation.value());
  chunk.set_rank(stream.rank);
  chunk.set_local_rank(stream.local_rank);
  chunk.set_is_stderr(stream.kind == io::LogStream::kStderr);
  const WallTime at = stream.lines.front().at;
  chunk.set_at_us(at.time_since_epoch().count());
  chunk.set_not_kept_bytes(std::exchange(stream.not_kept_bytes, 0));
  std::string& data = *chunk.mutable_data();
  while (!stream.lines.empty() && stream.lines.front().at == at &&
         (data.empty() || data.size() + stream.lines.front().text.size() < kChunkBytes)) {
    data += stream.lines.front().text;
    if (stream.lines.front().complete) data += '\n';
    stream.lines.pop_front();
  }
  return chunk;
}

std::vector<v1::LogChunk> LogSelectionReader::Next(bool last) {
  FindStreams();
  std::vector<v1::LogChunk> chunks;
  for (std::size_t taken = 0; taken < kHeldLines; ++taken) {
    Stream* oldest = nullptr;
    for (auto& [key, stream] : streams_) {
      if (!Refill(stream, last)) continue;
      // Generations follow one another, whatever the clocks say.
      if (oldest == nullptr || std::tuple(stream.generation, stream.lines.front().at) <
                                   std::tuple(oldest->generation, oldest->lines.front().at)) {
        oldest = &stream;
      }
    }
    if (oldest == nullptr) break;
    chunks.push_back(TakeChunk(*oldest));
  }
  return chunks;
}

}  // namespace regroup::agent
