#include "agent/shell/line_mixer.h"

#include <utility>

namespace regroup::agent {

int LineMixer::AddSource(Sink sink, std::string prefix) {
  Source source;
  source.sink = sink;
  source.prefix = std::move(prefix);
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i].used) continue;
    sources_[i] = std::move(source);
    return static_cast<int>(i);
  }
  sources_.push_back(std::move(source));
  return static_cast<int>(sources_.size()) - 1;
}

void LineMixer::RemoveSource(int number, std::vector<Piece>& out) {
  Source& source = sources_[static_cast<std::size_t>(number)];
  if (!source.held.empty()) Emit(number, std::exchange(source.held, {}), out);
  // A line that it left open is broken by whoever comes next; after that its number means somebody
  // else.
  if (OpenOn(source.sink) == number && (!source.prefix.empty() || one_device_))
    BreakOpenLine(source.sink, out);
  if (OpenOn(source.sink) == number) OpenOn(source.sink) = kNobody;
  source.used = false;
}

void LineMixer::Put(Sink sink, std::string_view bytes, std::vector<Piece>& out) {
  if (!out.empty() && out.back().sink == sink) {
    out.back().bytes.append(bytes);
  } else {
    out.push_back({sink, std::string(bytes)});
  }
}

// To the sink where that line is.
void LineMixer::BreakOpenLine(Sink sink, std::vector<Piece>& out) {
  int& open = OpenOn(sink);
  if (open == kNobody) return;
  Put(sources_[static_cast<std::size_t>(open)].sink, "\n", out);
  open = kNobody;
}

void LineMixer::Emit(int number, std::string_view text, std::vector<Piece>& out) {
  const Source& source = sources_[static_cast<std::size_t>(number)];
  int& open = OpenOn(source.sink);
  if (open != number) {
    // Bytes that pass unprefixed are alone on their sink: nothing of ours may be added to a file.
    if (!source.prefix.empty() || one_device_) BreakOpenLine(source.sink, out);
    Put(source.sink, source.prefix, out);
  }
  Put(source.sink, text, out);
  open = text.back() == '\n' || text.back() == '\r' ? kNobody : number;
}

void LineMixer::Add(int number, std::string_view bytes, Instant now, std::vector<Piece>& out) {
  Source& source = sources_[static_cast<std::size_t>(number)];
  if (bytes.empty()) return;
  if (source.prefix.empty()) return Emit(number, bytes, out);
  if (source.held.empty()) source.held_since = now;
  source.held.append(bytes);
  std::size_t from = 0;
  for (std::size_t i = 0; i < source.held.size(); ++i) {
    const char c = source.held[i];
    if (c != '\n' && c != '\r') continue;
    // \r\n is one end; a \r that is last so far may become one.
    if (c == '\r' && i + 1 == source.held.size()) break;
    if (c == '\r' && source.held[i + 1] == '\n') continue;
    Emit(number, std::string_view(source.held).substr(from, i + 1 - from), out);
    from = i + 1;
  }
  if (from > 0) source.held_since = now;
  source.held.erase(0, from);
  if (source.held.size() > kMaxHeldBytes) Emit(number, std::exchange(source.held, {}), out);
}

void LineMixer::Say(std::string_view text, std::vector<Piece>& out) {
  if (text.empty()) return;
  if (one_device_ || OpenOn(Sink::kStderr) != kNobody) BreakOpenLine(Sink::kStderr, out);
  Put(Sink::kStderr, text, out);
}

void LineMixer::Flush(Instant now, bool all, std::vector<Piece>& out) {
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i].held.empty() || (!all && now < sources_[i].held_since + kHold)) continue;
    Emit(static_cast<int>(i), std::exchange(sources_[i].held, {}), out);
  }
}

std::optional<Instant> LineMixer::NextFlush() const {
  std::optional<Instant> next;
  for (const Source& source : sources_) {
    if (source.held.empty()) continue;
    const Instant due = source.held_since + kHold;
    if (!next || due < *next) next = due;
  }
  return next;
}

}  // namespace regroup::agent
