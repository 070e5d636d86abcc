// PROTOCOL §2, "Ranks".

#include "launcher/coordinator/core/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace regroup::coordinator {
namespace {

using ::testing::ElementsAreArray;

TEST(NaturalLess, NumbersCompareAsNumbers) {
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"node2", "node10"}, {"node2", "node02a"}, {"a", "b"}, {"a", "a1"},
      {"a1b2", "a1b10"},   {"node1", "node01"},  {"", "a"}};
  for (const auto& [a, b] : pairs) {
    EXPECT_TRUE(NaturalLess(a, b)) << a << " " << b;
    EXPECT_FALSE(NaturalLess(b, a)) << a << " " << b;
    EXPECT_FALSE(NaturalLess(a, a)) << a;
  }
}

struct RanksCase {
  const char* what;
  std::vector<std::string> previous;
  std::vector<std::pair<std::string, int>> chosen;  // Name, former rank or -1.
  std::vector<std::string> expected;
};

TEST(AssignGroupRanks, Table) {
  const std::vector<RanksCase> table = {
      {"first formation: natural host order",
       {},
       {{"node10", -1}, {"node2", -1}, {"node1", -1}},
       {"node1", "node2", "node10"}},
      {"nobody moves", {"c", "a", "b"}, {{"a", -1}, {"b", -1}, {"c", -1}}, {"c", "a", "b"}},
      {"one loss moves one survivor",
       {"a", "b", "c", "d"},
       {{"a", -1}, {"c", -1}, {"d", -1}},
       {"a", "d", "c"}},
      {"the last one lost moves nobody", {"a", "b", "c"}, {{"a", -1}, {"b", -1}}, {"a", "b"}},
      {"a spare takes the hole",
       {"a", "b", "c"},
       {{"a", -1}, {"x", -1}, {"c", -1}},
       {"a", "x", "c"}},
      {"a returning node before a spare",
       {"a", "b", "c"},
       {{"a", -1}, {"x", -1}, {"r", 7}},
       {"a", "r", "x"}},
      {"a returning node gets its own rank back",
       {"a", "b", "c", "d"},
       {{"a", -1}, {"r", 2}, {"q", 1}, {"d", -1}},
       {"a", "q", "r", "d"}},
      {"beside another hole, too", {"a", "b"}, {{"a", -1}, {"x", -1}, {"r", 2}}, {"a", "x", "r"}},
      {"a spare before a survivor that must move",
       {"a", "b", "c", "d"},
       {{"x", -1}, {"b", -1}, {"d", -1}},
       {"x", "b", "d"}},
      {"growth: newcomers behind",
       {"b", "a"},
       {{"a", -1}, {"b", -1}, {"d", -1}, {"c", -1}},
       {"b", "a", "c", "d"}},
      {"survivors keep their order",
       {"a", "b", "c", "d", "e"},
       {{"d", -1}, {"e", -1}, {"c", -1}},
       {"d", "e", "c"}},
  };
  for (const RanksCase& row : table) {
    std::vector<NodeId> previous, expected;
    std::vector<RankCandidate> chosen;
    for (const std::string& name : row.previous) previous.emplace_back(name);
    for (const std::string& name : row.expected) expected.emplace_back(name);
    for (const auto& entry : row.chosen) {
      RankCandidate candidate{NodeId(entry.first), entry.first, std::nullopt};
      if (entry.second >= 0) candidate.former = entry.second;
      chosen.push_back(candidate);
    }
    EXPECT_THAT(AssignGroupRanks(previous, chosen), ElementsAreArray(expected)) << row.what;
  }
}

}  // namespace
}  // namespace regroup::coordinator
