#include "worker/comm/agreement.h"

#include <gtest/gtest.h>

#include <thread>

#include "worker/comm/in_process_communicator.h"

namespace regroup::worker {
namespace {

// What every rank is told when rank r has terms[r].
std::vector<std::optional<Disagreement>> Compare(const std::vector<Terms>& terms) {
  auto ranks = MakeInProcessCommunicators(static_cast<int>(terms.size()));
  std::vector<std::optional<Disagreement>> found(terms.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < terms.size(); ++r) {
    threads.emplace_back([&, r] {
      const auto result = FindDisagreement(*ranks[r], terms[r]);
      ASSERT_TRUE(result.ok()) << result.status();
      found[r] = *result;
      EXPECT_TRUE(ranks[r]->Barrier().ok());  // In step still.
    });
  }
  for (std::thread& t : threads) t.join();
  return found;
}

TEST(Agreement, EqualTermsAreNoDisagreement) {
  for (const Terms& terms : {Terms{}, Terms{{"a", "1"}, {"b", ""}}}) {
    for (const auto& found : Compare({terms, terms, terms})) EXPECT_FALSE(found.has_value());
  }
  EXPECT_FALSE(Compare({{{"a", "1"}}})[0].has_value());
}

struct Row {
  std::vector<Terms> terms;
  Disagreement found;
};

TEST(Agreement, EveryRankIsToldTheSameFirstDifference) {
  const Terms base = {{"kernels", "v4"}, {"plan", "77"}};
  const std::vector<Row> rows = {
      {{base, {{"kernels", "v4"}, {"plan", "78"}}, base}, {1, "plan", "77", "78"}},
      {{base, base, {{"kernels", "v3"}, {"plan", "78"}}}, {2, "kernels", "v4", "v3"}},
      // Where several differ, the highest rank speaks; so it does where rank 0 is the odd one.
      {{base, {{"kernels", "v3"}, {"plan", "77"}}, {{"kernels", "v4"}, {"plan", "9"}}},
       {2, "plan", "77", "9"}},
      {{base, {{"kernels", "v4"}}}, {1, "plan", "77", ""}},
      {{{{"kernels", "v4"}}, base}, {1, "plan", "", "77"}},
      // One that stands between others, whichever of the two has it.
      {{base, {{"kernels", "v4"}, {"more", "1"}, {"plan", "77"}}}, {1, "more", "", "1"}},
      {{{{"kernels", "v4"}, {"more", "1"}, {"plan", "77"}}, base}, {1, "more", "1", ""}},
      {{base, {{"kernels", "a=b"}, {"plan", "77"}}}, {1, "kernels", "v4", "a=b"}},
  };
  for (const Row& row : rows) {
    for (const auto& found : Compare(row.terms)) {
      ASSERT_TRUE(found.has_value());
      EXPECT_EQ(found->rank, row.found.rank);
      EXPECT_EQ(found->name, row.found.name);
      EXPECT_EQ(found->ours, row.found.ours);
      EXPECT_EQ(found->theirs, row.found.theirs);
    }
  }
}

}  // namespace
}  // namespace regroup::worker
