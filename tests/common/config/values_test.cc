#include "common/config/values.h"

#include <gtest/gtest.h>

#include <optional>

#include "common/base/user_error.h"

namespace regroup {
namespace {

using namespace std::chrono_literals;

struct DurationRow {
  std::string text;
  std::optional<Duration> value;  // Unset: refused.
};

TEST(Values, Durations) {
  const DurationRow rows[] = {{"0", 0s},
                              {"90s", 90s},
                              {"2h14m", 2h + 14min},
                              {"500ms", 500ms},
                              {"1.5s", 1500ms},
                              {"1d2h3m4s5ms6us7ns", 24h + 2h + 3min + 4s + 5ms + 6us + 7ns},
                              {"10µs", 10us},
                              {"365d", 24h * 365},
                              {"366d", std::nullopt},
                              {"99999999999999999999999999999d", std::nullopt},
                              {"", std::nullopt},
                              {"90", std::nullopt},
                              {"-5s", std::nullopt},
                              {"5m5h", std::nullopt},
                              {"5s5s", std::nullopt},
                              {"s", std::nullopt},
                              {"1..5s", std::nullopt},
                              {".s", std::nullopt},
                              {"5 s", std::nullopt},
                              {"5sec", std::nullopt},
                              {"1e9s", std::nullopt},
                              {"nan", std::nullopt},
                              {std::string("5s\0", 3), std::nullopt}};
  for (const DurationRow& row : rows) {
    absl::StatusOr<Duration> got = ParseDuration(row.text);
    EXPECT_EQ(got.ok(), row.value.has_value()) << row.text;
    if (got.ok() && row.value) {
      EXPECT_EQ(*got, *row.value) << row.text;
      EXPECT_EQ(*ParseDuration(FormatDuration(*got)), *got) << FormatDuration(*got);
    }
    if (!got.ok()) {
      EXPECT_FALSE(PartsOf(got.status()).because.empty()) << row.text;
    }
  }
  EXPECT_EQ(FormatDuration(2h + 14min), "2h14m");
  EXPECT_EQ(FormatDuration(-5s), "0s");
}

TEST(Values, Bytes) {
  EXPECT_EQ(*ParseBytes("10GiB"), 10ull << 30);
  EXPECT_EQ(*ParseBytes("1.5K"), 1536u);
  EXPECT_EQ(*ParseBytes("500MB"), 500'000'000u);
  EXPECT_EQ(*ParseBytes("0"), 0u);
  for (const char* bad : {"", "GiB", "-1", "10 GiB", "10XB", "9999999999999999999TiB", "1e3"}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(10ull << 30), "10.0 GiB");
  EXPECT_EQ(FormatBytes((1ull << 20) - 1), "1.0 MiB");
}

TEST(Values, Nnodes) {
  EXPECT_EQ(*ParseNnodes("4"), (NodeBounds{4, 4}));
  EXPECT_EQ(*ParseNnodes("2:4"), (NodeBounds{2, 4}));
  EXPECT_EQ(*ParseNnodes("10000"), (NodeBounds{10'000, 10'000}));
  for (const char* bad : {"", ":", "2:", ":4", "0", "0:2", "4:2", "-1", "1000000000", "10001",
                          "2:4:6", "2.5", "two", "99999999999999999999999", " 2", "0x10", "+2"}) {
    EXPECT_FALSE(ParseNnodes(bad).ok()) << bad;
  }
  UserErrorParts parts = PartsOf(ParseNnodes("4:2").status());
  EXPECT_EQ(parts.what, "\"4:2\" has its minimum above its maximum");
  EXPECT_EQ(parts.because, "MIN:MAX needs MIN at most MAX, and 4 is more than 2");
  EXPECT_EQ(parts.try_this, "2:4");
  EXPECT_EQ(PartsOf(ParseNnodes("1000000000").status()).because, "1 to 10000 are allowed");
}

TEST(Values, Endpoints) {
  struct Row {
    const char* text;
    std::optional<Endpoint> value;
  };
  const Row rows[] = {{"node0", Endpoint{"node0", 29400}},
                      {"node0:1234", Endpoint{"node0", 1234}},
                      {"10.0.0.4:29400", Endpoint{"10.0.0.4", 29400}},
                      {"[::1]:5", Endpoint{"::1", 5}},
                      {"[fe80::1%eth0]", Endpoint{"fe80::1%eth0", 29400}},
                      {"::1", Endpoint{"::1", 29400}},
                      {"", {}},
                      {":29400", {}},
                      {"node0:", {}},
                      {"node0:0", {}},
                      {"node0:65536", {}},
                      {"node0:http", {}},
                      {"[::1", {}},
                      {"[::1]x", {}},
                      {"[node0]:1", {}},
                      {"no de", {}},
                      {"-node", {}},
                      {"http://node0", {}},
                      {"node0;rm", {}}};
  for (const Row& row : rows) {
    absl::StatusOr<Endpoint> got = ParseEndpoint(row.text);
    ASSERT_EQ(got.ok(), row.value.has_value()) << row.text;
    if (got.ok()) {
      EXPECT_EQ(*got, *row.value) << row.text;
    }
  }
  EXPECT_EQ(FormatEndpoint("::1", 5), "[::1]:5");
  EXPECT_EQ(FormatEndpoint("node0", 5), "node0:5");
}

TEST(Values, PortRanges) {
  EXPECT_EQ(*ParsePortRange("20000-20100"), (PortRange{20000, 20100}));
  EXPECT_EQ(PartsOf(ParsePortRange("20000-20000").status()).try_this, "20000-20100");
  for (const char* bad : {"", "5", "5-", "-5", "9-5", "0-5", "1-65536", "a-b"})
    EXPECT_FALSE(ParsePortRange(bad).ok()) << bad;
}

TEST(Values, ErrorsOfAnotherProgramAreReadBack) {
  const absl::Status error = UserError(absl::StatusCode::kDataLoss, "the journal is damaged",
                                       "row a\nand row b", "restore it");
  const std::optional<UserErrorParts> parts =
      ParseUserError("a line before; error: none\n" + RenderUserError(error) + "another\n");
  ASSERT_TRUE(parts);
  EXPECT_EQ(parts->what, "the journal is damaged");
  EXPECT_EQ(parts->because, "row a\nand row b");
  EXPECT_EQ(parts->try_this, "restore it");
  EXPECT_EQ(ParseUserError("error: what\n")->what, "what");
  EXPECT_EQ(ParseUserError("error: what\ntry: this\n")->try_this, "this");
  EXPECT_FALSE(ParseUserError(""));
  EXPECT_FALSE(ParseUserError("Segmentation fault\n"));
}

TEST(Values, DidYouMean) {
  const std::vector<std::string> commands = {"run", "submit", "ps", "nodes", "explain", "cancel"};
  EXPECT_EQ(DidYouMean("submti", commands), "submit");
  EXPECT_EQ(DidYouMean("exp", commands), "explain");
  EXPECT_EQ(DidYouMean("node", commands), "nodes");
  EXPECT_EQ(DidYouMean("frobnicate", commands), "");
  EXPECT_EQ(DidYouMean("", commands), "");
  EXPECT_EQ(DidYouMean(std::string(100'000, 'x'), commands), "");
}

TEST(Values, ShellWordsComeBackAsTheyWere) {
  EXPECT_EQ(ShellJoin({"train.py", "--lr", "3e-4"}), "train.py --lr 3e-4");
  EXPECT_EQ(ShellQuote("it's"), "'it'\\''s'");
  EXPECT_EQ(ShellQuote(""), "''");
  EXPECT_EQ(ShellQuote("a b"), "'a b'");
  EXPECT_EQ(ShellQuote("~x"), "'~x'");
}

}  // namespace
}  // namespace regroup
