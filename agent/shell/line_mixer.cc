#include "agent/shell/line_mixer.h"

#include <algorithm>
#include <utility>

namespace regroup::agent {
namespace {

constexpr std::string_view kCursorUp = "\x1b[A";

// Text has line ends, tabs, escape sequences, backspaces and bells, and no other control.
bool IsBinary(std::string_view bytes) {
  return std::any_of(bytes.begin(), bytes.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 && !(byte >= 0x07 && byte <= 0x0d) && byte != 0x1b;
  });
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

}  // namespace

// ---- sources and devices

int LineMixer::AddSource(Sink sink, Look look) {
  Source source;
  source.sink = sink;
  source.look = std::move(look);
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i].used) continue;
    sources_[i] = std::move(source);
    return static_cast<int>(i);
  }
  sources_.push_back(std::move(source));
  return Count() - 1;
}

void LineMixer::RemoveSource(int number, Instant now, std::vector<Piece>& out) {
  At(number).closing = true;
  Pump(now, false, out);
}

bool LineMixer::MayWrite(int number) const {
  const int open = OpenFor(At(number).sink);
  return open == kNobody || open == number;
}

bool LineMixer::Full(int number) const {
  return At(number).held.size() >= kMaxHeldBytes && !MayWrite(number);
}

bool LineMixer::Holds() const {
  return !said_.empty() || std::any_of(sources_.begin(), sources_.end(), [](const Source& source) {
    return source.used && IsPending(source);
  });
}

// It has something that has not been shown, or not as a line.
bool LineMixer::IsPending(const Source& source) {
  return !source.held.empty() || (source.bar && !source.state.empty() && !source.state_shown);
}

bool LineMixer::IsLive(Sink sink) const {
  return devices_.live && (devices_.one || sink == *devices_.live);
}

// Whether the line that stands unfinished there is in the way of something.
bool LineMixer::Wanted(int device) const {
  if (!said_.empty() && device == DeviceOf(Sink::kStderr)) return true;
  if (devices_.live && device == DeviceOf(*devices_.live) && area_.NextDraw()) return true;
  for (int i = 0; i < Count(); ++i) {
    const Source& source = At(i);
    if (source.used && i != open_[device] && DeviceOf(source.sink) == device && IsPending(source))
      return true;
  }
  return false;
}

// ---- what is written

void LineMixer::Put(Sink sink, std::string_view bytes, std::vector<Piece>& out) {
  if (bytes.empty()) return;
  std::string erase;
  if (area_.drawn() && IsLive(sink)) erase = area_.Erase(screen_);
  if (out.empty() || out.back().sink != sink) out.push_back({sink, {}});
  out.back().bytes.append(erase).append(bytes);
}

// To the sink where that line is.
void LineMixer::BreakOpenLine(Sink sink, std::vector<Piece>& out) {
  int& open = open_[DeviceOf(sink)];
  if (open == kNobody) return;
  Put(At(open).sink, "\n", out);
  open = kNobody;
}

void LineMixer::Emit(int number, std::string_view text, std::vector<Piece>& out) {
  const Source& source = At(number);
  int& open = open_[DeviceOf(source.sink)];
  if (open != number) {
    // Nothing of ours may be added to bytes that pass as they come.
    if (open != kNobody && !(source.look.raw && At(open).look.raw)) BreakOpenLine(source.sink, out);
    Put(source.sink, source.look.prefix, out);
  }
  Put(source.sink, text, out);
  open = text.back() == '\n' ? kNobody : number;
}

// ---- lines and bars

// Shows the whole lines at the front of `bytes`; returns how many bytes those are. REQUIRES:
// MayWrite.
std::size_t LineMixer::Take(int number, std::string_view bytes, Instant now,
                            std::vector<Piece>& out) {
  Source& source = At(number);
  std::size_t from = 0, carriage = source.binary ? bytes.npos : bytes.find('\r');
  while (from < bytes.size()) {
    if (carriage != bytes.npos && carriage < from) carriage = bytes.find('\r', from);
    const std::size_t end = bytes.find('\n', from);
    if (carriage < end) {
      if (carriage + 1 == bytes.size()) break;  // It may become \r\n.
      if (carriage + 1 != end && !source.bar && IsBinary(bytes)) {
        source.binary = true;
        carriage = bytes.npos;
      } else if (carriage + 1 != end) {
        Refresh(number, bytes.substr(from, carriage - from), now, out);
        from = carriage + 1;
        continue;
      }
    }
    if (end == bytes.npos) break;
    Line(number, bytes.substr(from, end + 1 - from), now, out);
    from = end + 1;
  }
  return from;
}

