#include "agent/shell/log_selection.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/io/proc.h"

namespace regroup::agent {
namespace {

constexpr std::size_t kChunkBytes = 32 << 10;  // A message is at most 64 KiB.
constexpr std::size_t kHeldLines = 256;        // Read ahead, per stream.
constexpr int kMaxTail = 1'000'000;
constexpr auto kSettled = std::chrono::seconds(2);

}  // namespace

LogSelectionReader::LogSelectionReader(std::string log_root, std::string node_name,
                                       v1::LogSelection selection)
    : log_root_(std::move(log_root)),
      node_name_(std::move(node_name)),
      selection_(std::move(selection)),
      job_(selection_.job()) {
  for (const v1::LogMark& mark : selection_.marks()) {
    if (mark.node() == node_name_) marks_.Take(mark);
  }
}

// A reader that loses us goes on from here, also where there are no lines yet.
void LogSelectionReader::Tell(Generation generation, int rank, bool is_stderr,
                              io::LogPosition position) {
  v1::LogChunk chunk;
  chunk.set_node(node_name_);
  chunk.set_generation(generation.value());
  chunk.mutable_mark()->set_generation(generation.value());
  chunk.mutable_mark()->set_rank(rank);
  chunk.mutable_mark()->set_is_stderr(is_stderr);
  chunk.mutable_mark()->set_segment(position.segment);
  chunk.mutable_mark()->set_offset(position.offset);
  told_.push_back(std::move(chunk));
}

// Whether there may be directories that were not there at the last look. Their times tell, once
// they are not of this very moment: two changes of one moment have one time.
bool LogSelectionReader::MayHaveNew() {
  const std::string directory = absl::StrCat(log_root_, "/", job_.value());
  std::vector<std::int64_t> times;
  const auto add = [&](const std::string& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0)
      times.push_back(info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec);
  };
  add(directory);
  for (Generation generation : {newest_, Generation(newest_.value() - 1)}) {
    if (newest_ > Generation()) add(absl::StrCat(directory, "/", generation.value()));
  }
  const std::int64_t now = io::WallNow().time_since_epoch().count() * 1'000;
  const bool settled = std::all_of(times.begin(), times.end(), [&](std::int64_t time) {
    return now - time > Duration(kSettled).count();
  });
  if (looked_ && settled && times == times_) return false;
  times_ = settled ? times : std::vector<std::int64_t>{-1};
  return true;
}

void LogSelectionReader::FindStreams() {
  if (!MayHaveNew()) return;
  absl::StatusOr<std::map<Generation, std::vector<int>>> found = io::ListLogs(log_root_, job_);
  const bool first_look = !std::exchange(looked_, true);
  const bool existed = first_look && !marks_.Knows(node_name_);
  if (!found.ok() && !absl::IsNotFound(found.status()))
    problem_ = std::string(found.status().message());
  if (first_look) oldest_ = marks_.ReadBefore(node_name_);
  // The end of a job's output is the end of its newest generation, and what follows.
  const bool has_any = found.ok() && !found->empty();
  if (existed && selection_.has_tail() && selection_.generation() == 0 && has_any)
    oldest_ = found->rbegin()->first;
  if (first_look) Tell(oldest_, -1, false, {});
  if (!has_any) return;
  newest_ = found->rbegin()->first;
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

io::LogPosition LogSelectionReader::FirstPosition(Generation generation, int rank,
                                                  io::LogStream kind, const std::string& directory,
                                                  bool existed) {
  if (const auto mark = marks_.Find(node_name_, generation, rank, kind)) return *mark;
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
  if (from != io::LogPosition()) Tell(generation, rank, kind == io::LogStream::kStderr, from);
  return from;
}

void LogSelectionReader::AddStream(Generation generation, int rank, int first_rank,
                                   io::LogStream kind, bool existed) {
  const std::tuple key(generation, rank, kind);
  if (streams_.contains(key)) return;
  const std::string directory = io::LogDirectory(log_root_, job_, generation, rank);
  const io::LogPosition from = FirstPosition(generation, rank, kind, directory, existed);
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
    io::LogPosition at = stream.reader.position();
    if (chunk->bytes.empty()) {
      std::optional<io::LogLine> partial;
      if (last) partial = stream.splitter.TakePartial();
      if (!partial) return false;
      stream.lines.push_back({*std::move(partial), at});
      return true;
    }
    std::vector<io::LogLine> lines;
    stream.splitter.Add(chunk->bytes, chunk->at, lines);
    at.offset -= chunk->bytes.size();  // A chunk never crosses segments.
    for (io::LogLine& line : lines) {
      const io::LogPosition end{at.segment, at.offset + line.end};
      stream.lines.push_back({std::move(line), end});
    }
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
  const WallTime at = stream.lines.front().line.at;
  chunk.set_at_us(at.time_since_epoch().count());
  chunk.set_not_kept_bytes(std::exchange(stream.not_kept_bytes, 0));
  std::string& data = *chunk.mutable_data();
  io::LogPosition end;
  while (!stream.lines.empty() && stream.lines.front().line.at == at &&
         (data.empty() || data.size() + stream.lines.front().line.text.size() < kChunkBytes)) {
    data += stream.lines.front().line.text;
    if (stream.lines.front().line.complete) data += '\n';
    end = stream.lines.front().end;
    stream.lines.pop_front();
  }
  chunk.mutable_mark()->set_generation(stream.generation.value());
  chunk.mutable_mark()->set_rank(stream.rank);
  chunk.mutable_mark()->set_is_stderr(chunk.is_stderr());
  chunk.mutable_mark()->set_segment(end.segment);
  chunk.mutable_mark()->set_offset(end.offset);
  return chunk;
}

std::vector<v1::LogChunk> LogSelectionReader::Next(bool last) {
  FindStreams();
  std::vector<v1::LogChunk> chunks = std::exchange(told_, {});
  for (std::size_t taken = 0; taken < kHeldLines; ++taken) {
    Stream* oldest = nullptr;
    for (auto& [key, stream] : streams_) {
      if (stream.over && (!last || stream.looked_at_last)) continue;
      if (!Refill(stream, last)) {
        stream.looked_at_last = last;
        // Who still writes there has waited for a disk: it is looked at once more, in the end.
        stream.over = stream.generation.value() + 1 < newest_.value() && !Refill(stream, true);
        if (stream.lines.empty()) continue;
      }
      // Generations follow one another, whatever the clocks say.
      if (oldest == nullptr || std::tuple(stream.generation, stream.lines.front().line.at) <
                                   std::tuple(oldest->generation, oldest->lines.front().line.at)) {
        oldest = &stream;
      }
    }
    if (oldest == nullptr) break;
    chunks.push_back(TakeChunk(*oldest));
  }
  return chunks;
}

}  // namespace regroup::agent
