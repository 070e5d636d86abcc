#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/report/format.h"
#include "launcher/cli/render/completion.h"
#include "launcher/cli/render/explain.h"
#include "launcher/cli/render/json.h"
#include "launcher/cli/render/lists.h"
#include "launcher/cli/render/log_text.h"
#include "launcher/cli/render/table.h"
#include "tests/common/report/golden.h"
#include "tests/launcher/cli/render/views.h"

namespace regroup::cli {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

void ExpectFits(const std::string& text, int width) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    EXPECT_LE(DisplayWidth(line), width) << line;
  }
}

TEST(Ps, TheScreenOfCliMd) {
  std::string text = RenderJobs({Train(), Gpt(), Eval()}, {});
  ExpectGolden("ps.txt", text);
  TextStyle terminal;
  terminal.terminal = true;
  ExpectFits(RenderJobs({Train(), Gpt(), Eval()}, terminal), 80);
}

TEST(Ps, NothingIsAHeader) { EXPECT_THAT(RenderJobs({}, {}), HasSubstr("JOB")); }

TEST(Ps, IdsAreNeverCutWhenPiped) {
  JobView job = Eval();
  job.id = JobId(std::string(63, 'x') + "-123456");
  EXPECT_THAT(RenderJobs({job}, {}), HasSubstr(job.id.value()));
  TextStyle terminal;
  terminal.terminal = true;
  EXPECT_THAT(RenderJobs({job, Train()}, terminal), HasSubstr(job.id.value()));
}

// A list as of a morning after: no steps, and reasons longer than any screen.
std::vector<JobView> Failures() {
  JobView failed = Train();
  failed.id = JobId("pretrain-llama-12");
  failed.state = "failed";
  failed.step.reset();
  failed.loss.reset();
  failed.ran_for = 41min;
  failed.started_at = At(114);
  failed.ended_at = At(114) + 41min;
  failed.failed = BudgetSpent{3, 3};
  failed.last_failure = RankCause{"node1", 1, 1, {}, At(114)};
  failed.last_failure->exit.code = 1;
  failed.last_failure->exit.error = "Traceback\nValueError: loss is NaN\n";
  JobView waits = Eval();
  waits.why = BelowMinimum{2, 4, 3min, {"node2", "node3"}};
  return {failed, waits};
}

TEST(Ps, At80AndAt60Columns) {
  TextStyle terminal;
  terminal.terminal = true;
  ExpectGolden("ps_80.txt", RenderJobs(Failures(), terminal));
  ExpectFits(RenderJobs(Failures(), terminal), 80);
  terminal.width = 60;
  ExpectGolden("ps_60.txt", RenderJobs(Failures(), terminal));
  ExpectFits(RenderJobs(Failures(), terminal), 60);
  terminal.width = 200;
  EXPECT_THAT(RenderJobs(Failures(), terminal), HasSubstr("STEP")) << "there is room";
}

// What is over has no age: it started, and took its time.
TEST(Ps, OfJobsThatAreOverTheStartAndWhatTheyTook) {
  JobView failed = Failures()[0], never = Eval();
  never.id = JobId("eval-3");
  never.state = "cancelled";
  never.why.reset();
  never.ended_at = At(0);
  never.ran_for = 3min;
  ExpectGolden("ps_over.txt", RenderJobs({Train(), failed, never}, {}));
  const std::string over = RenderJobs({failed}, {}), live = RenderJobs({Train()}, {});
  EXPECT_THAT(over, Not(HasSubstr("AGE")));
  EXPECT_THAT(live, HasSubstr("AGE"));
  EXPECT_THAT(live, Not(HasSubstr("TOOK")));
  const Json job = Json::parse(JobsDocument({failed}))["jobs"][0];
  EXPECT_EQ(job["started_at"], Rfc3339(*failed.started_at));
  EXPECT_EQ(job["ended_at"], Rfc3339(*failed.ended_at));
  EXPECT_FALSE(Json::parse(JobsDocument({never}))["jobs"][0].contains("started_at"));
}

