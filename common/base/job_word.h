#pragma once

// What the word JOB means wherever a person types one (CLI.md, Job identity): the exact id, else
// the exact name, else, for commands that only look, the beginning of one id. Of several jobs of
// one name the one that is not over is meant; when all are over, the youngest.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"

namespace regroup {

// The word for the youngest job of all.
inline constexpr std::string_view kLastJob = "last";

// In the order of preference; kNone: the word does not mean this job.
enum class JobMatch { kNone, kPrefix, kName, kId };
JobMatch MatchJob(std::string_view word, const JobId& id, std::string_view name);

// One job that the word may mean.
struct JobChoice {
  JobId id;
  std::string_view name;
  bool over = false;
  std::int64_t order = 0;  // The younger, the higher.
};

enum class JobPrefixes { kAllowed, kRefused };  // Refused where a command destroys.

// Indexes into `choices` of the jobs that are meant: none, one, or those among which the word does
// not choose. The result does not depend on the order of `choices`, save that of the indexes.
std::vector<std::size_t> ChooseJobs(std::string_view word, std::span<const JobChoice> choices,
                                    JobPrefixes prefixes);

// The word means several jobs: `list` are they, `first` is one of them.
absl::Status AmbiguousJob(std::string_view word, std::string_view list, std::string_view first);
bool IsAmbiguousJob(const absl::Status& status);

}  // namespace regroup
