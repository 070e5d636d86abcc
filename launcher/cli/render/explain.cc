#include "launcher/cli/render/explain.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <sstream>

#include "common/config/text.h"
#include "common/config/values.h"
#include "common/report/format.h"
#include "common/report/reasons.h"
#include "common/report/text_style.h"
#include "launcher/cli/render/gpus.h"
#include "launcher/cli/render/lists.h"

namespace regroup::cli {
namespace {

constexpr std::size_t kShownGenerations = 5;
constexpr std::size_t kShownNodes = 8;  // Of which it is told why they were chosen.

struct NamedPhase {
  const char* name;
  std::optional<Duration> value;
};

// The first five are ours and sum to `down`; the worker tells the others, or does not.
std::vector<NamedPhase> OurPhases(const RestartPhases& p) {
  return {{"detect", p.detect},
          {"decide", p.decide},
          {"stop", p.stop},
          {"form", p.form},
          {"spawn", p.spawn}};
}
std::vector<NamedPhase> WorkersPhases(const RestartPhases& p) {
  return {{"init", p.init}, {"restore", p.restore}, {"first step", p.first_step}};
}

// Words filled to `width` columns, every line indented by two.
std::string Filled(const std::string& text, int width) {
  std::istringstream words(text);
  std::string out = " ", word;
  int column = 1;
  while (words >> word) {
    int size = DisplayWidth(word);
    if (column > 2 && column + 1 + size > width) {
      out += "\n ";
      column = 1;
    }
    out += Cat(" ", word);
    column += 1 + size;
  }
  return out + "\n";
}

std::string PercentText(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", share * 100);
  return text;
}

const GenerationView* Next(const JobView& job, const GenerationView& generation) {
  for (const GenerationView& other : job.generations) {
    if (other.generation > generation.generation && other.formed_at) return &other;
  }
  return nullptr;
}
const GenerationView* Previous(const JobView& job, const GenerationView& generation) {
  const GenerationView* found = nullptr;
  for (const GenerationView& other : job.generations) {
    if (other.generation < generation.generation && other.formed_at) found = &other;
  }
  return found;
}
const GenerationView* Last(const JobView& job) {
  for (auto at = job.generations.rbegin(); at != job.generations.rend(); ++at) {
    if (at->formed_at) return &*at;
  }
  return nullptr;
}

// How many of the budget were used when this generation was charged.
int ChargedUntil(const JobView& job, const GenerationView& generation) {
  int charged = job.restarts_charged;
  for (const GenerationView& other : job.generations) {
    if (other.generation > generation.generation && other.charged) --charged;
  }
  return std::max(charged, 1);
}

// Which of the job's preemptions ended this generation.
int PreemptedUntil(const JobView& job, const GenerationView& generation) {
  int preempted = job.preemptions;
  for (const GenerationView& other : job.generations) {
    const bool later = other.generation > generation.generation;
    if (later && other.ended && std::holds_alternative<Preempted>(*other.ended)) --preempted;
  }
  return std::max(preempted, 1);
}

std::string StepsText(const GenerationView& generation, const GenerationView& next) {
  if (!next.restored_step) return "";
  std::string text = Cat("restored step ", *next.restored_step);
  if (!generation.last_step) return text;
  std::int64_t repeated = std::max<std::int64_t>(*generation.last_step - *next.restored_step, 0);
  return Cat(text, ", had reached ", *generation.last_step, ": ", Count(repeated, "step"),
             " repeated");
}

// Which ranks of `next` have the process that a rank of `generation` had on the same node. Empty:
// processes of one of them are not known.
std::string KeptText(const GenerationView& generation, const GenerationView& next) {
  std::set<std::pair<NodeId, std::int64_t>> before;
  for (const MemberView& member : generation.members)
    for (const std::int64_t pid : member.pids)
      if (pid != 0) before.emplace(member.node, pid);
  std::vector<int> kept;
  bool known = false;
  for (const MemberView& member : next.members)
    for (std::size_t i = 0; i < std::min(member.ranks.size(), member.pids.size()); ++i) {
      known = known || member.pids[i] != 0;
      if (before.contains({member.node, member.pids[i]})) kept.push_back(member.ranks[i]);
    }
  if (before.empty() || !known) return "";
  if (kept.empty()) return "  no rank kept its process\n";
  return Cat("  ", RanksText(kept), " kept ",
             kept.size() == 1 ? "its process\n" : "their processes\n");
}

std::string WhyEnded(const JobView& job, const GenerationView& generation, int width) {
  ReasonContext context{job.id, generation.generation, job.spec.origin};
  std::string at = generation.ended_at ? Cat(" (", ClockText(*generation.ended_at), "Z)") : "";
  std::string out = Cat("Why generation ", generation.generation.value(), " ended", at, "\n");
  std::string sentence = Explain(*generation.ended, context).sentence;
  if (generation.charged) {
    sentence += Cat(" Charged ", ChargedUntil(job, generation), " of ", job.spec.max_restarts, ".");
  }
  if (job.spec.max_preemptions && std::holds_alternative<Preempted>(*generation.ended)) {
    sentence += Cat(" Preemption ", PreemptedUntil(job, generation), " of the ",
                    *job.spec.max_preemptions, " that --max-preemptions allows.");
  }
  out += Filled(sentence, width);
  for (const RankCause& other : generation.consequences) {
    out += Cat("  after it: rank ", other.rank, " on ", other.node, " ",
               ExitTextWithSender(other.exit), SaidAtExit(other.exit), "\n");
  }
  const GenerationView* next = Next(job, generation);
  if (next == nullptr) return out;
  if (next->phases.down > Duration::zero()) {
    out += Cat("  down ", ShortText(next->phases.down), "  ", PhaseBars(next->phases), "\n");
  }
  if (job.spec.keeps_ranks()) out += KeptText(generation, *next);
  std::string steps = StepsText(generation, *next);
  return steps.empty() ? out : Cat(out, "  ", steps, "\n");
}

std::string FirstFew(std::vector<std::string> nodes) {
  if (nodes.size() > kShownNodes) {
    const std::size_t others = nodes.size() - kShownNodes;
    nodes.resize(kShownNodes);
    nodes.push_back(Count(static_cast<long long>(others), "other"));
  }
  return JoinWords(nodes);
}

std::string PlacesText(const GenerationView& generation) {
  std::vector<std::string> places;
  for (const MemberView& member : generation.members) {
    std::string ranks = RanksText(member.ranks);
    places.push_back(Cat(member.name, " → ", ranks.substr(ranks.find(' ') + 1)));
  }
  return FirstFew(std::move(places));
}

std::string MovesText(const GenerationView& generation, const GenerationView* previous) {
  if (previous == nullptr) return "first generation: by name";
  if (previous->members.empty()) return "of the generation before no members are shown";
  std::map<NodeId, const MemberView*> before;
  for (const MemberView& member : previous->members) before[member.node] = &member;
  std::vector<std::string> moves;
  for (const MemberView& member : generation.members) {
    auto old = before.find(member.node);
    if (old == before.end()) {
      moves.push_back(Cat(member.name, " is new"));
    } else if (old->second->ranks != member.ranks) {
      moves.push_back(Cat(member.name, " was ", RanksText(old->second->ranks)));
    }
  }
  return moves.empty() ? "nobody moved" : FirstFew(std::move(moves));
}

// Of nodes that the job never had before; those that it had go first, without a choice.
std::string WhyTheseNodes(const GenerationView& generation, int width) {
  std::vector<std::string> free;
  for (const MemberView& member : generation.members) {
    if (member.free_slots == 0) continue;
    free.push_back(free.empty()
                       ? Cat(member.name, " had ", Count(member.free_slots, "slot"), " free")
                       : Cat(member.name, " ", member.free_slots));
  }
  if (free.empty()) return "";
  const std::string why = Cat(FirstFew(std::move(free)), ": most free slots first, then by name");
  const std::string line = Cat("Why these nodes   ", why);
  return DisplayWidth(line) <= width ? Cat(line, "\n")
                                     : Cat("Why these nodes\n", Filled(why, width));
}

// Of the nodes that could not prepare, the one that is asked again last.
std::string LeftOut(const JobView& job) {
  const auto last =
      std::max_element(job.left_out.begin(), job.left_out.end(),
                       [](const LeftOutView& a, const LeftOutView& b) { return a.left < b.left; });
  if (last == job.left_out.end()) return "";
  const std::size_t others = job.left_out.size() - 1;
  return Cat(last->name, " cannot prepare: ", EscapeControls(last->why), "; it is asked again",
             others > 0 ? Cat(", as ", Count(static_cast<long long>(others), "other")) : "");
}

std::string WhyNotMore(const JobView& job, int width) {
  if (IsOver(job) || job.nodes == 0 || job.nodes >= job.spec.max_nodes) return "";
  std::string bounds = FormatNnodes(job.spec.min_nodes, job.spec.max_nodes);
  std::string why = Cat("no other node ",
                        job.spec.origin == JobOrigin::kLaunched ? "has asked to join" : "is free",
                        " (--nnodes ", bounds, ")");
  if (const std::string left_out = LeftOut(job); !left_out.empty()) why = left_out;
  if (job.spec.scale_up == ScaleUp::kNever) why = "it was started with --scale-up never";
  const std::string question = Cat("Why not ", Count(job.nodes + 1, "node"));
  const std::string line = Cat(question, "   ", why);
  return DisplayWidth(line) <= width ? Cat(line, "\n") : Cat(question, "\n", Filled(why, width));
}

std::string TimeText(const TimeAccount& t, int width) {
  const std::pair<const char*, Duration> parts[] = {{"productive", t.productive},
                                                    {"checkpoint", t.checkpoint},
                                                    {"recompute", t.recompute},
                                                    {"restore", t.restore},
                                                    {"detect", t.detect},
                                                    {"regroup", t.regroup},
                                                    {"idle", t.idle}};
  Duration total{};
  std::vector<std::string> shown;
  for (const auto& [name, value] : parts) {
    total += value;
    if (value >= std::chrono::milliseconds(50)) shown.push_back(Cat(name, " ", SpanText(value)));
  }
  if (shown.empty()) return "";
  std::string line = Cat("Time ", AgeText(total), " = ", JoinWords(shown));
  if (DisplayWidth(line) <= width) return line + "\n";
  return Cat("Time ", AgeText(total), " =\n", Filled(JoinWords(shown), width));
}

// Of an amount of money whose name we do not know.
std::string AmountText(double amount) {
  if (amount > 0 && amount < 0.01) return "< 0.01";
  char text[400];  // As long as the largest double.
  std::snprintf(text, sizeof text, "%.2f", amount);
  return text;
}

std::string CostText(const JobView& job, int width) {
  if (!job.cost || !job.spec.price_per_node_hour) return "";
  const CostView& cost = *job.cost;
  char hours[400];
  std::snprintf(hours, sizeof hours, "%.2f", cost.node_hours);
  std::string line = Cat("Cost ", AmountText(cost.total), " = ", hours, " node hours at ",
                         AmountText(*job.spec.price_per_node_hour));
  std::string lost = Cat("lost to failures ", AmountText(cost.lost));
  if (cost.total > 0) lost += Cat(" (", PercentText(cost.lost / cost.total), ")");
  if (DisplayWidth(line) + 2 + DisplayWidth(lost) <= width) {
    line += Cat(", ", lost, "\n");
  } else {
    line += Cat(",\n", Filled(lost, width));
  }
  constexpr char kUnknown[] = "not reported by the worker";
  if (!cost.per_million_tokens && !cost.per_million_samples)
    return Cat(line, "  per million tokens or samples: ", kUnknown, "\n");
  auto text = [&](const std::optional<double>& amount) {
    return amount ? AmountText(*amount) : std::string(kUnknown);
  };
  return Cat(line, Filled(Cat("per million tokens ", text(cost.per_million_tokens),
                              ", per million samples ", text(cost.per_million_samples)),
                          width));
}

std::string HeaderOf(const JobView& job, const TextStyle& style) {
  Tone tone = job.state == "failed"      ? Tone::kBad
              : job.state == "succeeded" ? Tone::kGood
                                         : Tone::kPlain;
  std::string out = Cat(job.id.value(), " ", Painted(style, tone, job.state));
  if (job.generation.value() > 0) out += Cat(" · generation ", job.generation.value());
  if (job.world > 0) out += Cat(", world ", job.world);
  if (IsOver(job) && job.ran_for) out += Cat(" · ", SpanText(*job.ran_for));
  if (job.state == "failed") out += Cat(" · exit ", job.exit_code);
  if (std::optional<double> goodput = Goodput(job.time))
    out += Cat(" · goodput ", PercentText(*goodput));
  return out + "\n";
}

std::string NextStep(const JobView& job, const GenerationView* shown) {
  ReasonContext context{job.id, job.generation, job.spec.origin};
  if (shown != nullptr) {
    context.generation = shown->generation;
    return Explain(*shown->ended, context).next;
  }
  if (job.failed) return Explain(*job.failed, context).next;
  if (job.why) return Explain(*job.why, context).next;
  return Cat("regroup logs ", job.id.value());
}

}  // namespace

std::optional<double> Goodput(const TimeAccount& t) {
  Duration total =
      t.productive + t.checkpoint + t.detect + t.regroup + t.restore + t.recompute + t.idle;
  if (total <= Duration::zero()) return std::nullopt;
  return Seconds(t.productive) / Seconds(total);
}

std::string PhaseBars(const RestartPhases& phases) {
  constexpr double kBar = 10;
  std::vector<std::string> ours, workers, unknown;
  for (const NamedPhase& phase : OurPhases(phases)) {
    if (!phase.value) {
      unknown.push_back(phase.name);
      continue;
    }
    double share =
        phases.down > Duration::zero() ? Seconds(*phase.value) / Seconds(phases.down) : 0;
    auto bar = static_cast<std::size_t>(std::clamp(std::lround(share * kBar), 0L, 10L));
    ours.push_back(
        Cat(phase.name, " ", PhaseText(*phase.value), bar > 0 ? " " : "", std::string(bar, '#')));
  }
  for (const NamedPhase& phase : WorkersPhases(phases)) {
    if (phase.value) {
      workers.push_back(Cat(phase.name, " ", PhaseText(*phase.value)));
    } else {
      unknown.push_back(phase.name);
    }
  }
  std::string out = JoinWords(ours, " | ");
  if (!workers.empty()) out += Cat("\n  then ", JoinWords(workers, " | "));
  if (!unknown.empty()) out += Cat("\n  not reported by the worker: ", JoinWords(unknown));
  return out;
}

std::string RenderExplain(const JobView& job, std::optional<Generation> only,
                          const TextStyle& style, const std::vector<std::string>& output) {
  int width = std::min(style.width, 80);
  std::string out = HeaderOf(job, style);
  ReasonContext context{job.id, job.generation, job.spec.origin};
  if (job.why && !IsOver(job))
    out += Cat("\nWhy it waits\n", Filled(Explain(*job.why, context).sentence, width));
  if (job.failed)
    out += Cat("\nWhy it ended\n", Filled(Explain(*job.failed, context).sentence, width));
  if (!output.empty()) out += "\nOutput that could not be shown\n";
  for (const std::string& line : output) out += Filled(EscapeControls(line), width);
  std::vector<const GenerationView*> ended;
  for (const GenerationView& generation : job.generations) {
    bool asked = !only || generation.generation == *only;
    if (generation.ended && asked) ended.push_back(&generation);
  }
  if (ended.size() > kShownGenerations) {
    std::size_t left_out = ended.size() - kShownGenerations;
    ended.erase(ended.begin(), ended.begin() + static_cast<std::ptrdiff_t>(left_out));
    out += Cat("\n", Count(static_cast<long long>(left_out), "generation"),
               " before that: --generation G shows one\n");
  }
  for (const GenerationView* generation : ended)
    out += Cat("\n", WhyEnded(job, *generation, width));
  const GenerationView* last = Last(job);
  if (only) {
    for (const GenerationView& generation : job.generations) {
      if (generation.generation == *only && generation.formed_at) last = &generation;
    }
  }
  if (!ended.empty() || last != nullptr) out += ended.empty() ? "\n" : "";
  if (last != nullptr && !last->members.empty()) {
    out += Cat("Why these ranks   ", PlacesText(*last), " (",
               MovesText(*last, Previous(job, *last)), ")\n", WhyTheseNodes(*last, width));
  }
  if (!only) out += Cat(WhyNotMore(job, width), TimeText(job.time, width), CostText(job, width));
  out += Cat("Next  ", NextStep(job, ended.empty() ? nullptr : ended.back()), "\n");
  return ForCharset(style, out);
}

std::string RenderExplain(const NodeView& node, const TextStyle& style) {
  std::vector<std::string> jobs;
  for (const JobId& job : node.jobs) jobs.push_back(job.value());
  std::string out = Cat(node.name, " ", node.state, " · ", node.address, " · ", node.slots_used,
                        " of ", Count(node.slots, node.gpu_slots ? "GPU slot" : "slot"),
                        " used · heard ", AgeText(node.seen), " ago\n");
  if (!node.note.empty()) out += Cat("  ", EscapeControls(node.note), "\n");
  if (node.coordinator_host) out += "  the coordinator runs here\n";
  if (node.warm_bytes > 0)
    out += Cat("  what warm ranks are forked from takes ", FormatBytes(node.warm_bytes), "\n");
  if (!jobs.empty()) out += Cat("  works on ", JoinWords(jobs), "\n");
  out += Cat("  ",
             node.launched ? "launched by `regroup run`: it leaves with its command"
                           : "a service: it stays until it is stopped or forgotten",
             "\n");
  if (!node.gpus.empty()) out += Cat("\n", GpuTable(node.gpus, style), "\n");
  std::string next = node.state == "lost" ? Cat("regroup nodes forget ", node.name)
                     : jobs.empty()       ? std::string("regroup nodes")
                                          : Cat("regroup explain ", jobs.front());
  return ForCharset(style, Cat(out, "Next  ", next, "\n"));
}

}  // namespace regroup::cli