TEST(Ps, AsciiForLangC) {
  TextStyle ascii;
  ascii.utf8 = false;
  for (unsigned char c : RenderJobs({Eval()}, ascii)) {
    EXPECT_LT(c, 128);
  }
}

TEST(Ps, NamesCanNotMoveTheCursor) {
  JobView job = Eval();
  job.why = AwaitReattach{{"\x1b[2Jnode"}, 1s};
  EXPECT_THAT(RenderJobs({job}, {}), Not(HasSubstr("\x1b")));
}

TEST(NodesTable, TheScreenOfCliMd) {
  std::string text = RenderNodes(Nodes(), {});
  ExpectGolden("nodes.txt", text);
  ExpectFits(text, 80);
}

TEST(NodesTable, At60Columns) {
  TextStyle terminal;
  terminal.terminal = true;
  terminal.width = 60;
  ExpectGolden("nodes_60.txt", RenderNodes(Nodes(), terminal));
  ExpectFits(RenderNodes(Nodes(), terminal), 60);
}

TEST(NodesTable, WhatWarmRanksAreForkedFromIsShown) {
  NodeView node = Nodes().front();
  EXPECT_THAT(RenderNodes({node}, {}), Not(HasSubstr("warm")));
  EXPECT_EQ(Json::parse(NodesDocument({node}, {}))["nodes"][0]["warm_bytes"], 0);
  node.warm_bytes = 412 << 20;
  EXPECT_THAT(RenderNodes({node}, {}), HasSubstr("warm 412.0 MiB\n"));
  EXPECT_THAT(RenderExplain(node, {}), HasSubstr("warm ranks are forked from takes 412.0 MiB\n"));
  EXPECT_EQ(Json::parse(NodesDocument({node}, {}))["nodes"][0]["warm_bytes"], 412 << 20);
}

Gpu GpuOf(std::string id, int celsius) {
  Gpu gpu;
  gpu.id = std::move(id);
  gpu.uuid = "GPU-" + gpu.id;
  gpu.name = "NVIDIA H100";
  gpu.memory_bytes = 80ull << 30;
  gpu.used_bytes = 1ull << 30;
  gpu.celsius = celsius;
  gpu.ecc_errors = 0;
  return gpu;
}

TEST(NodesTable, GpusAreShown) {
  NodeView node = Nodes().front();
  EXPECT_THAT(RenderNodes({node}, {}), Not(HasSubstr("GPU")));
  EXPECT_TRUE(Json::parse(NodesDocument({node}, {}))["nodes"][0]["gpus"].empty());
  EXPECT_EQ(Json::parse(NodesDocument({node}, {}))["nodes"][0]["gpu_slots"], false);
  node.gpu_slots = true;
  EXPECT_EQ(Json::parse(NodesDocument({node}, {}))["nodes"][0]["gpu_slots"], true);
  EXPECT_THAT(RenderExplain(node, {}), HasSubstr(" GPU slot"));
  node.gpus = {GpuOf("0", 41), GpuOf("1", 38)};
  EXPECT_THAT(RenderNodes({node}, {}),
              HasSubstr("2 × NVIDIA H100, 2.0 GiB of 160.0 GiB used, 38–41 °C\n"));
  EXPECT_THAT(RenderExplain(node, {}),
              HasSubstr("GPU  NAME            USED    MEMORY  °C  ECC  TROUBLE\n"
                        "0    NVIDIA H100  1.0 GiB  80.0 GiB  41    0  –\n"));
  const Json shown = Json::parse(NodesDocument({node}, {}))["nodes"][0]["gpus"][1];
  EXPECT_EQ(shown, Json({{"gpu", "1"},
                         {"uuid", "GPU-1"},
                         {"name", "NVIDIA H100"},
                         {"memory_bytes", 80ull << 30},
                         {"used_bytes", 1ull << 30},
                         {"xids", 0},
                         {"celsius", 38},
                         {"ecc_errors", 0}}));
}

