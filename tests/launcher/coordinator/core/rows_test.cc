// Bounds of rows.

#include "launcher/coordinator/core/rows.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "launcher/coordinator/core/config.h"

namespace regroup::coordinator {
namespace {

GenerationRow RowOf(int members, int workers) {
  GenerationRow row;
  row.job = JobId("train-1");
  for (int i = 0; i < members; ++i) {
    GenerationMember member;
    member.node = NodeId(absl::StrCat("0123456789abcdef0123456789abcd", i));
    member.name = absl::StrCat("node-", i, ".cluster");
    member.address = "10.200.200.200";
    member.workers = workers;
    member.witness = Address{member.address, 40'000};
    member.pids.assign(static_cast<std::size_t>(workers), 4'000'000);
    row.members.push_back(std::move(member));
  }
  return row;
}

// The largest job there may be, of nodes with eight workers each: nothing of it is left out, and
// the rows of two generations fit into one step.
TEST(FitRow, KeepsAllOfTheLargestJob) {
  GenerationRow row = RowOf(kMaxNodesPerJob, 8);
  FitRow(row);
  EXPECT_EQ(row.members.back().pids.size(), 8u);
  EXPECT_TRUE(row.members.back().witness);
  EXPECT_LT(2 * EstimateBytes({GenerationKey(row.job, row.generation), row}) + (160u << 10),
            kMaxBytesPerStep);
}

TEST(FitRow, LeavesOutPidsAndThenWitnesses) {
  GenerationRow row = RowOf(kMaxNodesPerJob, 64);
  FitRow(row);
  EXPECT_TRUE(row.members.back().pids.empty());
  EXPECT_TRUE(row.members.back().witness);
  for (GenerationMember& member : row.members) member.name.assign(kMaxNodeNameBytes, 'n');
  for (GenerationMember& member : row.members) member.node = NodeId(std::string(64, 'i'));
  for (GenerationMember& member : row.members) member.witness->host.assign(kMaxAddressBytes, 'a');
  FitRow(row);
  EXPECT_FALSE(row.members.back().witness);
  EXPECT_EQ(row.members.size(), static_cast<std::size_t>(kMaxNodesPerJob));
}

}  // namespace
}  // namespace regroup::coordinator
