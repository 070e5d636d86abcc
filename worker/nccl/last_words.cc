#include "worker/nccl/last_words.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace regroup::worker {
namespace {

constexpr Duration kShortly = std::chrono::milliseconds(200);
constexpr std::size_t kNamed = 8;  // Ranks of one kind that a sentence lists.

std::string Ranks(const std::vector<int>& ranks) {
  const std::vector<int> named(
      ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(std::min(ranks.size(), kNamed)));
  return absl::StrCat(
      ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(named, ", "),
      ranks.size() > kNamed ? absl::StrCat(" and ", ranks.size() - kNamed, " more") : "");
}

}  // namespace

std::string LastWords::KeyOf(int rank) const { return absl::StrCat(prefix_, "/begun/", rank); }
std::string LastWords::CauseKey() const { return absl::StrCat(prefix_, "/cause"); }

std::string LastWords::AskKey() const { return absl::StrCat(prefix_, "/asks"); }

std::string LastWords::LookKey(std::uint64_t begun) const {
  return absl::StrCat(prefix_, "/look/", begun);
}

bool LastWords::IsFirstToLook(std::uint64_t begun) {
  (void)store_.Renew(kShortly);
  store_.SetPatience(kShortly);
  return store_.Add(LookKey(begun) + "/by", 1).value_or(0) == 1;
}

void LastWords::NoteLook(std::uint64_t begun, const std::string& found) {
  store_.SetPatience(kShortly);
  (void)store_.Set(LookKey(begun), found);
}

void LastWords::AwaitLook(std::uint64_t begun, Duration patience) {
  store_.SetPatience(kShortly);
  (void)store_.Wait({LookKey(begun)}, patience);
}

std::string LastWords::NotedLook(std::uint64_t begun) {
  store_.SetPatience(kShortly);
  if (!store_.Check({LookKey(begun)}).value_or(false)) return "";
  return store_.Get(LookKey(begun)).value_or("");
}

bool LastWords::IsFirstToAsk() {
  store_.SetPatience(kShortly);
  return store_.Add(AskKey(), 1).value_or(1) == 1;
}

std::string LastWords::WhoIsMissing(std::uint64_t begun, const std::vector<int>& ranks,
                                    Duration patience, Duration lookups) {
  const auto end = std::chrono::steady_clock::now() + patience;
  store_.SetPatience(patience);
  if (const absl::Status said = store_.Set(KeyOf(rank_), absl::StrCat(begun)); !said.ok())
    return absl::StrCat("who is missing is not known: ", said.message());
  std::vector<std::string> keys;
  for (const int r : ranks) keys.push_back(KeyOf(r));
  (void)store_.Wait(keys, end - std::chrono::steady_clock::now());
  std::vector<int> silent, behind;
  std::size_t looked_up = 0;
  const auto lookups_end = std::chrono::steady_clock::now() + lookups;
  for (const int r : ranks) {
    const Duration left = lookups_end - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) break;
    store_.SetPatience(left);
    ++looked_up;
    const absl::StatusOr<bool> there = store_.Check({KeyOf(r)});
    if (!there.ok()) return absl::StrCat("who is missing is not known: ", there.status().message());
    if (!*there) {
      silent.push_back(r);
      continue;
    }
    const std::string text = store_.Get(KeyOf(r)).value_or("");
    std::uint64_t theirs = 0;
    std::from_chars(text.data(), text.data() + text.size(), theirs);
    if (theirs < begun) behind.push_back(r);
  }
  std::vector<std::string> parts;
  if (!silent.empty()) {
    parts.push_back(
        absl::StrCat(Ranks(silent), silent.size() == 1 ? " does" : " do", " not answer"));
  }
  if (!behind.empty()) {
    parts.push_back(
        absl::StrCat(Ranks(behind), behind.size() == 1 ? " has" : " have", " not begun it"));
  }
  if (looked_up < ranks.size())
    parts.push_back(
        absl::StrCat(ranks.size() - looked_up, " ranks could not be looked up in time"));
  return parts.empty() ? "every rank has begun it" : absl::StrJoin(parts, "; ");
}

void LastWords::Tell(std::uint64_t begun, const std::string& cause) {
  store_.SetPatience(kShortly);
  if (!store_.Set(KeyOf(rank_), absl::StrCat(begun)).ok()) return;
  (void)store_.Set(CauseKey(), cause);
}

std::optional<std::string> LastWords::Hear(std::uint64_t begun, Duration patience) {
  store_.SetPatience(patience);
  if (!store_.Set(KeyOf(rank_), absl::StrCat(begun)).ok()) return std::nullopt;
  if (!store_.Wait({CauseKey()}, patience).ok()) return std::nullopt;
  absl::StatusOr<std::string> cause = store_.Get(CauseKey());
  if (!cause.ok()) return std::nullopt;
  return *std::move(cause);
}

}  // namespace regroup::worker