// What fails comes first; what a driver does not say is left out.
TEST(NodesTable, GpusThatFailAreShown) {
  NodeView node = Nodes().front();
  node.gpus = {GpuOf("0", 41), GpuOf("1", 41), Gpu{}};
  node.gpus[0].xids = 2;
  node.gpus[0].last_xid = 79;
  node.gpus[1].xids = 1;
  node.gpus[1].last_xid = 48;
  node.gpus[2].id = "2";
  node.gpus[2].trouble = "GPU is lost";
  EXPECT_THAT(RenderNodes({node}, {}),
              HasSubstr("GPU 0: 2 Xids, the last 79, GPU 1: 1 Xid, 48, GPU 2: GPU is lost, 3 × "
                        "NVIDIA H100, 2.0 GiB of 160.0 GiB used, 41 °C\n"));
  EXPECT_THAT(RenderExplain(node, {}),
              HasSubstr("2    –                  –         –   –    –  GPU is lost\n"));
  const Json shown = Json::parse(NodesDocument({node}, {}))["nodes"][0]["gpus"];
  EXPECT_EQ(shown[0]["last_xid"], 79);
  EXPECT_EQ(shown[2]["trouble"], "GPU is lost");
  EXPECT_FALSE(shown[2].contains("celsius"));
}

TEST(NodesTable, SortedAndEachNameOnceUnlessSeveralLive) {
  std::vector<NodeView> nodes;
  auto add = [&nodes](const char* name, const char* state, Duration seen) {
    NodeView node = Nodes().front();
    node.name = name;
    node.state = state;
    node.seen = seen;
    nodes.push_back(node);
  };
  add("node10", "ready", 1s);
  add("node2", "lost", 60s);
  add("node2", "ready", 1s);
  add("b", "lost", 60s);
  add("node2", "ready", 2s);
  add("b", "lost", 30s);
  add("c", "left", 50s);
  add("c", "ready", 60s);
  std::string shown;
  for (const NodeView& node : OncePerName(nodes))
    shown += node.name + " " + node.state + " " + std::to_string(node.seen / 1s) + "\n";
  EXPECT_EQ(shown, "b lost 30\nc ready 60\nnode2 ready 1\nnode2 ready 2\nnode10 ready 1\n");
}

TEST(ExplainScreen, WhatCouldNotBeShownIsTold) {
  const std::vector<std::string> notes = {"node0: stdout could not be written: x"};
  EXPECT_THAT(RenderExplain(Train(), std::nullopt, {}, notes),
              HasSubstr("\nOutput that could not be shown\n  node0: stdout could not be written"));
  EXPECT_THAT(ExplainDocument(Train(), notes), HasSubstr("output_not_shown"));
  EXPECT_THAT(ExplainDocument(Train()), Not(HasSubstr("output_not_shown")));
}

TEST(ExplainScreen, TheScreenOfCliMd) {
  std::string text = RenderExplain(Train(), std::nullopt, {});
  ExpectGolden("explain.txt", text);
  ExpectFits(text, 90);
}

TEST(ExplainScreen, UnknownPhasesAreSaidNeverZero) {
  JobView job = Train();
  RestartPhases& phases = job.generations[1].phases;
  phases.init.reset();
  phases.restore.reset();
  phases.first_step.reset();
  std::string text = RenderExplain(job, std::nullopt, {});
  EXPECT_THAT(text, HasSubstr("not reported by the worker: init, restore, first step"));
  EXPECT_THAT(text, Not(HasSubstr("restore .000")));
}

