#include "launcher/cli/render/log_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "common/config/text.h"
#include "common/report/format.h"
#include "common/report/reasons.h"
#include "launcher/cli/render/json.h"

namespace regroup::cli {
namespace {

std::string CauseText(const EndReason& reason, const ReasonContext& context) {
  const RankCause* cause = nullptr;
  if (const auto* failed = std::get_if<WorkerFailed>(&reason)) cause = &failed->cause;
  if (const auto* exec = std::get_if<ExecFailed>(&reason)) cause = &exec->cause;
  if (cause == nullptr) return Explain(reason, context).brief;
  std::string rank = cause->rank < 0 ? "" : Cat(" rank ", cause->rank);
  return Cat(cause->node, rank, " ", ExitText(cause->exit));
}

// The length of "ESC [ 0-9;: FINAL" at the front of `text`; 0: there is no such thing.
std::size_t ControlAt(std::string_view text, char final) {
  constexpr std::size_t kLongest = 64;
  if (text.substr(0, 2) != "\x1b[") return 0;
  const std::size_t end = text.find_first_not_of("0123456789;:", 2);
  return end < std::min(text.size(), kLongest) && text[end] == final ? end + 1 : 0;
}

// What a terminal would show in the end: a carriage return begins the line anew.
std::string_view LastState(std::string_view text) {
  while (!text.empty() && text.back() == '\r') text.remove_suffix(1);
  const std::size_t begin = text.rfind('\r');
  return begin == std::string_view::npos ? text : text.substr(begin + 1);
}

std::string TerminalText(std::string_view text, bool color) {
  std::string out;
  bool coloured = false;
  text = LastState(text);
  while (!text.empty()) {
    const std::size_t chooses_color = ControlAt(text, 'm');
    if (const std::size_t size = chooses_color + ControlAt(text, 'K'); size > 0) {
      if (color) out.append(text.substr(0, chooses_color));
      coloured = coloured || (color && chooses_color > 0);
      text.remove_prefix(size);  // Of a line that was erased the last state is shown in any case.
      continue;
    }
    const std::size_t next = text.find('\x1b', 1);
    out += EscapeControls(text.substr(0, next), /*keep_tab=*/true);
    text.remove_prefix(std::min(next, text.size()));
  }
  return coloured ? Cat(out, "\x1b[0m") : out;
}

}  // namespace

std::string RenderEntry(const LogEntry& entry, LogForm form, const TextStyle& style) {
  if (form == LogForm::kRaw) return entry.cut ? entry.text : Cat(entry.text, "\n");
  if (form == LogForm::kJson) {
    Json out = {{"schema", "regroup.log/1"}};
    if (entry.at != WallTime{}) out["at"] = Rfc3339(entry.at);
    out["node"] = entry.node;
    out["generation"] = entry.generation.value();
    out["rank"] = entry.rank;
    out["stream"] = entry.is_stderr ? "stderr" : "stdout";
    out["text"] = entry.text;
    if (entry.cut) out["cut"] = true;
    // UTF-8 has controls that JSON does not escape.
    return out.dump(-1, ' ', /*ensure_ascii=*/style.terminal, Json::error_handler_t::replace) +
           "\n";
  }
  std::string at = entry.at == WallTime{} ? std::string(12, ' ') : ClockText(entry.at);
  std::string who = Cat(entry.node, ":", entry.rank);
  std::string text = style.terminal ? TerminalText(entry.text, style.color) : entry.text;
  Tone tone = entry.is_stderr ? Tone::kBad : Tone::kDim;
  return Cat(Painted(style, Tone::kDim, at), " ", Painted(style, tone, who), "  ", text, "\n");
}

void LogMerge::Push(WallTime at, std::string text) {
  held_bytes_ += text.size();
  items_.push_back({at, std::move(text), round_});
}

void LogMerge::Add(const LogEntry& entry) { Push(entry.at, RenderEntry(entry, form_, style_)); }

std::string LogMerge::Separator(const GenerationEnded& ended, WallTime at,
                                const GenerationFormed* next) const {
  ReasonContext context{job_.id, ended.generation, job_.spec.origin};
  std::string text = Cat("-- generation ", ended.generation.value(), " ended ", ClockText(at), ": ",
                         CauseText(ended.reason, context), " --");
  if (next != nullptr)
    text += Cat(" generation ", next->generation.value(), ", world ", next->world, " --");
  return ForCharset(style_, Cat(Painted(style_, Tone::kBold, text), "\n"));
}

void LogMerge::Add(const JobEvent& event) {
  if (form_ == LogForm::kRaw) return;
  if (form_ == LogForm::kJson) {
    Json out = {{"schema", "regroup.event/1"}};
    out.update(EventJson(event, job_));
    return Push(event.at, Dump(out));
  }
  if (const auto* ended = std::get_if<GenerationEnded>(&event.body)) {
    if (ended_) Push(ended_->second, Separator(ended_->first, ended_->second, nullptr));
    ended_ = {*ended, event.at};
  } else if (const auto* formed = std::get_if<GenerationFormed>(&event.body);
             formed != nullptr && ended_) {
    Push(ended_->second, Separator(ended_->first, ended_->second, formed));
    ended_.reset();
  } else if (std::holds_alternative<JobEnded>(event.body) && ended_) {
    Push(ended_->second, Separator(ended_->first, ended_->second, nullptr));
    ended_.reset();
  }
}

template <class Chosen>
std::string LogMerge::TakeIf(Chosen chosen) {
  auto end = std::stable_partition(items_.begin(), items_.end(), chosen);
  std::stable_sort(items_.begin(), end, [](const Item& a, const Item& b) { return a.at < b.at; });
  std::string out;
  for (auto at = items_.begin(); at != end; ++at) out += at->text;
  items_.erase(items_.begin(), end);
  held_bytes_ -= out.size();
  return out;
}

std::string LogMerge::Take(std::optional<WallTime> until) {
  if (!until && ended_) {
    Push(ended_->second, Separator(ended_->first, ended_->second, nullptr));
    ended_.reset();
  }
  return TakeIf([&](const Item& item) { return !until || item.at <= *until; });
}

std::string LogMerge::TakeSettled() {
  std::uint64_t before = round_++;
  return TakeIf([&](const Item& item) { return item.round < before; });
}

WallTime LogMerge::Median() const {
  if (items_.empty()) return WallTime{};
  std::vector<WallTime> times;
  for (const Item& item : items_) times.push_back(item.at);
  auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace regroup::cli
