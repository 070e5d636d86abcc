#include "common/base/job_word.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "common/base/user_error.h"

namespace regroup {
namespace {

// Ids of the jobs that a word means, in the order of the ids.
std::string Meant(std::string_view word, std::vector<JobChoice> jobs,
                  JobPrefixes prefixes = JobPrefixes::kAllowed) {
  std::vector<std::string> ids;
  for (std::size_t i : ChooseJobs(word, jobs, prefixes)) ids.push_back(jobs[i].id.value());
  std::sort(ids.begin(), ids.end());
  std::string text;
  for (const std::string& id : ids) text += (text.empty() ? "" : " ") + id;
  return text;
}

TEST(ChooseJobs, Table) {
  const JobChoice loop8{JobId("loop-8"), "loop", true, 8}, loop9{JobId("loop-9"), "loop", false, 9},
      loop10{JobId("loop-10"), "loop", false, 10}, old7{JobId("loop-7"), "loop", true, 7},
      program{JobId("nosuchprog-3"), "nosuchprog", false, 3},
      odd{JobId("loop-8-11"), "loop-8", false, 11};
  const auto kRefused = JobPrefixes::kRefused;
  struct Row {
    std::string_view word;
    std::vector<JobChoice> jobs;
    JobPrefixes prefixes;
    std::string meant;
  };
  const Row rows[] = {
      {"loop-8", {loop8, loop9, odd}, kRefused, "loop-8"},  // The id, not the name that equals it.
      {"loop", {loop8, loop9}, kRefused, "loop-9"},         // The one that is not over.
      {"loop", {loop9, loop10}, kRefused, "loop-10 loop-9"},
      {"loop", {old7, loop8}, JobPrefixes::kAllowed, "loop-8"},  // All are over: the youngest.
      {"loop", {loop9, program, odd}, JobPrefixes::kAllowed, "loop-9"},  // A name beats prefixes.
      {"nosuch", {loop9, program}, JobPrefixes::kAllowed, "nosuchprog-3"},
      {"nosuch", {loop9, program}, kRefused, ""},
      {"loop-1", {loop9, loop10}, kRefused, ""},
      {"lo", {loop9, loop10}, JobPrefixes::kAllowed, "loop-10 loop-9"},
      {"", {loop9}, JobPrefixes::kAllowed, ""},
      {"last", {loop10, loop9, odd}, kRefused, "loop-8-11"},
      {"last", {}, kRefused, ""},
      {"other", {loop9}, JobPrefixes::kAllowed, ""},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(Meant(row.word, row.jobs, row.prefixes), row.meant) << row.word;
    std::vector<JobChoice> reversed(row.jobs.rbegin(), row.jobs.rend());
    EXPECT_EQ(Meant(row.word, reversed, row.prefixes), row.meant) << row.word << ", reversed";
  }
}

TEST(AmbiguousJob, IsKnownAgainAndNamesOne) {
  const absl::Status several = AmbiguousJob("loop", "loop-8, loop-9", "loop-8");
  EXPECT_TRUE(IsAmbiguousJob(several));
  EXPECT_EQ(PartsOf(several).try_this, "the whole id, as in loop-8");
  EXPECT_FALSE(IsAmbiguousJob(absl::NotFoundError("no job loop")));
  EXPECT_FALSE(IsAmbiguousJob(absl::OkStatus()));
}

}  // namespace
}  // namespace regroup
