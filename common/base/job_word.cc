#include "common/base/job_word.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/user_error.h"

namespace regroup {
namespace {

constexpr std::string_view kSeveral = " means more than one job";

}  // namespace

JobMatch MatchJob(std::string_view word, const JobId& id, std::string_view name) {
  if (word.empty()) return JobMatch::kNone;
  if (id.value() == word) return JobMatch::kId;
  if (name == word) return JobMatch::kName;
  return id.value().starts_with(word) ? JobMatch::kPrefix : JobMatch::kNone;
}

std::vector<std::size_t> ChooseJobs(std::string_view word, std::span<const JobChoice> choices,
                                    JobPrefixes prefixes) {
  const bool last = word == kLastJob;
  JobMatch best = last ? JobMatch::kName : JobMatch::kNone;
  const auto match = [&](const JobChoice& choice) {
    if (last) return JobMatch::kName;
    const JobMatch found = MatchJob(word, choice.id, choice.name);
    return found == JobMatch::kPrefix && prefixes == JobPrefixes::kRefused ? JobMatch::kNone
                                                                           : found;
  };
  for (const JobChoice& choice : choices) best = std::max(best, match(choice));
  std::vector<std::size_t> meant;
  if (best == JobMatch::kNone) return meant;
  for (std::size_t i = 0; i < choices.size(); ++i)
    if (match(choices[i]) == best) meant.push_back(i);
  if (best != JobMatch::kName || meant.empty()) return meant;
  const auto over = [&](std::size_t i) { return choices[i].over; };
  if (!last && !std::all_of(meant.begin(), meant.end(), over)) {
    std::erase_if(meant, over);
    return meant;
  }
  const auto youngest = std::max_element(
      meant.begin(), meant.end(),
      [&](std::size_t a, std::size_t b) { return choices[a].order < choices[b].order; });
  return {*youngest};
}

absl::Status AmbiguousJob(std::string_view word, std::string_view list, std::string_view first) {
  return UserError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat(std::string(word), std::string(kSeveral)),
                   absl::StrCat("it could be ", std::string(list)),
                   absl::StrCat("the whole id, as in ", std::string(first)));
}

bool IsAmbiguousJob(const absl::Status& status) {
  return !status.ok() && absl::EndsWith(PartsOf(status).what, std::string(kSeveral));
}

}  // namespace regroup