void LineMixer::Line(int number, std::string_view text, Instant now, std::vector<Piece>& out) {
  Source& source = At(number);
  if (!source.bar) return Emit(number, text, out);
  text.remove_suffix(text.size() > 1 && text[text.size() - 2] == '\r' ? 2 : 1);
  // A bar below another: the newline after the cursor went up takes it down again.
  if (EndsWith(text, kCursorUp)) return SetState(number, text, now, out);
  if (!text.empty()) SetState(number, text, now, out);
  EndBar(number, now, out);
}

// Text that a lone \r ends.
void LineMixer::Refresh(int number, std::string_view text, Instant now, std::vector<Piece>& out) {
  Source& source = At(number);
  if (open_[DeviceOf(source.sink)] == number) BreakOpenLine(source.sink, out);
  if (!source.bar) source.bar_next = std::max(source.bar_next, now + kBarLine);
  source.bar = true;
  if (!text.empty()) SetState(number, text, now, out);
}

void LineMixer::SetState(int number, std::string_view text, Instant now, std::vector<Piece>& out) {
  Source& source = At(number);
  std::string state = BarText(text);
  if (state == source.state) return;
  source.state = std::move(state);
  source.state_shown = false;
  if (source.state.empty()) {  // It has been wiped out.
    area_.Remove(number);
  } else if (IsLive(source.sink)) {
    area_.Set(number, source.look.label, source.state);
  } else if (now >= source.bar_next) {
    ShowState(number, now, out);
  }
}

void LineMixer::ShowState(int number, Instant now, std::vector<Piece>& out) {
  Source& source = At(number);
  Emit(number, source.state + "\n", out);
  source.state_shown = true;
  source.bar_next = now + kBarLine;
}

void LineMixer::EndBar(int number, Instant now, std::vector<Piece>& out) {
  Source& source = At(number);
  if (!source.bar) return;
  source.bar = false;
  area_.Remove(number);
  if (!source.state.empty() && !source.state_shown) ShowState(number, now, out);
  source.state.clear();
  source.state_held = 0;
}

// ---- waiting

void LineMixer::Add(int number, std::string_view bytes, Instant now, std::vector<Piece>& out) {
  if (bytes.empty()) return;
  Source& source = At(number);
  source.last_byte = now;
  if (source.look.raw) return Emit(number, bytes, out);
  if (!MayWrite(number) || !source.held.empty()) {
    if (source.held.empty()) source.held_since = now;
    source.held.append(bytes);
    if (MayWrite(number)) TakeHeld(number, now, out);
  } else {
    const std::size_t taken = Take(number, bytes, now, out);
    source.held.assign(bytes.substr(taken));
    source.held_since = now;
  }
  // What belongs to the line that stands there need not be whole; a \r at its end may be half an
  // end.
  const bool open = open_[DeviceOf(source.sink)] == number;
  if (open && !source.held.empty() && source.held.back() != '\r')
    Emit(number, std::exchange(source.held, {}), out);
  if (source.held.size() > kMaxHeldBytes && MayWrite(number)) ShowTail(number, now, false, out);
  if (OpenFor(source.sink) == kNobody) Pump(now, false, out);
}

void LineMixer::TakeHeld(int number, Instant now, std::vector<Piece>& out) {
  Source& source = At(number);
  const std::size_t taken = Take(number, source.held, now, out);
  if (taken == 0) return;
  source.held.erase(0, taken);
  source.held_since = source.last_byte;
  source.state_held = 0;
}

bool LineMixer::TailDue(const Source& source, Instant now, bool all) const {
  if (source.held.empty()) return false;
  if (all || source.closing || source.held.size() > kMaxHeldBytes) return true;
  const bool known = source.bar && source.state_held == source.held.size();
  return !known && now >= source.held_since + kHold;
}