TEST(ExplainScreen, RanksThatKeptTheirProcessAreNamed) {
  JobView job = Train();
  const auto explained = [&job] { return RenderExplain(job, std::nullopt, {}); };
  job.generations[0].members[0].pids = {11, 12};
  job.generations[0].members[1].pids = {21, 22};
  job.generations[1].members[0].pids = {11, 13};
  job.generations[1].members[1].pids = {21, 12};  // The other node's.
  EXPECT_THAT(explained(), Not(HasSubstr("kept")));
  job.spec.in_place = true;
  EXPECT_THAT(explained(), HasSubstr("\n  ranks 0 2 kept their processes\n"));
  job.generations[1].members[0].pids = {14, 13};
  EXPECT_THAT(explained(), HasSubstr("\n  rank 2 kept its process\n"));
  job.generations[1].members[1].pids = {23, 24};
  EXPECT_THAT(explained(), HasSubstr("\n  no rank kept its process\n"));
  job.generations[1].members[0].pids = job.generations[1].members[1].pids = {0, 0};
  EXPECT_THAT(explained(), Not(HasSubstr("kept")));
}

// Its first generation is the second preemption, the last one is too many.
TEST(ExplainScreen, PreemptionsAreCounted) {
  JobView job = Train();
  job.preemptions = 3;
  job.generations.front().ended = Preempted{"node1", true};
  job.generations.front().charged = false;
  job.generations.back().ended = Preempted{"node0", false};
  EXPECT_THAT(RenderExplain(job, std::nullopt, {}, {}), Not(HasSubstr("Preemption")));
  job.spec.max_preemptions = 2;
  job.state = "failed";
  job.exit_code = 143;
  job.failed = PreemptionsSpent{2, 2};
  const std::string text = RenderExplain(job, std::nullopt, {}, {});
  EXPECT_THAT(text, HasSubstr("exit 143"));
  EXPECT_THAT(text, HasSubstr("--max-preemptions 2 allows"));
  EXPECT_THAT(text, HasSubstr("Preemption 2 of the 2"));
  EXPECT_THAT(text, HasSubstr("Preemption 3 of the 2"));
  EXPECT_THAT(RenderJobs({job}, {}), HasSubstr("2 of 2 preemptions used"));
  job.spec.warm = {{"torch"}};
  const Json document = Json::parse(JobsDocument({job}))["jobs"][0];
  EXPECT_EQ(document["warm"], Json({"torch"}));
  EXPECT_EQ(document["preemptions"], 3);
  EXPECT_EQ(document["max_preemptions"], 2);
  EXPECT_EQ(document["failed"]["kind"], "preemptions_spent");
}

TEST(ExplainScreen, WhoWasLeftOutAndWhy) {
  JobView job = Train();
  const auto explained = [&job] { return RenderExplain(job, std::nullopt, {}); };
  EXPECT_THAT(explained(), HasSubstr("no other node has asked to join"));
  job.left_out = {{NodeId("n2"), "node2", "its node check exited with 3: no GPU", 4s}};
  EXPECT_THAT(explained(),
              HasSubstr("Why not 3 nodes\n  node2 cannot prepare: its node check exited "
                        "with 3: no GPU; it is asked again\n"));
  job.left_out.push_back({NodeId("n3"), "node3", "its disk is full", 5s});
  EXPECT_THAT(explained(),
              HasSubstr("node3 cannot prepare: its disk is full; it is asked again, as 1 other\n"));
  EXPECT_THAT(ExplainDocument(job), HasSubstr("\"asked_again_in_s\":4.0"));
}

