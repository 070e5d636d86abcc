#include "launcher/coordinator/core/ranks.h"

#include <algorithm>
#include <map>

#include "common/base/check.h"

namespace regroup::coordinator {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// The digits at `at` without leading zeros; moves `at` behind them.
std::string_view TakeNumber(std::string_view text, std::size_t& at) {
  std::size_t begin = at;
  while (at < text.size() && IsDigit(text[at])) ++at;
  while (begin + 1 < at && text[begin] == '0') ++begin;
  return text.substr(begin, at - begin);
}

struct Newcomer {
  const RankCandidate* candidate;
  int order;  // 0 returning, 1 spare, 2 survivor ranked >= n.
  int rank;   // Former or previous rank; 0 for spares.
};

bool ComesFirst(const Newcomer& a, const Newcomer& b) {
  if (a.order != b.order) return a.order < b.order;
  if (a.rank != b.rank) return a.rank < b.rank;
  if (a.candidate->name != b.candidate->name)
    return NaturalLess(a.candidate->name, b.candidate->name);
  return a.candidate->node < b.candidate->node;
}

}  // namespace

bool NaturalLess(std::string_view a, std::string_view b) {
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (IsDigit(a[i]) && IsDigit(b[j])) {
      std::string_view x = TakeNumber(a, i), y = TakeNumber(b, j);
      // Without leading zeros the longer number is the larger one, of any length.
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
    }
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  if (a.size() != b.size()) return a.size() < b.size();  // Equal but for leading zeros.
  return a < b;
}

std::vector<NodeId> AssignGroupRanks(std::span<const NodeId> previous,
                                     std::span<const RankCandidate> chosen) {
  const int n = static_cast<int>(chosen.size());
  std::map<NodeId, int> before;
  for (std::size_t rank = 0; rank < previous.size(); ++rank)
    before[previous[rank]] = static_cast<int>(rank);

  std::vector<NodeId> ranks(chosen.size());
  std::vector<Newcomer> others;
  for (const RankCandidate& candidate : chosen) {
    auto found = before.find(candidate.node);
    if (found == before.end()) {
      others.push_back({&candidate, candidate.former ? 0 : 1, candidate.former.value_or(0)});
    } else if (found->second < n) {
      ranks[found->second] = candidate.node;
    } else {
      others.push_back({&candidate, 2, found->second});
    }
  }
  std::sort(others.begin(), others.end(), ComesFirst);
  // A returning node gets its own rank back where that is a hole.
  for (auto it = others.begin(); it != others.end();) {
    if (it->order == 0 && it->rank < n && ranks[it->rank].empty()) {
      ranks[it->rank] = it->candidate->node;
      it = others.erase(it);
    } else {
      ++it;
    }
  }
  auto next = others.begin();
  for (NodeId& rank : ranks) {
    if (rank.empty()) rank = (next++)->candidate->node;
  }
  CHECK(next == others.end());
  return ranks;
}

}  // namespace regroup::coordinator