// Its line is not finished: it is shown as it is, or is the state of its bar so far. REQUIRES:
// MayWrite.
void LineMixer::ShowTail(int number, Instant now, bool all, std::vector<Piece>& out) {
  Source& source = At(number);
  if (!source.binary && source.held.back() == '\r') {  // Half an end no longer.
    const std::string text = std::exchange(source.held, {});
    if (!source.bar && IsBinary(text)) return Emit(number, text, out);
    source.state_held = 0;
    return Refresh(number, std::string_view(text).substr(0, text.size() - 1), now, out);
  }
  if (source.bar && source.held.size() <= kMaxHeldBytes) {
    SetState(number, source.held, now, out);
    source.state_held = source.held.size();
    if (!all && !source.closing) return;
    source.held.clear();
    return EndBar(number, now, out);
  }
  EndBar(number, now, out);
  Emit(number, std::exchange(source.held, {}), out);
}

void LineMixer::Say(std::string_view text, bool at_once, Instant now, std::vector<Piece>& out) {
  if (text.empty()) return;
  said_.push_back({std::string(text), now});
  ShowSaid(now, at_once, out);
}

void LineMixer::ShowSaid(Instant now, bool all, std::vector<Piece>& out) {
  while (!said_.empty() &&
         (all || OpenFor(Sink::kStderr) == kNobody || now >= said_.front().at + kOwnLines)) {
    BreakOpenLine(Sink::kStderr, out);
    Put(Sink::kStderr, said_.front().text, out);
    said_.pop_front();
  }
}

// Breaks a line that has stopped growing when it is in the way.
void LineMixer::Release(int device, Instant now, bool all, std::vector<Piece>& out) {
  const int open = open_[device];
  if (open == kNobody) return;
  const Source& source = At(open);
  const bool grows = !all && !source.closing && now < source.last_byte + kGrowth;
  if (!grows && Wanted(device)) BreakOpenLine(source.sink, out);
}

// Shows what may be shown, one source after the other.
void LineMixer::Pump(Instant now, bool all, std::vector<Piece>& out) {
  for (int i = 0; i < Count(); ++i) {
    const int number = all ? i : (first_ + i) % Count();
    Source& source = At(number);
    if (!source.used) continue;
    Release(DeviceOf(source.sink), now, all, out);
    if (!MayWrite(number)) continue;
    if (!source.held.empty()) TakeHeld(number, now, out);
    if (TailDue(source, now, all)) ShowTail(number, now, all, out);
    if (all || (source.closing && source.held.empty())) EndBar(number, now, out);
    if (source.bar && !IsLive(source.sink) && !source.state.empty() && !source.state_shown &&
        now >= source.bar_next)
      ShowState(number, now, out);
    if (!source.closing || !source.held.empty()) continue;
    // A line that it left open is broken: its number may soon be another's.
    int& open = open_[DeviceOf(source.sink)];
    if (open == number && (!source.look.raw || devices_.one)) BreakOpenLine(source.sink, out);
    if (open == number) open = kNobody;
    source.used = false;
  }
  ShowSaid(now, all, out);
}

void LineMixer::Draw(Instant now, std::vector<Piece>& out) {
  const std::optional<Instant> next = area_.NextDraw();
  if (!next || now < *next || OpenFor(*devices_.live) != kNobody) return;
  const std::string text = area_.Draw(now, screen_);
  if (out.empty() || out.back().sink != *devices_.live) out.push_back({*devices_.live, {}});
  out.back().bytes.append(text);
}

void LineMixer::Flush(Instant now, bool all, std::vector<Piece>& out) {
  for (int device : {0, 1}) Release(device, now, all, out);
  Pump(now, all, out);
  if (Count() > 0) first_ = (first_ + 1) % Count();  // Each is first in its turn.
  if (all) Put(devices_.live.value_or(Sink::kStderr), area_.Erase(screen_), out);
  Draw(now, out);
}

std::optional<Instant> LineMixer::NextFlush() const {
  std::optional<Instant> next;
  const auto at = [&next](Instant when) { next = next ? std::min(*next, when) : when; };
  for (int i = 0; i < Count(); ++i) {
    const Source& source = At(i);
    if (!source.used || !MayWrite(i)) continue;
    if (!source.held.empty() && !(source.bar && source.state_held == source.held.size()))
      at(source.held_since + kHold);
    if (source.bar && !IsLive(source.sink) && !source.state.empty() && !source.state_shown)
      at(source.bar_next);
  }
  for (int device : {0, 1}) {
    if (open_[device] != kNobody && Wanted(device)) at(At(open_[device]).last_byte + kGrowth);
  }
  if (!said_.empty()) at(said_.front().at + kOwnLines);
  if (area_.NextDraw() && OpenFor(*devices_.live) == kNobody) at(*area_.NextDraw());
  return next;
}

}  // namespace regroup::agent
