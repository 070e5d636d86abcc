// What `regroup-worker plan` says, without a process.

#include "worker/train/plan_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace regroup::worker {
namespace {

using Json = nlohmann::json;

constexpr char kSmall[] = "--layers 4 --width 64 --heads 4 --context 32 --batch 12 ";

std::string Said(const std::string& flags) {
  const std::vector<std::string> words = absl::StrSplit(flags, ' ', absl::SkipEmpty());
  const absl::StatusOr<std::optional<PlanConfig>> config = ReadPlanConfig(words);
  EXPECT_TRUE(config.ok()) << config.status();
  if (!config.ok()) return "{}";
  const absl::StatusOr<std::string> report = PlanReport(**config);
  EXPECT_TRUE(report.ok()) << report.status();
  return report.value_or("{}");
}
Json SaidAsJson(const std::string& flags) { return Json::parse(Said(flags + " --json")); }

double Real(const Json& tree) { return tree.get<double>(); }
std::int64_t Whole(const Json& tree) { return tree.get<std::int64_t>(); }

// The same cells as in estimate_test, of a GPT as the planner lays it out.
TEST(PlanReport, ModelStatesOfAGptAreThoseOfZerosPaper) {
  struct Row {
    int world;
    double gigabytes[3];  // Of zero-1, zero-2 and zero-3, as printed.
    double error[3];      // Half of the last digit that is printed.
  };
  const Row rows[] = {{1, {120, 120, 120}, {0.5, 0.5, 0.5}},
                      {4, {52.5, 41.3, 30}, {0.05, 0.051, 0.5}},
                      {16, {35.6, 21.6, 7.5}, {0.05, 0.05, 0.05}},
                      {64, {31.4, 16.6, 1.88}, {0.05, 0.05, 0.006}},
                      {256, {30.4, 15.4, 0.47}, {0.05, 0.05, 0.005}},
                      {1024, {30.1, 15.1, 0.12}, {0.05, 0.05, 0.005}}};
  for (const Row& row : rows) {
    const Json tree =
        SaidAsJson(absl::StrCat("--layers 36 --width 4096 --heads 32 --context 1024 --vocabulary "
                                "60089 --world ",
                                row.world));
    EXPECT_NEAR(Real(tree["parameters"]), 7.5e9, 1e4);
    EXPECT_NEAR(Real(tree["strategies"][0]["zero_paper_bytes"]) / 1e9, 120, 0.5);
    for (std::size_t stage = 1; stage <= 3; ++stage) {
      EXPECT_NEAR(Real(tree["strategies"][stage]["zero_paper_bytes"]) / 1e9,
                  row.gigabytes[stage - 1], row.error[stage - 1])
          << "stage " << stage << " on " << row.world;
    }
  }
}

TEST(PlanReport, ModelStatesOfAGptOf7BillionAreThosePublished) {
  const auto gigabytes = [](int world, std::size_t stage) {
    const Json tree =
        SaidAsJson(absl::StrCat("--layers 34 --width 4096 --heads 32 --context 1024 --vocabulary "
                                "36348 --world ",
                                world));
    EXPECT_NEAR(Real(tree["parameters"]), 7e9, 1e4);
    return std::round(Real(tree["strategies"][stage]["zero_paper_bytes"]) / 1e9);
  };
  EXPECT_EQ(gigabytes(4, 0), 112);
  EXPECT_EQ(gigabytes(2, 1), 70);
  EXPECT_EQ(gigabytes(4, 1), 49);
  EXPECT_EQ(gigabytes(4, 3), 28);
}

TEST(PlanReport, NamesTheFormulasOfGpt2AndChinchilla) {
  const std::string gpt2 =
      "--layers 12 --width 768 --heads 12 --context 1024 --vocabulary 50304 --batch 512 ";
  const Json tree = SaidAsJson(gpt2 + "--steps 10000");
  EXPECT_NEAR(Real(tree["flops_per_token"]), 803.5e6, 0.05e6);
  EXPECT_NEAR(Real(tree["full_flops_per_token"]), 860e6, 0.5e6);
  EXPECT_EQ(Real(tree["chinchilla"]["tokens"]), 20 * 124475904.0);
  EXPECT_EQ(Real(tree["chinchilla"]["steps"]), std::ceil(20 * 124475904.0 / (512 * 1024)));
  EXPECT_EQ(Real(tree["tokens"]), 10000.0 * 512 * 1024);
  const std::string text = Said(gpt2);
  for (const char* words :
       {"\n8.035e+08 floating-point operations per token, forward and backward, by 6N + 6LdT "
        "(llm.c",
        "\n8.601e+08 by 6N + 12LdT (PaLM", "Chinchilla: 20 tokens per parameter are 2.49e+09 "}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << text;
  }
}

TEST(PlanReport, NoPartOfAStepUsesMoreThanIsAllocated) {
  for (const char* flags :
       {"--world 3 ", "--world 3 --precision bf16 --recompute full ",
        "--world 3 --micro-batch 2 --precision f16 --recompute selective ",
        "--world 3 --reduce-type bf16 ", "--world 3 --precision bf16 --accumulate-type bf16 ",
        "--world 1 ", "--world 20 "}) {
    const Json tree = SaidAsJson(std::string(kSmall) + flags);
    for (const Json& strategy : tree["strategies"]) {
      for (const char* kind : {"weights", "gathered", "rounded", "gradients", "moments",
                               "activations", "snapshots", "rank"}) {
        const std::string bytes = absl::StrCat(kind, "_bytes");
        std::int64_t most = 0;
        for (const char* part : {"forward", "backward", "step"}) {
          most = std::max(most, Whole(strategy["in_use"][part][bytes]));
          EXPECT_LE(most, Whole(strategy[bytes])) << flags << strategy["strategy"] << part << kind;
        }
        // Gradients come with sums of their squares. What is rounded widens for products.
        if (kind != std::string("rank") && kind != std::string("gradients") &&
            kind != std::string("activations")) {
          EXPECT_EQ(most, Whole(strategy[bytes])) << flags << strategy["strategy"] << kind;
        }
      }
      EXPECT_EQ(strategy["in_use"]["step"]["activations_bytes"], 0);
    }
  }
}

// What ranks sum is half as large, and lies beside what it is of.
TEST(PlanReport, WhatIsExchangedInShortNumbersMovesHalf) {
  const Json floats = SaidAsJson(std::string(kSmall) + "--world 4 "),
             shorts = SaidAsJson(std::string(kSmall) + "--world 4 --reduce-type bf16 ");
  const Json &ddp = floats["strategies"][0], &short_ddp = shorts["strategies"][0];
  EXPECT_EQ(Whole(short_ddp["moved_bytes"]), Whole(ddp["moved_bytes"]) / 2);
  EXPECT_EQ(Whole(short_ddp["gradients_bytes"]), Whole(ddp["gradients_bytes"]) * 3 / 2);
  EXPECT_EQ(Whole(short_ddp["moments_bytes"]), Whole(ddp["moments_bytes"]));
  // Between hosts partial sums are floats, but for the number of one rank.
  for (const auto& [per_node, quarters] : {std::pair(1, 2), {2, 3}}) {
    const Json far = SaidAsJson(absl::StrCat(kSmall, "--world 4 --reduce-type bf16 ",
                                             "--nproc-per-node ", per_node))["strategies"][0];
    EXPECT_EQ(Whole(far["moved_bytes"]), Whole(ddp["moved_bytes"]) * quarters / 4) << per_node;
  }
}

// Half of the floats, and floats of what one backward writes: the head and, being tied, the
// embedding. Ranks exchange what they keep.
TEST(PlanReport, WhatIsAccumulatedInShortNumbersTakesHalf) {
  const std::string flags = std::string(kSmall) + "--world 4 --precision bf16 ";
  const Json floats = SaidAsJson(flags)["strategies"],
             shorts = SaidAsJson(flags + "--accumulate-type bf16 ")["strategies"],
             moved = SaidAsJson(flags + "--reduce-type bf16 ")["strategies"];
  const std::int64_t squares =
      Whole(floats[1]["gradients_bytes"]) - Whole(floats[0]["gradients_bytes"]);
  EXPECT_GT(squares, 0);
  const std::int64_t staged = 4 * ((256 + 32) * 64 + std::max(2 * 64, (12 * 64 + 13) * 64));
  for (const std::size_t s : {0u, 1u, 2u, 3u}) {
    const std::int64_t whole = Whole(floats[s]["gradients_bytes"]) - (s == 0 ? 0 : squares);
    EXPECT_LE(Whole(shorts[s]["gradients_bytes"]), whole / 2 + squares + staged) << s;
    EXPECT_EQ(shorts[s]["moved_bytes"], moved[s]["moved_bytes"]);
    EXPECT_EQ(shorts[s]["moments_bytes"], floats[s]["moments_bytes"]);
  }
}

// Each change that is told makes it fit, and one rank less does not.
TEST(PlanReport, WhatWouldFitDoesFit) {
  for (const std::string flags : {"--world 2 --memory 4MiB ", "--world 2 --memory 2MiB ",
                                  "--world 2 --memory 1900KiB ", "--world 2 --memory 1300KiB "}) {
    const Json advice = SaidAsJson(kSmall + flags)["suggested"];
    EXPECT_TRUE(advice["strategy"].is_null());
    EXPECT_EQ(advice["reason"].get<std::string>().rfind("nothing fits ", 0), 0u);
    EXPECT_FALSE(advice["would_fit"].empty()) << flags;
    for (const Json& change : advice["would_fit"]) {
      const std::string options = change["options"].get<std::string>();
      const auto with = [&](const std::string& others) {
        return SaidAsJson(
            absl::StrCat(kSmall, "--memory ", flags.substr(flags.rfind("--memory") + 9),
                         options.find("--world") == options.npos ? "--world 2 " : "", others));
      };
      const Json fits = with(options);
      const std::string strategy = fits["strategy"].get<std::string>();
      EXPECT_EQ(fits["suggested"]["strategy"], strategy) << options;
      const std::size_t at = options.find("--world ");
      if (at == std::string::npos) continue;
      const int world = std::stoi(options.substr(at + 8));
      const std::string fewer = options.substr(0, at) + "--world " + std::to_string(world - 1);
      EXPECT_TRUE(with(fewer)["suggested"]["strategy"].is_null()) << options;
    }
  }
  EXPECT_EQ(SaidAsJson(std::string(kSmall) +
                       "--world 2 --memory 1300KiB")["suggested"]["would_fit"][0]["idle_ranks"],
            20 - 12);
  EXPECT_NE(Said(std::string(kSmall) + "--memory 1KiB").find("a smaller --width"),
            std::string::npos);
}

// What a rank keeps is that of a world of one group; what it saves is less, as others save it too.
TEST(PlanReport, GroupsHoldCopies) {
  const std::string flags = std::string(kSmall) + "--strategy zero-3 --checkpoint-dir c ";
  const Json one = SaidAsJson(flags + "--world 4"),
             groups = SaidAsJson(flags + "--world 12 --shard-group 4 --batch 36");
  EXPECT_EQ(Whole(groups["shard_group"]), 4);
  for (std::size_t s = 1; s < 4; ++s) {
    const Json &small = one["strategies"][s], &large = groups["strategies"][s];
    for (const char* kind : {"weights_bytes", "moments_bytes", "gradients_bytes", "gathered_bytes"})
      EXPECT_EQ(large[kind], small[kind]) << kind << s;
    EXPECT_NEAR(Real(large["snapshots_bytes"]), Real(small["snapshots_bytes"]) / 3, 100);
    // Gathers stay in a group; sums are over all.
    EXPECT_GT(Whole(large["moved_bytes"]), Whole(small["moved_bytes"]));
    EXPECT_LT(Real(large["moved_bytes"]), Real(small["moved_bytes"]) * 5 / 3);
  }
  EXPECT_NE(
      Said(flags + "--world 12 --shard-group 4").find("each group of 4 ranks holds a copy, 3"),
      std::string::npos);
  for (const auto& [words, told] :
       {std::pair("--world 6 --shard-group 4", "world 6 is no multiple of the shard group of 4"),
        {"--world 6 --strategy hybrid-shard", "--strategy hybrid-shard needs more here"},
        {"--world 6 --strategy ddp --shard-group 2", "does not fit --strategy ddp"}}) {
    const std::vector<std::string> line = absl::StrSplit(flags + words, ' ', absl::SkipEmpty());
    const absl::Status status = ReadPlanConfig(line).status();
    EXPECT_NE(std::string(status.message()).find(told), std::string::npos) << status;
  }
}

// Between hosts a unit is gathered while the one before is computed with, and a bucket is reduced
// while the next one is filled. A node's ranks are what hybrid-shard divides among.
TEST(PlanReport, WhatIsUnderWayBetweenHostsKeepsItsMemory) {
  const std::string flags = std::string(kSmall) + "--world 4 ";
  const Json near = SaidAsJson(flags + "--nproc-per-node 4"),
             far = SaidAsJson(flags + "--nproc-per-node 2");
  EXPECT_EQ(near["strategies"], SaidAsJson(flags)["strategies"]);
  EXPECT_EQ(SaidAsJson(flags + "--nproc-per-node 8")["strategies"], near["strategies"]);
  const auto more = [&](std::size_t strategy, const char* kind) {
    return Whole(far["strategies"][strategy][kind]) - Whole(near["strategies"][strategy][kind]);
  };
  EXPECT_EQ(far["strategies"][0], near["strategies"][0]);
  // Ranks of one host have one buffer of weights, and gather what other hosts have.
  EXPECT_EQ(Whole(far["strategies"][1]["weights_bytes"]),
            Whole(near["strategies"][1]["weights_bytes"]) * 2);
  EXPECT_EQ(more(1, "rank_bytes"), more(1, "weights_bytes"));
  EXPECT_NEAR(Real(near["strategies"][1]["moved_bytes"]) * 2,
              Real(near["strategies"][0]["moved_bytes"]),
              Real(near["strategies"][0]["moved_bytes"]) / 20);
  EXPECT_NEAR(static_cast<double>(more(1, "moved_bytes")),
              Real(near["strategies"][0]["weights_bytes"]) / 2, 8 * 4096);
  // GPUs of one host do not.
  EXPECT_EQ(SaidAsJson(flags + "--gpu h100")["strategies"][1]["weights_bytes"],
            near["strategies"][0]["weights_bytes"]);
  // A block and the embedding: 12 d² + 13 d, and the head's context.
  EXPECT_GT(more(3, "gathered_bytes"), 12 * 64 * 64 * 4);
  EXPECT_LT(more(3, "gathered_bytes"), 13 * 64 * 64 * 4 + (256 + 32) * 64 * 4);
  EXPECT_EQ(more(3, "weights_bytes") + more(3, "moments_bytes") + more(3, "activations_bytes"), 0);
  EXPECT_EQ(Whole(near["nproc_per_node"]), 4);
  EXPECT_NE(Said(flags + "--nproc-per-node 2").find("the ranks are on 2 hosts"), std::string::npos);

  EXPECT_NE(Said(flags + "--nproc-per-node 3").find("the ranks are on 2 hosts"), std::string::npos);

  const auto group = [&](const std::string& words) {
    return Whole(SaidAsJson(flags + words + " --strategy hybrid-shard")["shard_group"]);
  };
  EXPECT_EQ(group("--nproc-per-node 2"), 2);
  EXPECT_EQ(group("--nproc-per-node 8"), 4);
  EXPECT_EQ(group("--nproc-per-node 4 --shard-group 2"), 2);
}

// A host has 64 ranks at most; a group that lies on two hosts shares nothing.
TEST(PlanReport, WhoSharesABufferOfWeights) {
  const struct {
    RanksOnHosts ranks;
    int group, sharers;
  } kRows[] = {{{.world = 4}, 4, 4},
               {{.world = 4, .per_host = 2}, 4, 2},
               {{.world = 5, .per_host = 2}, 5, 2},
               {{.world = 4, .per_host = 8}, 4, 4},
               {{.world = 256}, 256, 64},
               {{.world = 8, .per_host = 4}, 2, 2},
               {{.world = 6, .per_host = 3}, 2, 1},
               {{.world = 6, .per_host = 4}, 3, 1},
               {{.world = 4, .per_host = 4, .shared_memory = false}, 4, 1}};
  for (const auto& row : kRows) {
    EXPECT_EQ(row.ranks.Sharers(row.group), row.sharers)
        << row.ranks.world << " " << row.ranks.per_host << " " << row.group;
  }
}

TEST(PlanReport, WhatIsNotReshardedMovesAThirdLessAndNeedsRoom) {
  const std::string flags = std::string(kSmall) + "--strategy zero-3 --world 4 ";
  const Json twice = SaidAsJson(flags)["strategies"][3],
             once = SaidAsJson(flags + "--reshard-after-forward false")["strategies"][3];
  EXPECT_NEAR(Real(once["moved_bytes"]) / Real(twice["moved_bytes"]), 2.0 / 3, 0.03);
  EXPECT_GE(Whole(once["gathered_bytes"]), Whole(once["weights_bytes"]) * 3);
  EXPECT_LT(Whole(twice["gathered_bytes"]), Whole(once["gathered_bytes"]) / 2);
}

TEST(PlanReport, WhatIsGatheredTogetherNeedsRoomTogether) {
  const std::string flags = std::string(kSmall) + "--strategy zero-3 --world 4 ";
  const Json each = SaidAsJson(flags)["strategies"][3],
             all = SaidAsJson(flags + "--wrap size:1000000000")["strategies"][3];
  EXPECT_LT(Whole(each["gathered_bytes"]), Whole(all["gathered_bytes"]) / 2);
  EXPECT_GE(Whole(all["gathered_bytes"]), Whole(all["weights_bytes"]) * 3);
}

TEST(PlanReport, SuggestsTheLeastDividedThatCostsNoMore) {
  const auto suggested = [](const std::string& flags) {
    return SaidAsJson(kSmall + flags)["suggested"];
  };
  EXPECT_EQ(suggested("--world 4 --nproc-per-node 1")["strategy"], "ddp");
  EXPECT_EQ(suggested("--world 4 --nproc-per-node 1 --memory 1GiB")["strategy"], "ddp");
  // Where ranks share one buffer of weights, only gradients are moved, and half as much of them.
  EXPECT_EQ(suggested("--world 4")["strategy"], "zero-1");
  // So large that units are more than one bucket of gradients.
  const std::string large =
      "--layers 6 --width 512 --heads 4 --context 32 --batch 4 --world 4 --nproc-per-node 1 ";
  const Json all = SaidAsJson(large);
  for (std::size_t s = 1; s < 4; ++s) {
    const std::int64_t bytes = Whole(all["strategies"][s]["rank_bytes"]);
    const Json advice = SaidAsJson(absl::StrCat(large, "--memory ", bytes))["suggested"];
    EXPECT_EQ(advice["strategy"], all["strategies"][s]["strategy"]);
    EXPECT_NE(
        advice["reason"].get<std::string>().find(s == 3 ? "no other fits" : ", none moves less"),
        std::string::npos)
        << advice;
  }
  EXPECT_NE(suggested("--world 1")["reason"].get<std::string>().find("nobody to divide with"),
            std::string::npos);
  // Where the optimizer takes long, dividing its state makes a step shorter.
  const Json timed = suggested("--world 4 --gpu h100 --link 1TB");
  EXPECT_EQ(timed["strategy"], "zero-1");
  EXPECT_NE(timed["reason"].get<std::string>().find("none has a shorter step"), std::string::npos);
}

TEST(PlanReport, EstimatesTimeAndMfuAndSaysWhatIsAssumed) {
  const std::string flags = std::string(kSmall) + "--world 4 --precision bf16 --gpu H200 ";
  const Json tree = SaidAsJson(flags);
  EXPECT_EQ(Whole(tree["memory_bytes"]), 141'000'000'000);
  EXPECT_EQ(Real(tree["gpu"]["assumed_mfu"]), 0.4);
  for (const Json& row : tree["strategies"]) {
    const Json& time = row["time"];
    const double step = Real(time["step_s"]), tokens = 12 * 32;
    EXPECT_DOUBLE_EQ(step,
                     Real(time["compute_s"]) + Real(time["moving_s"]) + Real(time["optimizer_s"]));
    EXPECT_DOUBLE_EQ(Real(time["compute_s"]),
                     3 * 32 * Real(tree["flops_per_token"]) / (0.4 * 989e12));
    EXPECT_DOUBLE_EQ(Real(time["moving_s"]), Real(row["moved_bytes"]) / 450e9);
    EXPECT_DOUBLE_EQ(Real(time["tokens_per_s"]), tokens / step);
    EXPECT_DOUBLE_EQ(Real(time["mfu"]),
                     tokens * Real(tree["flops_per_token"]) / (step * 4 * 989e12));
    EXPECT_LT(Real(time["mfu"]), 0.4);
    EXPECT_TRUE(row["fits"].get<bool>());
  }
  const auto of = [&](const std::string& others, const char* kind) {
    return Real(SaidAsJson(flags + others)["strategies"][3]["time"][kind]);
  };
  EXPECT_DOUBLE_EQ(of("--mfu 80", "compute_s"), of("", "compute_s") / 2);
  EXPECT_DOUBLE_EQ(of("--link 45GB", "moving_s"), of("", "moving_s") * 10);
  EXPECT_DOUBLE_EQ(of("--recompute full", "compute_s"), of("", "compute_s") * 4 / 3);
  EXPECT_DOUBLE_EQ(of("--precision f32", "compute_s"), of("", "compute_s") * 989 / 67);
  const std::string text = Said(flags + "--recompute full --link 50GB --mfu 35");
  for (const char* words :
       {"Time on 4 x H200 SXM 141 GB, 989 TFLOP/s in bf16", " MFU ",
        "Assumed: this trainer runs there", "an MFU of 35 % of the peak for bf16",
        "a third more of them", "50 GB/s each way by --link", "nothing overlaps"}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << text;
  }
}

// Together they are what the report says of parts of a step.
TEST(PlanReport, ShowsWhenBuffersAreInUse) {
  const std::string flags = std::string(kSmall) + "--world 3 --strategy zero-3 --show ";
  for (const char* more : {"", "--nproc-per-node 1 ", "--precision bf16 "}) {
    const Json shown = SaidAsJson(flags + more);
    const std::string text = Said(flags + more);
    std::map<std::string, std::map<std::size_t, std::int64_t>> in_use;  // By kind, at each use.
    for (const Json& buffer : shown["buffers"]) {
      const auto first = buffer["first_use"].get<std::size_t>(),
                 last = buffer["last_use"].get<std::size_t>();
      ASSERT_LE(first, last);
      for (std::size_t at = first; at <= last; ++at)
        in_use[buffer["kind"]][at] += Whole(buffer["bytes"]);
      EXPECT_NE(text.find(absl::StrFormat(
                    "\n%-12s%-12s%14d%8d%8d\n", buffer["kind"].get<std::string>(),
                    buffer["unit"].get<std::string>(), Whole(buffer["bytes"]), first, last)),
                std::string::npos)
          << buffer << text;
    }
    const auto most = [&](const std::string& kind) {
      std::int64_t most = 0;
      for (const auto& [at, bytes] : in_use[kind]) most = std::max(most, bytes);
      return most;
    };
    std::int64_t gathered = 0, gradients = 0;
    ASSERT_EQ(shown["strategies"][3]["strategy"], "zero-3");
    for (const Json& part : shown["strategies"][3]["in_use"]) {
      // What a rank owns is rounded beside what it gathers.
      gathered = std::max(gathered, Whole(part["gathered_bytes"]));
      gradients = std::max(gradients, Whole(part["gradients_bytes"]));
    }
    if (gathered > 0) {
      EXPECT_EQ(most("weights"), gathered) << more;
    }
    EXPECT_EQ(most("gradients") + most("reduced"), gradients) << more;
    EXPECT_GT(most("activations"), 0);
  }
}

TEST(PlanReport, HasInstructionsInJsonToo) {
  const std::string flags = std::string(kSmall) + "--world 3 --strategy zero-3 ";
  std::string lines;
  const Json shown = SaidAsJson(flags + "--show");
  for (const Json& line : shown["instructions"]) lines += line.get<std::string>() + "\n";
  EXPECT_NE(lines.find("\n     0  compute  Gather unit 0 (embed)\n"), std::string::npos) << lines;
  EXPECT_NE(Said(flags + "--show").find(lines), std::string::npos);
  EXPECT_FALSE(SaidAsJson(flags).contains("instructions"));
  EXPECT_NE(Said(flags + "--show --nproc-per-node 1").find("\n     0  move     Gather unit 0"),
            std::string::npos);
  EXPECT_NE(
      Said(std::string(kSmall) + "--world 513").find("regroup-worker train takes 512 at most"),
      std::string::npos);
}

}  // namespace
}  // namespace regroup::worker
