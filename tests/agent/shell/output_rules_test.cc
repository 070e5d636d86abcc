// --redirects, --tee, --local-ranks-filter and the prefixes, as torchrun's users know them.

#include "agent/shell/output_rules.h"

#include <gtest/gtest.h>

namespace regroup::agent {
namespace {

const OutputOf kRank = {
    .node = "n1", .host = "h", .job = "train-4", .generation = 3, .rank = 5, .local_rank = 1};

TEST(OutputRules, Table) {
  struct Row {
    const char* name;
    int workers;
    OutputOptions options;
    bool out_shown, err_shown;
    const char *out_prefix, *err_prefix;
  };
  auto options = [](std::vector<int> redirects, std::vector<int> tee, std::vector<int> shown,
                    std::string prefix) {
    OutputOptions made;
    made.redirects = std::move(redirects);
    made.tee = std::move(tee);
    made.shown_ranks = std::move(shown);
    made.prefix_template = std::move(prefix);
    return made;
  };
  const Row rows[] = {
      {"alone", 1, {}, true, true, "", ""},
      {"several", 2, {}, true, true, "[n1:5] ", "[n1:5] "},
      {"tee of stdout", 2, options({}, {0, 1}, {}, ""), true, true, "[trainer1]:", "[n1:5] "},
      {"tee alone", 1, options({}, {3, 3}, {}, ""), true, true, "[trainer1]:", "[trainer1]:"},
      {"redirected", 2, options({0, 2}, {}, {}, ""), true, false, "[n1:5] ", "[n1:5] "},
      {"tee beats it", 2, options({3, 3}, {0, 1}, {}, ""), true, false, "[trainer1]:", "[n1:5] "},
      {"another's", 2, options({3, 0}, {3, 0}, {}, ""), true, true, "[n1:5] ", "[n1:5] "},
      {"filtered out", 2, options({}, {3, 3}, {0}, ""), false, false, "[trainer1]:", "[trainer1]:"},
      {"filtered in", 2, options({}, {}, {0, 1}, ""), true, true, "[n1:5] ", "[n1:5] "},
      {"template", 2, options({}, {0, 1}, {}, "${hostname}|$rank|${other}|$$"), true, true,
       "h|5|${other}|$", "h|5|${other}|$"},
      {"template alone", 1, options({}, {}, {}, "x"), true, true, "", ""},
  };
  for (const Row& row : rows) {
    LaunchConfig launch;
    launch.workers = row.workers;
    launch.worker.role = "trainer";
    launch.output = row.options;
    const Relay::Rules rules = RulesFor(launch, kRank);
    EXPECT_EQ(rules.out.shown, row.out_shown) << row.name;
    EXPECT_EQ(rules.err.shown, row.err_shown) << row.name;
    EXPECT_EQ(rules.out.prefix, row.out_prefix) << row.name;
    EXPECT_EQ(rules.err.prefix, row.err_prefix) << row.name;
    EXPECT_TRUE(rules.link.empty() && rules.out.filtered_file.empty()) << row.name;
    EXPECT_EQ(rules.out.raw, row.workers == 1 && row.out_prefix[0] == '\0') << row.name;
  }
}

TEST(OutputRules, Prefixes) {
  using Prefixes = OutputOptions::Prefixes;
  struct Row {
    const char* name;
    Prefixes prefixes;
    std::string chosen;
    const char *out, *err, *label, *filtered;
  };
  const Row rows[] = {
      {"run", Prefixes::kAll, "", "[default1]:", "[n1:5] ", "[n1:5] ", "[default1]:"},
      {"torchrun", Prefixes::kTee, "", "[default1]:", "", "[default1]:", "[default1]:"},
      {"torchrun's template", Prefixes::kTee, "$rank|", "5|", "", "5|", "5|"},
      {"none", Prefixes::kNone, "", "", "", "rank 5 ", "[default1]:"},
      {"none, a template", Prefixes::kNone, "$rank|", "", "", "rank 5 ", "5|"},
  };
  for (const Row& row : rows) {
    LaunchConfig launch;
    launch.workers = 2;
    launch.output.tee = {1, 1};
    launch.output.prefixes = row.prefixes;
    launch.output.prefix_template = row.chosen;
    const Relay::Rules rules = RulesFor(launch, kRank);
    EXPECT_EQ(rules.out.prefix, row.out) << row.name;
    EXPECT_EQ(rules.err.prefix, row.err) << row.name;
    EXPECT_EQ(rules.label, row.label) << row.name;
    EXPECT_EQ(rules.out.filtered_prefix, row.filtered) << row.name;
    EXPECT_FALSE(rules.out.raw || rules.err.raw) << row.name << ": lines stay whole";
  }
}

TEST(OutputRules, EachGenerationHasItsAttempt) {
  LaunchConfig launch;
  launch.log_dir = "/logs";
  launch.output.attempts = true;
  launch.output.stderr_filters = {"x"};
  const Relay::Rules rules = RulesFor(launch, kRank);
  EXPECT_EQ(rules.link, "/logs/train-4_n1/attempt_2/1");
  EXPECT_EQ(rules.link_target, "../../train-4/3/5");
  EXPECT_EQ(rules.out.filtered_file, "");
  EXPECT_EQ(rules.err.filtered_file, "/logs/train-4_n1/attempt_2/filtered_stderr.log");
  launch.output.attempts = false;
  EXPECT_EQ(RulesFor(launch, kRank).err.filtered_file, "/logs/train-4/3/filtered_stderr.log");
}

TEST(LineFilter, LinesBearTheirRank) {
  LineFilter filter({"loss"}, "[default1]:");
  EXPECT_EQ(filter.Add("loss 1\nother\nloss 2"), "[default1]:loss 1\n");
  EXPECT_EQ(filter.Finish(), "[default1]:loss 2\n");
}

TEST(LineFilter, ALineOfAnyLength) {
  LineFilter filter({"needle"});
  EXPECT_EQ(filter.Add("nee"), "");
  EXPECT_EQ(filter.Add("dle\nhay\n"), "needle\n");
  const std::string huge(LineFilter::kMaxLineBytes + 1, 'x');
  EXPECT_EQ(filter.Add(huge), "") << "let go";
  EXPECT_EQ(filter.Add("a needle"), "");
  EXPECT_EQ(filter.Finish(), "a needle\n");
  EXPECT_EQ(filter.Finish(), "");
}

}  // namespace
}  // namespace regroup::agent
