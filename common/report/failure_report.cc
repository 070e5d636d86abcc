#include "common/report/failure_report.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "common/config/text.h"
#include "common/report/format.h"
#include "common/report/reasons.h"

namespace regroup {
namespace {

constexpr std::size_t kMaxStderrLines = 60;  // A traceback is shown whole up to here; else its end.

// One row of the report: the label stands in its first line only.
std::string Row(std::string_view label, const std::vector<std::string>& lines) {
  constexpr std::size_t kColumn = 14;
  std::string out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::string head = i == 0 ? Cat("  ", label) : std::string();
    head.resize(kColumn, ' ');
    out += Cat(head, lines[i], "\n");
  }
  return out;
}

std::vector<std::string> StderrLines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    line.erase(0, line.rfind('\r') + 1);  // Of a progress bar its last state.
    lines.push_back(Cat("| ", EscapeControls(line, /*keep_tab=*/true)));
  }
  if (lines.size() > kMaxStderrLines) {
    std::size_t cut = lines.size() - kMaxStderrLines;
    lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(cut));
    lines.insert(lines.begin(), Cat("| (", Count(static_cast<long long>(cut), "line"), " before)"));
  }
  return lines;
}

std::string RootCause(const RankCause& cause) {
  std::string text = cause.rank < 0 ? Cat("a worker on ", cause.node)
                                    : Cat("rank ", cause.rank, " on ", cause.node);
  std::string where = cause.local_rank < 0 ? "" : Cat("local ", cause.local_rank);
  if (cause.exit.pid > 0) where += Cat(where.empty() ? "" : ", ", "pid ", cause.exit.pid);
  if (!where.empty()) text += Cat(" (", where, ")");
  text += Cat(" ", ExitTextWithSender(cause.exit));
  if (cause.at != WallTime{}) text += Cat(" at ", ClockText(cause.at), "Z");
  return text;
}

// Ranks that say the same are told together.
std::vector<std::string> Consequences(const GenerationView& generation, WallTime root) {
  std::map<std::string, std::pair<std::vector<int>, WallTime>> groups;
  for (const RankCause& other : generation.consequences) {
    std::string said = other.exit.after_stop ? "" : LastLine(other.exit.error);
    std::string text = said.empty() ? ExitTextWithSender(other.exit) : said;
    auto [at, first] = groups.try_emplace(text, std::vector<int>{}, other.at);
    at->second.first.push_back(other.rank);
    at->second.second = std::max(at->second.second, other.at);
  }
  std::vector<std::string> lines;
  for (const auto& [text, who] : groups) {
    std::string later;
    if (root != WallTime{} && who.second >= root)
      later = Cat(" (", ShortText(who.second - root), " later)");
    lines.push_back(Cat(RanksText(who.first), ": ", text, later));
  }
  return lines;
}

std::string Header(const JobView& view, const TextStyle& style) {
  std::string text = Cat("regroup: ", view.id.value(), " ", Painted(style, Tone::kBad, "FAILED"),
                         ", exit ", view.exit_code);
  ReasonContext context{view.id, view.generation, view.spec.origin};
  if (view.failed) {
    text += Cat(" · ", Explain(*view.failed, context).brief);
  } else if (view.spec.max_restarts > 0) {
    text += Cat(" · ", view.restarts_charged, " of ", Count(view.spec.max_restarts, "restart"),
                " used");
  }
  return text + "\n";
}

bool IsDeciding(const EndReason& reason) {
  return ChargesBudget(reason) || std::holds_alternative<ExecFailed>(reason);
}

}  // namespace

const RankCause* CauseOf(const GenerationView* generation) {
  if (generation == nullptr || !generation->ended) return nullptr;
  if (const auto* failed = std::get_if<WorkerFailed>(&*generation->ended)) return &failed->cause;
  if (const auto* exec = std::get_if<ExecFailed>(&*generation->ended)) return &exec->cause;
  return nullptr;
}

const GenerationView* DecidingGeneration(const JobView& view) {
  // Faults that were survived before say nothing about the last notice.
  const bool by_notice = view.failed && std::holds_alternative<PreemptionsSpent>(*view.failed);
  const GenerationView* last_ended = nullptr;
  for (auto at = view.generations.rbegin(); at != view.generations.rend(); ++at) {
    if (!at->ended) continue;
    const bool decides =
        by_notice ? std::holds_alternative<Preempted>(*at->ended) : IsDeciding(*at->ended);
    if (decides) return &*at;
    if (last_ended == nullptr) last_ended = &*at;
  }
  return last_ended;
}

std::optional<int> AmbiguousWorkerExit(const JobView& view) {
  constexpr int kOursBegin = 120;
  const RankCause* cause = CauseOf(DecidingGeneration(view));
  if (view.state != "failed" || cause == nullptr || cause->exit.kind != ExitKind::kExited)
    return std::nullopt;
  if (cause->exit.code < kOursBegin || cause->exit.code != view.exit_code) return std::nullopt;
  return cause->exit.code;
}

std::string FailureReport(const JobView& view, const TextStyle& style) {
  std::string out = Header(view, style);
  const GenerationView* generation = DecidingGeneration(view);
  const RankCause* cause = CauseOf(generation);
  ReasonContext context{view.id, generation == nullptr ? view.generation : generation->generation,
                        view.spec.origin};
  std::vector<std::string> look;
  if (cause != nullptr) {
    out += Row("root cause", {RootCause(*cause)});
    out += Row("stderr", StderrLines(cause->exit.error));
    look.push_back(Cat("regroup logs ", view.id.value()));
    if (cause->rank >= 0) look.back() += Cat(" --rank ", cause->rank);
    look.back() += Cat(" --generation ", context.generation.value());
  } else if (generation != nullptr) {
    out += Row("root cause", {Explain(*generation->ended, context).sentence});
  } else if (view.failed) {
    out += Row("root cause", {Explain(*view.failed, context).sentence});
  }
  if (generation != nullptr)
    out += Row("after it", Consequences(*generation, cause == nullptr ? WallTime{} : cause->at));
  look.push_back(Cat("regroup explain ", view.id.value()));
  out += Row("look", {JoinWords(look, " · ")});
  return ForCharset(style, out);
}

std::string EndLine(const JobView& view) {
  std::string how = view.state;
  ReasonContext context{view.id, view.generation, view.spec.origin};
  if (view.state == "cancelled" && view.failed) how = Explain(*view.failed, context).brief;
  std::string text = Cat(view.id.value(), " ", how);
  if (view.ran_for) text += Cat(" · ", SpanText(*view.ran_for));
  auto formed = std::count_if(view.generations.begin(), view.generations.end(),
                              [](const GenerationView& g) { return g.formed_at.has_value(); });
  long long generations = formed > 0 ? formed : static_cast<long long>(view.generation.value());
  if (generations > 0) text += Cat(" · ", Count(generations, "generation"));
  if (view.restarts_charged > 0) text += Cat(", ", Count(view.restarts_charged, "restart"));
  if (view.state == "preempted") {
    std::string from = view.committed_step ? Cat(" from step ", *view.committed_step) : "";
    return Cat(text, " · the same command goes on", from);
  }
  return Cat(text, " · regroup explain ", view.id.value());
}

}  // namespace regroup
