#include "launcher/coordinator/core/placement.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "launcher/coordinator/core/decide_generation.h"
#include "launcher/coordinator/core/ranks.h"

namespace regroup::coordinator {
namespace {

template <class Key, class Value>
void EraseFrom(std::map<Key, std::set<Value>>& sets, const Key& key, const Value& value) {
  const auto found = sets.find(key);
  found->second.erase(value);
  if (found->second.empty()) sets.erase(found);
}

// How many have at least this much. A fleet has few sizes: its nodes are not walked.
template <class Value>
int CountFrom(const std::map<int, std::set<Value>>& sets, int least) {
  std::size_t count = 0;
  for (auto it = sets.lower_bound(least); it != sets.end(); ++it) count += it->second.size();
  return static_cast<int>(count);
}

// What it takes of an index at least. Of whole nodes any number of slots will do.
int LeastFor(int slots) { return std::max(slots, 1); }

}  // namespace

// ---- demand ------------------------------------------------------------------------------------

void Placement::Set(const Demand& demand) {
  auto [known, fresh] = demands_.try_emplace(demand.sequence, demand);
  if (!fresh && known->second == demand) return;
  const std::uint64_t head = Head();
  if (!fresh) Unindex(known->second);
  known->second = demand;
  if (demand.stage == Stage::kQueued) {
    const int nodes = SmallestSize(demand.min, demand.unit);
    For(demand.slots).line[LeastFor(demand.slots)][nodes].insert(demand.sequence);
    if (CountLarge(demand.slots) >= nodes) fitting_.insert(demand.sequence);
  } else {
    takers_.insert(demand.sequence);
  }
  HeadWas(head);
}

void Placement::Remove(std::uint64_t sequence) {
  const auto known = demands_.find(sequence);
  if (known == demands_.end()) return;
  const std::uint64_t head = Head();
  Unindex(known->second);
  demands_.erase(known);
  turned_away_.erase(sequence);
  news_.erase(sequence);
  HeadWas(head);
}

void Placement::Unindex(const Demand& demand) {
  takers_.erase(demand.sequence);
  fitting_.erase(demand.sequence);
  if (demand.stage != Stage::kQueued) return;
  auto& lines = For(demand.slots).line;
  const auto line = lines.find(LeastFor(demand.slots));
  EraseFrom(line->second, SmallestSize(demand.min, demand.unit), demand.sequence);
  if (line->second.empty()) lines.erase(line);
}

// The new head may start, and the old one has another reason to wait.
void Placement::HeadWas(std::uint64_t before) {
  const std::uint64_t head = Head();
  if (head == before) return;
  if (head != 0) news_.insert(head);
  if (head == 0) news_.merge(turned_away_);
  const auto old = demands_.find(before);
  if (old != demands_.end() && old->second.stage == Stage::kQueued) news_.insert(before);
}

// ---- supply ------------------------------------------------------------------------------------

int Placement::SizeFor(Wants wants, const Known& known) {
  return wants == kSlots || known.gpus ? known.size : 0;
}

int Placement::FreeFor(Wants wants, const Known& known) {
  if (wants == kSlots) return known.free;
  return known.free == known.size ? SizeFor(wants, known) : 0;
}

void Placement::SetSize(const NodeId& node, const std::string& name, int slots, bool gpus) {
  const Known* known = nodes_.Find(node);
  Known before, now{name, std::max(slots, 0), 0, gpus};
  if (known != nullptr) {
    before = *known;
    now.free = before.free;
    if (before == now) return;
    UnindexFree(node, before);
    nodes_.Erase(node);
  }
  if (slots >= 1) {
    IndexFree(node, now);
    nodes_.Set(node, now);
  }
  for (const Wants wants : {kSlots, kWholeGpuNodes})
    SizeChanged(node, wants, SizeFor(wants, before), SizeFor(wants, now));
}

// Only a node's coming, going and size change what could ever run; what is free does not.
void Placement::SizeChanged(const NodeId& node, Wants wants, int before, int after) {
  if (before == after) return;
  Index& index = indices_[wants];
  if (before > 0) EraseFrom(index.by_size, before, node);
  if (after > 0) index.by_size[after].insert(node);
  const std::uint64_t head = Head();
  const auto [low, high] = std::minmax(before, after);
  for (auto line = index.line.upper_bound(low); line != index.line.end() && line->first <= high;
       ++line) {
    // For these there is one node more or less: it decides where just the greater number is needed.
    const int nodes = CountFrom(index.by_size, line->first) + (after < before ? 1 : 0);
    const auto decided = line->second.find(nodes);
    if (decided == line->second.end()) continue;
    for (const std::uint64_t sequence : decided->second) {
      if (after > before) fitting_.insert(sequence);
      if (after < before) fitting_.erase(sequence);
      news_.insert(sequence);
    }
  }
  HeadWas(head);
}

void Placement::SetFree(const NodeId& node, int slots) {
  Known* known = nodes_.Find(node);
  // Most counts find what was known: they touch nothing.
  if (known == nullptr || known->free == slots) return;
  more_ = more_ || slots > known->free;
  UnindexFree(node, *known);
  known->free = slots;
  IndexFree(node, *known);
}

void Placement::IndexFree(const NodeId& node, const Known& known) {
  for (const Wants wants : {kSlots, kWholeGpuNodes})
    if (const int free = FreeFor(wants, known); free > 0)
      indices_[wants].by_free[free].insert({known.name, node});
}

void Placement::UnindexFree(const NodeId& node, const Known& known) {
  for (const Wants wants : {kSlots, kWholeGpuNodes})
    if (const int free = FreeFor(wants, known); free > 0)
      EraseFrom(indices_[wants].by_free, free, Named{known.name, node});
}

bool Placement::Named::operator<(const Named& other) const {
  // Two names may be equal as people count (n1 and n01), so that the id decides in the end.
  if (name != other.name) return NaturalLess(name, other.name);
  return node < other.node;
}

// ---- answers -----------------------------------------------------------------------------------

std::optional<WaitReason> Placement::WhyNot(std::uint64_t sequence) const {
  const auto found = demands_.find(sequence);
  if (found == demands_.end()) return std::nullopt;
  const Demand& demand = found->second;
  if (demand.stage == Stage::kQueued && !fitting_.contains(sequence))
    return WhyUnfit(SmallestSize(demand.min, demand.unit), demand.slots);
  if (demand.stage == Stage::kBetween || Head() == 0 || Head() == sequence) return std::nullopt;
  return BehindJob{demands_.at(Head()).job};
}

bool Placement::MayGrow(std::uint64_t sequence) {
  if (Head() == 0) return true;
  turned_away_.insert(sequence);
  return false;
}

std::optional<CannotFit> Placement::WhyUnfit(int nodes, int slots) const {
  CannotFit fit;
  fit.need = nodes;
  fit.known = CountLarge(slots);
  fit.slots = slots;
  if (fit.known >= nodes) return std::nullopt;
  const auto& by_size = For(slots).by_size;
  if (by_size.empty()) return fit;
  fit.largest = by_size.rbegin()->first;
  fit.node = nodes_.At(*by_size.rbegin()->second.begin()).name;
  return fit;
}

int Placement::CountLarge(int slots) const {
  return CountFrom(For(slots).by_size, LeastFor(slots));
}
int Placement::CountFree(int slots) const { return CountFrom(For(slots).by_free, LeastFor(slots)); }

std::vector<NodeId> Placement::FirstFree(int slots, std::size_t limit) const {
  std::vector<NodeId> first;
  const auto& by_free = For(slots).by_free;
  for (auto it = by_free.rbegin(); it != by_free.rend() && it->first >= LeastFor(slots); ++it) {
    for (const Named& named : it->second) {
      if (first.size() == limit) return first;
      first.push_back(named.node);
    }
  }
  return first;
}

// ---- who has to look again ---------------------------------------------------------------------

std::set<std::uint64_t> Placement::TakeNews() { return std::exchange(news_, {}); }

std::set<std::uint64_t> Placement::TakeOffers() {
  return std::exchange(more_, false) ? Takers() : std::set<std::uint64_t>();
}

std::set<std::uint64_t> Placement::Takers() const {
  std::set<std::uint64_t> takers = takers_;
  if (Head() != 0) takers.insert(Head());
  return takers;
}

bool Placement::SaysTheSame(const Placement& other) const {
  const auto all = [](const Placement& p) {
    return std::tie(p.nodes_, p.indices_, p.demands_, p.fitting_, p.takers_);
  };
  return all(*this) == all(other);
}

// ---- the policy at one look --------------------------------------------------------------------

namespace {

// How many slots this job takes there, were they free; more than there are where it never can.
int SlotsOn(const Supply& supply, const Demand& demand) {
  if (demand.slots != kWorkerPerGpu) return demand.slots;
  return supply.gpus ? std::max(supply.slots, 1) : supply.slots + 1;
}

// Who has enough free slots for this job, the most first. `taken` by jobs before it.
std::vector<const Supply*> WithRoomFor(const Asking& asking, std::span<const Supply> supplies,
                                       const std::map<NodeId, int>& taken) {
  std::vector<std::pair<int, const Supply*>> free;
  for (const Supply& supply : supplies) {
    const auto own = asking.own.find(supply.node);
    const auto gone = taken.find(supply.node);
    const int slots = (own == asking.own.end() ? supply.free : own->second) -
                      (gone == taken.end() ? 0 : gone->second);
    if (SlotsOn(supply, asking.demand) <= slots) free.emplace_back(slots, &supply);
  }
  std::sort(free.begin(), free.end(), [](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first > b.first;
    if (a.second->name != b.second->name) return NaturalLess(a.second->name, b.second->name);
    return a.second->node < b.second->node;
  });
  std::vector<const Supply*> nodes;
  for (const auto& entry : free) nodes.push_back(entry.second);
  return nodes;
}

}  // namespace

std::vector<Grant> Place(std::span<const Asking> askings, std::span<const Supply> supplies) {
  std::vector<Grant> grants;
  std::map<NodeId, int> taken;
  const Demand* head = nullptr;  // The first that is queued, could run and gets nothing now.
  const auto serve = [&](const Asking& asking) {
    const Demand& demand = asking.demand;
    const bool queued = demand.stage == Stage::kQueued, grows = demand.stage == Stage::kGrowing;
    Grant& grant = grants.emplace_back(Grant{demand.job});
    const int need = SmallestSize(demand.min, demand.unit);
    const auto known = std::count_if(supplies.begin(), supplies.end(), [&](const Supply& supply) {
      return SlotsOn(supply, demand) <= supply.slots;
    });
    if (queued && known < need) {
      grant.why_not = CannotFit{need, static_cast<int>(known), demand.slots};
      return;
    }
    if (head != nullptr && (queued || grows)) {
      grant.why_not = BehindJob{head->job};
      return;
    }
    const std::vector<const Supply*> free = WithRoomFor(asking, supplies, taken);
    const int have = static_cast<int>(free.size());
    const int size = UsableSize(demand.has + have, demand.min, demand.max, demand.unit);
    for (int i = 0; asking.ready && i < size - demand.has; ++i) {
      grant.nodes.push_back(free[i]->node);
      taken[free[i]->node] += SlotsOn(*free[i], demand);
    }
    if (!grant.nodes.empty()) return;
    if (queued) head = &demand;
    if (asking.ready && !grows) grant.why_not = BelowMinimum{have, need, Duration{}, {}};
  };
  for (const Asking& asking : askings)
    if (asking.demand.stage != Stage::kGrowing) serve(asking);
  for (const Asking& asking : askings)
    if (asking.demand.stage == Stage::kGrowing) serve(asking);
  return grants;
}

}  // namespace regroup::coordinator