TEST(ExplainScreen, WhyTheseNodes) {
  JobView job = Train();
  const auto explained = [&job] { return RenderExplain(job, std::nullopt, {}); };
  EXPECT_THAT(explained(), Not(HasSubstr("Why these nodes")));
  job.generations.back().members[1].free_slots = 1;
  EXPECT_THAT(explained(), HasSubstr("\nWhy these nodes   node1 had 1 slot free: most free slots "
                                     "first, then by name\n"));
  job.generations.back().members[0].free_slots = 8;
  EXPECT_THAT(explained(), HasSubstr("\nWhy these nodes\n  node0 had 8 slots free, node1 1: most "
                                     "free slots first, then by name\n"));
  ExpectFits(explained(), 90);
  EXPECT_THAT(ExplainDocument(job), HasSubstr("\"free_slots_when_chosen\":8"));
  job.generations.back().members.resize(1'000, job.generations.back().members[0]);
  EXPECT_THAT(explained(), HasSubstr("node0 8, 992 others: most"));
}

// Of a thousand nodes the first few are named; the oldest generations of many come without theirs.
TEST(ExplainScreen, ManyNodes) {
  JobView job = Train();
  const MemberView member = job.generations.back().members[0];
  job.generations.back().members.resize(1'000, member);
  EXPECT_THAT(RenderExplain(job, std::nullopt, {}), HasSubstr(", 992 others ("));
  for (GenerationView& generation : job.generations)
    if (generation.generation < job.generations.back().generation) generation.members.clear();
  EXPECT_THAT(RenderExplain(job, std::nullopt, {}),
              HasSubstr("(of the generation before no members are shown)"));
}

TEST(ExplainScreen, Cost) {
  JobView job = Train();
  job.spec.price_per_node_hour = 3.5;
  job.cost = CostView{4.468, 15.638, 0.126, 3.4, 0.0021};
  std::string text = RenderExplain(job, std::nullopt, {});
  ExpectGolden("explain_cost.txt", text);
  ExpectFits(text, 90);
  EXPECT_THAT(text, HasSubstr("per million tokens < 0.01, per million samples 3.40"));
  job.cost->per_million_tokens.reset();
  EXPECT_THAT(RenderExplain(job, std::nullopt, {}),
              HasSubstr("per million tokens not reported by the worker, per million samples 3.40"));
  job.cost->per_million_samples.reset();
  EXPECT_THAT(RenderExplain(job, std::nullopt, {}),
              HasSubstr("per million tokens or samples: not reported by the worker"));
  job.cost = CostView{};  // Nothing was held yet.
  EXPECT_THAT(RenderExplain(job, std::nullopt, {}),
              HasSubstr("Cost 0.00 = 0.00 node hours at 3.50, lost to failures 0.00\n"));
  job.cost = CostView{1e12, 1e21, 1e21, {}, {}};
  ExpectFits(RenderExplain(job, std::nullopt, {}), 90);
  EXPECT_THAT(RenderExplain(Train(), std::nullopt, {}), Not(HasSubstr("Cost")));
}

TEST(JsonDocuments, Cost) {
  JobView job = Train();
  EXPECT_FALSE(Json::parse(JobsDocument({job}))["jobs"][0].contains("cost"));
  job.spec.price_per_node_hour = 3.5;
  job.cost = CostView{4, 14, 0.5, {}, 0.25};
  const Json expected = {{"price_per_node_hour", 3.5},
                         {"node_hours", 4.0},
                         {"total", 14.0},
                         {"lost_to_failures", 0.5},
                         {"per_million_tokens", 0.25}};  // Unknown is absent.
  EXPECT_EQ(Json::parse(JobsDocument({job}))["jobs"][0]["cost"], expected);
  EXPECT_EQ(Json::parse(ExplainDocument(job))["cost"], expected);
}

TEST(ExplainScreen, QueuedFailedAndNode) {
  EXPECT_EQ(RenderExplain(Eval(), std::nullopt, {}),
            "eval-2 queued\n\nWhy it waits\n  It needs 4 nodes and 2 are free, for 3m.\nNext  "
            "regroup nodes\n");
  JobView job = Train();
  job.state = "failed";
  job.exit_code = 137;
  job.ran_for = 14min;
  job.failed = BudgetSpent{3, 3};
  EXPECT_THAT(RenderExplain(job, std::nullopt, {}),
              HasSubstr("Why it ended\n  It failed again after its 3 restarts."));
  EXPECT_EQ(
      RenderExplain(Nodes()[1], {}),
      "node1 suspect · 10.0.0.5 · 2 of 2 slots used · heard 3.1s ago\n  lost in 1.9 s unless it "
      "reports\n"
      "  works on train-4\n  launched by `regroup run`: it leaves with its command\nNext  "
      "regroup explain train-4\n");
}

TEST(ExplainScreen, OneGeneration) {
  std::string text = RenderExplain(Train(), Generation(1), {});
  EXPECT_THAT(text, HasSubstr("Why generation 1 ended"));
  EXPECT_THAT(text, Not(HasSubstr("Time ")));
  EXPECT_THAT(RenderExplain(Train(), Generation(2), {}), Not(HasSubstr("Why generation 1 ended")));
}

TEST(ExplainScreen, ManyGenerationsShowTheLast) {
  JobView job = Train();
  GenerationView first = job.generations[0];
  for (std::uint64_t g = 3; g < 20; ++g) {
    first.generation = Generation(g);
    job.generations.push_back(first);
  }
  std::string text = RenderExplain(job, std::nullopt, {});
  EXPECT_THAT(text, HasSubstr("13 generations before that"));
  EXPECT_THAT(text, HasSubstr("Why generation 19 ended"));
}

TEST(JsonDocuments, AreOneObjectWithASchema) {
  for (const std::string& text :
       {JobsDocument({Train(), Eval()}), NodesDocument(Nodes(), {}), ExplainDocument(Train())}) {
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
    Json json = Json::parse(text);
    EXPECT_THAT(json["schema"].get<std::string>(), HasSubstr("regroup."));
  }
  ExpectGolden("explain.json", Json::parse(ExplainDocument(Train())).dump(2) + "\n");
  Json eval = Json::parse(JobsDocument({Eval()}))["jobs"][0];
  EXPECT_EQ(eval["why"]["kind"], "below_minimum");
  EXPECT_FALSE(eval.contains("step"));  // Unknown is absent.
  EXPECT_EQ(eval["age_s"], 180.0);
  Json coordinator =
      Json::parse(NodesDocument({}, {{"10.0.0.1:29400", {21, 100, 7}}}))["coordinators"][0];
  EXPECT_EQ(coordinator, Json({{"coordinator", "10.0.0.1:29400"},
                               {"memory_bytes", 21},
                               {"memory_limit_bytes", 100},
                               {"refused_connections", 7}}));
}

TEST(JsonDocuments, BytesThatAreNoTextDoNotBreakThem) {
  JobView job = Train();
  std::get<WorkerFailed>(*job.generations[0].ended).cause.exit.error = "\xff\xfe\x1b[2J";
  EXPECT_TRUE(Json::accept(ExplainDocument(job)));
}

LogEntry Entry(std::int64_t ms, const std::string& text, int rank = 0) {
  return {At(ms), "node0", Generation(1), rank, false, text, false};
}

TEST(LogText, TheScreenOfCliMd) {
  JobView job = Train();
  LogMerge merge(job, LogForm::kText, {});
  merge.Add(Entry(1992, "resumed from step 8096"));
  merge.Add(Entry(-197, "step 8107 loss 2.414"));
  for (const JobEvent& event : job.events) merge.Add(event);
  EXPECT_EQ(merge.Take(std::nullopt),
            "14:09:29.803 node0:0  step 8107 loss 2.414\n"
            "-- generation 1 ended 14:09:30.114: node1 rank 3 SIGKILL -- generation 2, world 4 --\n"
            "14:09:31.992 node0:0  resumed from step 8096\n");
  EXPECT_EQ(merge.held_bytes(), 0u);
}

TEST(LogText, EqualTimesKeepTheirOrder) {
  LogMerge merge(Train(), LogForm::kRaw, {});
  for (int i = 0; i < 100; ++i) merge.Add(Entry(5, std::to_string(i)));
  std::string expected;
  for (int i = 0; i < 100; ++i) expected += std::to_string(i) + "\n";
  EXPECT_EQ(merge.Take(std::nullopt), expected);
}

TEST(LogText, FollowedLinesWaitOneRound) {
  LogMerge merge(Train(), LogForm::kRaw, {});
  merge.Add(Entry(2, "late rank"));
  EXPECT_EQ(merge.TakeSettled(), "");
  merge.Add(Entry(1, "early rank"));  // Of another node, whose clock is behind.
  EXPECT_EQ(merge.TakeSettled(), "late rank\n");
  EXPECT_EQ(merge.TakeSettled(), "early rank\n");
}

TEST(LogText, RawIsTheBytesAndTerminalsAreSafe) {
  LogEntry entry = Entry(0, std::string("a\x1b[2J\0b\xff", 8));
  TextStyle terminal;
  terminal.terminal = true;
  EXPECT_EQ(RenderEntry(entry, LogForm::kRaw, terminal), entry.text + "\n");
  EXPECT_EQ(RenderEntry(entry, LogForm::kText, {}), "14:09:30.000 node0:0  " + entry.text + "\n");
  EXPECT_EQ(RenderEntry(entry, LogForm::kText, terminal),
            "14:09:30.000 node0:0  a\\x1b[2J\\x00b\\xff\n");
  EXPECT_EQ(Json::parse(RenderEntry(entry, LogForm::kJson, {}))["rank"], 0);
}

// What a worker writes may colour its own line on a terminal, and nothing else.
TEST(LogText, OnATerminal) {
  struct Row {
    const char* name;
    std::string text, colour, plain;
  };
  const Row rows[] = {
      {"tqdm", " 10%|#  |\r 55%|## |\r100%|###|", "100%|###|", "100%|###|"},
      {"tqdm, unfinished", " 10%|#  |\r 55%|## |\r", " 55%|## |", " 55%|## |"},
      {"erased and written again", "10%\x1b[2K\r\x1b[K55%", "55%", "55%"},
      {"lines of another system", "text\r", "text", "text"},
      {"only returns", "\r\r", "", ""},
      {"colour", "\x1b[1;31mred\x1b[0m \x1b[38:5:9mx", "\x1b[1;31mred\x1b[0m \x1b[38:5:9mx\x1b[0m",
       "red x"},
      {"clear and move", "a\x1b[2J\x1b[1;1Hb", "a\\x1b[2J\\x1b[1;1Hb", "a\\x1b[2J\\x1b[1;1Hb"},
      {"title", "\x1b]0;t\x07", "\\x1b]0;t\\x07", "\\x1b]0;t\\x07"},
      {"a colour with something else in it", "\x1b[31\x1b[2Jm", "\\x1b[31\\x1b[2Jm",
       "\\x1b[31\\x1b[2Jm"},
      {"never ended", "\x1b[31", "\\x1b[31", "\\x1b[31"},
      {"private modes", "\x1b[?1049h\x1b[>4;2m", "\\x1b[?1049h\\x1b[>4;2m",
       "\\x1b[?1049h\\x1b[>4;2m"},
      {"too long for a colour", "\x1b[" + std::string(100, '1') + "m",
       "\\x1b[" + std::string(100, '1') + "m", "\\x1b[" + std::string(100, '1') + "m"},
      {"C1, NUL, DEL, tab",
       std::string("\xc2\x9b"
                   "2J\0\x7f\t.",
                   8),
       "\\xc2\\x9b"
       "2J\\x00\\x7f\t.",
       "\\xc2\\x9b"
       "2J\\x00\\x7f\t."},
      {"half a character", "gr\xc3", "gr\\xc3", "gr\\xc3"},
      {"a whole one", "grün", "grün", "grün"}};
  TextStyle plain, colour;
  plain.terminal = colour.terminal = colour.color = true;
  for (const Row& row : rows) {
    const std::string shown = RenderEntry(Entry(0, row.text), LogForm::kText, colour);
    EXPECT_EQ(shown.substr(shown.find("node0:0") + 13), row.colour + "\n") << row.name;
    EXPECT_EQ(RenderEntry(Entry(0, row.text), LogForm::kText, plain),
              "14:09:30.000 node0:0  " + row.plain + "\n")
        << row.name;
    EXPECT_EQ(RenderEntry(Entry(0, row.text), LogForm::kText, {}),
              "14:09:30.000 node0:0  " + row.text + "\n")
        << row.name;
    EXPECT_EQ(RenderEntry(Entry(0, row.text), LogForm::kRaw, colour), row.text + "\n") << row.name;
    const std::string json = RenderEntry(Entry(0, row.text), LogForm::kJson, colour);
    EXPECT_TRUE(std::all_of(json.begin(), json.end() - 1, [](char c) {
      return c >= ' ' && c < 127;
    })) << json;
    EXPECT_TRUE(Json::accept(json)) << json;
  }
}

TEST(LogText, ALongLineIsWholeWhenRaw) {
  LogEntry first = Entry(0, "abc"), rest = Entry(0, "def");
  first.cut = true;
  LogMerge raw(Train(), LogForm::kRaw, {}), text(Train(), LogForm::kText, {});
  for (LogMerge* merge : {&raw, &text}) {
    merge->Add(Entry(1, "later", 1));
    merge->Add(first);
    merge->Add(rest);
  }
  EXPECT_EQ(raw.Take(std::nullopt), "abcdef\nlater\n");
  EXPECT_EQ(text.Take(std::nullopt),
            "14:09:30.000 node0:0  abc\n14:09:30.000 node0:0  def\n14:09:30.001 node0:1  later\n");
  EXPECT_EQ(Json::parse(RenderEntry(first, LogForm::kJson, {}))["cut"], true);
}

TEST(TableTest, NarrowTerminalsCutTheLastColumnFirst) {
  Table table({{.title = "A", .right = false, .id = true}, {.title = "WHY"}});
  table.Add({"some-long-id-of-a-job", "because of something that takes many words to say"});
  TextStyle terminal;
  terminal.terminal = true;
  terminal.width = 40;
  std::string text = table.Render(terminal);
  EXPECT_THAT(text, HasSubstr("some-long-id-of-a-job  because of somet"));
  ExpectFits(text, 40);
  terminal.width = 10;
  (void)table.Render(terminal);  // Too narrow for anything: no crash, ids last.
  EXPECT_EQ(Cut("grüße", 4), "grü…");
  EXPECT_EQ(Cut("abc", 3), "abc");
}

TEST(CompletionScript, NamesEveryCommandAndFlag) {
  CommandDescription logs{.name = "logs", .summary = "it's output"};
  logs.flags.push_back({{"-f", "--follow"}, "", "go on [until: end]", "REGROUP_LOGS_FOLLOW", ""});
  logs.flags.push_back({{"--warm"}, "[=MODULES]", "modules", "REGROUP_WARM", ""});
  logs.flags.push_back({{"--tail"}, "N", "last lines", "REGROUP_LOGS_TAIL", ""});
  for (const char* shell : {"bash", "zsh", "fish"}) {
    std::string text = RenderCompletion(shell, {logs});
    EXPECT_THAT(text, HasSubstr("logs")) << shell;
    EXPECT_THAT(text, HasSubstr("tail")) << shell;
    EXPECT_THAT(text, HasSubstr("warm")) << shell;
    EXPECT_THAT(text,
                ::testing::AnyOf(HasSubstr("__complete jobs"), HasSubstr("_regroup_live jobs")))
        << shell;
  }
  // The word behind it is no value of it.
  EXPECT_THAT(RenderCompletion("bash", {logs}), HasSubstr("values=\" --tail \""));
  EXPECT_THAT(RenderCompletion("zsh", {logs}), HasSubstr("'*--warm[modules]'"));
  EXPECT_THAT(RenderCompletion("fish", {logs}), HasSubstr("-l warm -d 'modules'"));
}

}  // namespace
}  // namespace regroup::cli
