#include "launcher/cli/commands/log_source.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "common/base/status_macros.h"
#include "common/config/launch_config.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "common/io/fd.h"
#include "common/io/files.h"
#include "common/io/log_files.h"
#include "common/io/proc.h"

namespace regroup::cli {
namespace {

namespace fs = std::filesystem;
constexpr int kDeepest = 4;
constexpr std::size_t kMostFolders = 10'000;

bool IsNumber(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// <root>/<job>/<generation>/<rank>/
bool HoldsLogs(const fs::path& folder) {
  std::error_code error;
  for (const auto& generation : fs::directory_iterator(folder, error)) {
    if (IsNumber(generation.path().filename().string()) && generation.is_directory(error))
      return true;
  }
  return false;
}

void Search(const fs::path& folder, const std::string& job, int depth, std::size_t& seen,
            std::set<std::string>& roots) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (++seen > kMostFolders) return;
    if (!entry.is_directory(error) || entry.is_symlink(error)) continue;
    std::string name = entry.path().filename().string();
    if (name == job && HoldsLogs(entry.path())) {
      roots.insert(folder.string());
    } else if (depth > 1 && !HoldsLogs(entry.path())) {
      Search(entry.path(), job, depth - 1, seen, roots);
    }
  }
}

// Which node had a rank: from the journal.
std::string NodeOf(const JobView& job, Generation generation, int rank) {
  for (const GenerationView& g : job.generations) {
    if (g.generation != generation) continue;
    for (const MemberView& member : g.members) {
      if (std::find(member.ranks.begin(), member.ranks.end(), rank) != member.ranks.end())
        return member.name;
    }
  }
  return "?";
}

bool IsNode(const JobView& job, Generation generation, int rank, const std::string& node) {
  if (NodeOf(job, generation, rank) == node) return true;
  for (const GenerationView& g : job.generations) {
    if (g.generation != generation) continue;
    for (const MemberView& member : g.members) {
      bool has = std::find(member.ranks.begin(), member.ranks.end(), rank) != member.ranks.end();
      if (has && member.node.value() == node) return true;
    }
  }
  return false;
}

struct StreamId {
  std::string directory;
  io::LogStream stream;
  Generation generation;
  int rank;
  std::string node;
};

absl::StatusOr<io::LogPosition> Start(const StreamId& id, const LogFilter& filter) {
  io::LogPosition start;
  if (filter.read.Knows(id.node))
    return filter.read.Find(id.node, id.generation, id.rank, id.stream).value_or(start);
  if (filter.since) {
    WallTime since = io::WallNow() - std::chrono::duration_cast<WallTime::duration>(*filter.since);
    ASSIGN_OR_RETURN(start, io::PositionSince(id.directory, id.stream, since));
  }
  if (filter.tail) {
    constexpr std::size_t kLookBack = 64u << 20;
    ASSIGN_OR_RETURN(io::LogPosition tail,
                     io::TailPosition(id.directory, id.stream, *filter.tail, kLookBack));
    start = std::max(start, tail);
  }
  return start;
}

// One stream's lines, one at a time; a chunk of it is in memory.
class StreamCursor {
 public:
  explicit StreamCursor(StreamId id) : id_(std::move(id)) {}

  absl::Status Open(const LogFilter& filter) {
    ASSIGN_OR_RETURN(const io::LogPosition start, Start(id_, filter));
    reader_.emplace(id_.directory, id_.stream, start);
    return Advance();
  }
  bool done() const { return lines_.empty(); }
  WallTime at() const { return lines_.front().at; }
  LogEntry Take() {
    io::LogLine line = std::move(lines_.front());
    lines_.pop_front();
    return {line.at,
            id_.node,
            id_.generation,
            id_.rank,
            id_.stream == io::LogStream::kStderr,
            std::move(line.text),
            !line.complete};
  }
  // Reads on when all that was read is taken.
  absl::Status Advance() {
    while (lines_.empty() && reader_) {
      ASSIGN_OR_RETURN(const io::LogReader::Chunk chunk, reader_->Next());
      std::vector<io::LogLine> lines;
      if (!chunk.bytes.empty()) {
        splitter_.Add(chunk.bytes, chunk.at, lines);
      } else {
        if (std::optional<io::LogLine> rest = splitter_.TakePartial()) {
          rest->complete = true;  // There is no more of it.
          lines.push_back(*std::move(rest));
        }
        reader_.reset();
      }
      std::move(lines.begin(), lines.end(), std::back_inserter(lines_));
    }
    return absl::OkStatus();
  }

