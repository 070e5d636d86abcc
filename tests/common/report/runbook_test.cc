// Every reason has its row in deploy/runbook.md, and every row its reason.

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>

#include "common/report/reasons.h"

namespace regroup {
namespace {

TEST(Runbook, HasOneRowPerReason) {
  std::ifstream in(REGROUP_RUNBOOK);
  ASSERT_TRUE(in.is_open()) << REGROUP_RUNBOOK;
  std::set<std::string> rows, kinds;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("| `", 0) != 0) continue;
    std::string kind = line.substr(3, line.find('`', 3) - 3);
    EXPECT_TRUE(rows.insert(kind).second) << kind << " has two rows";
  }
  for (std::string_view kind : AllReasonKinds()) kinds.emplace(kind);
  EXPECT_EQ(rows, kinds);
}

}  // namespace
}  // namespace regroup