 private:
  const StreamId id_;
  std::optional<io::LogReader> reader_;  // Nothing: read to its end.
  io::LineSplitter splitter_;
  std::deque<io::LogLine> lines_;
};

// The streams' lines in order of time; each stream's own order stays where a clock was set back.
absl::Status MergeStreams(std::vector<StreamCursor>& streams, const LogFilter& filter,
                          const std::function<void(LogEntry)>& take) {
  std::set<std::pair<WallTime, std::size_t>> next;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    RETURN_IF_ERROR(streams[i].Open(filter));
    if (!streams[i].done()) next.emplace(streams[i].at(), i);
  }
  while (!next.empty()) {
    const auto [at, i] = *next.begin();
    next.erase(next.begin());
    // Of one chunk all lines have the same time.
    while (!streams[i].done() && streams[i].at() <= at) {
      take(streams[i].Take());
      RETURN_IF_ERROR(streams[i].Advance());
    }
    if (!streams[i].done()) next.emplace(streams[i].at(), i);
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> FindLogRoots(const std::string& state_dir, const std::string& log_dir,
                                      const JobId& job) {
  std::set<std::string> roots;
  if (!log_dir.empty() && HoldsLogs(fs::path(log_dir) / job.value())) return {log_dir};
  std::size_t seen = 0;
  if (log_dir.empty() && !state_dir.empty()) Search(state_dir, job.value(), kDeepest, seen, roots);
  return {roots.begin(), roots.end()};
}

std::vector<std::string> OutputNotes(const Place& place, const JobId& job) {
  constexpr std::size_t kMostBytes = 16 << 10;
  std::vector<std::string> roots, notes;
  std::error_code error;
  const fs::path runs = fs::path(place.state_dir()) / std::string(kRunLogsFolder);
  for (const auto& entry : fs::directory_iterator(runs, error))
    roots.push_back(entry.path().string());
  for (const std::string& root : OwnLogRoots(roots, place, JobOrigin::kLaunched)) {
    const absl::StatusOr<std::string> text =
        io::ReadFile(Cat(root, "/", job.value(), "/", kOutputNotes), kMostBytes);
    if (!text.ok()) continue;
    for (std::size_t from = 0, end; (end = text->find('\n', from)) != std::string::npos;
         from = end + 1)
      notes.push_back(text->substr(from, end - from));
  }
  return notes;
}

std::vector<std::string> OwnLogRoots(const std::vector<std::string>& roots, const Place& place,
                                     JobOrigin origin) {
  // Runs write below logs/<endpoint>-<port>/ or logs/local/, services below node-<k>/.
  const std::string of_runs = Cat(place.state_dir(), "/", kRunLogsFolder, "/");
  const std::string key = place.folder.substr(place.folder.find_last_of('-') + 1);
  std::vector<std::string> own;
  for (const std::string& root : roots) {
    bool of_run = root.rfind(of_runs, 0) == 0;
    bool same_key = of_run && root.substr(root.find_last_of("-/") + 1) == key;
    if (origin == JobOrigin::kLaunched ? same_key : !of_run) own.push_back(root);
  }
  return own;
}

namespace {

// Every stream that the filter lets through.
absl::Status ForEachStream(const std::vector<std::string>& roots, const JobView& job,
                           const LogFilter& filter,
                           const std::function<absl::Status(const StreamId&)>& visit) {
  for (const std::string& root : roots) {
    ASSIGN_OR_RETURN(auto there, io::ListLogs(root, job.id));
    for (const auto& [generation, ranks] : there) {
      if (filter.generation && generation != *filter.generation) continue;
      // The end of a node's output is the end of its newest generation.
      if (filter.tail && !filter.generation && filter.read.empty() &&
          generation != there.rbegin()->first)
        continue;
      for (int rank : ranks) {
        bool asked = filter.ranks.empty() || std::find(filter.ranks.begin(), filter.ranks.end(),
                                                       rank) != filter.ranks.end();
        if (!asked || (!filter.node.empty() && !IsNode(job, generation, rank, filter.node)))
          continue;
        const std::string node = NodeOf(job, generation, rank);
        if (generation < filter.read.ReadBefore(node)) continue;
        StreamId id{io::LogDirectory(root, job.id, generation, rank), io::LogStream::kStdout,
                    generation, rank, node};
        if (!filter.stderr_only) RETURN_IF_ERROR(visit(id));
        id.stream = io::LogStream::kStderr;
        if (!filter.stdout_only) RETURN_IF_ERROR(visit(id));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadLogFiles(const std::vector<std::string>& roots, const JobView& job,
                          const LogFilter& filter, const std::function<void(LogEntry)>& take) {
  std::map<Generation, std::vector<StreamCursor>> generations;
  RETURN_IF_ERROR(ForEachStream(roots, job, filter, [&](const StreamId& id) {
    generations[id.generation].emplace_back(id);
    return absl::OkStatus();
  }));
  io::RaiseDescriptorLimit();  // A stream of the generation that is read is one.
  for (auto& [generation, streams] : generations) {
    RETURN_IF_ERROR(MergeStreams(streams, filter, take));
    streams.clear();
  }
  return absl::OkStatus();
}

std::string NotKeptText(std::uint64_t bytes, bool first, int rank, bool is_stderr) {
  return Cat(first ? "the first " : "", FormatBytes(bytes), " of rank ", rank,
             is_stderr ? "'s stderr" : "", " are no longer kept; --log-keep");
}

std::vector<std::string> NotKept(const std::vector<std::string>& roots, const JobView& job,
                                 const LogFilter& filter) {
  std::vector<std::string> texts;
  if (filter.tail || filter.since) return texts;
  ForEachStream(roots, job, filter, [&](const StreamId& id) {
    const std::uint64_t bytes = io::NotKeptBytes(id.directory, id.stream);
    if (bytes > 0) {
      texts.push_back(
          NotKeptText(bytes, /*first=*/true, id.rank, id.stream == io::LogStream::kStderr));
    }
    return absl::OkStatus();
  }).IgnoreError();  // Reading them says it as well.
  return texts;
}

std::vector<std::string> NodesWithoutLogs(const std::vector<std::string>& roots,
                                          const JobView& job) {
  std::set<std::pair<Generation, int>> seen;
  for (const std::string& root : roots) {
    absl::StatusOr<std::map<Generation, std::vector<int>>> there = io::ListLogs(root, job.id);
    if (!there.ok()) continue;
    for (const auto& [generation, ranks] : *there) {
      for (int rank : ranks) seen.insert({generation, rank});
    }
  }
  std::map<std::string, bool> has;
  for (const GenerationView& g : job.generations) {
    for (const MemberView& member : g.members) {
      bool& any = has[member.name];
      for (int rank : member.ranks) any = any || seen.count({g.generation, rank}) > 0;
    }
  }
  std::vector<std::string> without;
  for (const auto& [node, any] : has) {
    if (!any) without.push_back(node);
  }
  return without;
}

struct LogReplies::Stream {
  LogEntry like;
  io::LineSplitter splitter;
};

void LogReplies::Add(const regroup::v1::LogChunk& chunk) {
  marks_.Take(chunk);
  if (chunk.data().empty()) return;
  std::string key =
      Cat(chunk.node(), "/", chunk.generation(), "/", chunk.rank(), chunk.is_stderr() ? "e" : "o");
  std::shared_ptr<Stream>& stream = streams_[key];
  if (chunk.not_kept_bytes() > 0)
    tell_(NotKeptText(chunk.not_kept_bytes(), stream == nullptr, chunk.rank(), chunk.is_stderr()));
  if (stream == nullptr) {
    stream = std::make_shared<Stream>();
    stream->like = {WallTime{},   chunk.node(),      Generation(chunk.generation()),
                    chunk.rank(), chunk.is_stderr(), "",
                    false};
  }
  std::vector<io::LogLine> lines;
  stream->splitter.Add(chunk.data(), WallTime{std::chrono::microseconds(chunk.at_us())}, lines);
  for (io::LogLine& line : lines) {
    LogEntry entry = stream->like;
    entry.at = line.at;
    entry.text = std::move(line.text);
    entry.cut = !line.complete;
    take_(std::move(entry));
  }
}

void LogReplies::Finish() {
  for (auto& [key, stream] : streams_) {
    std::optional<io::LogLine> rest = stream->splitter.TakePartial();
    if (!rest) continue;
    LogEntry entry = stream->like;
    entry.at = rest->at;
    entry.text = std::move(rest->text);
    take_(std::move(entry));
  }
}

}  // namespace regroup::cli
