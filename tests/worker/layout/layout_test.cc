#include "worker/layout/layout.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace regroup::worker {
namespace {

ParamSpec Param(std::string name, Shape shape) { return {.name = std::move(name), .shape = shape}; }

std::vector<UnitSpec> ThreeUnits() {
  return {{"first", {Param("a", {10, 7}), Param("b", {3})}, {}},
          {"empty", {}, {}},
          {"last", {Param("c", {64}), Param("d", {65})}, {"b"}}};
}

TEST(Layout, UnitsLieOneAfterTheOtherWithAlignedTensors) {
  const ParamLayout layout = *ParamLayout::Replicated(ThreeUnits(), 2);
  EXPECT_EQ(layout.param_elements(), 70 + 3 + 64 + 65);
  EXPECT_EQ(layout.flat_elements(), 128 + 64 + 64 + 128);
  EXPECT_EQ(layout.params()[0].flat, (Range{0, 70}));
  EXPECT_EQ(layout.params()[1].flat, (Range{128, 3}));
  EXPECT_EQ(layout.params()[3].flat, (Range{256, 65}));
  EXPECT_EQ(layout.units()[0].flat, (Range{0, 192}));
  EXPECT_EQ(layout.units()[1].flat, (Range{192, 0}));
  EXPECT_EQ(layout.units()[2].flat, (Range{192, 192}));
  EXPECT_EQ(layout.units()[2].shared, std::vector<ParamId>{1});
}

TEST(Layout, EveryElementOfEveryParameterHasItsOwnPlaceInItsUnit) {
  const ParamLayout layout = *ParamLayout::Replicated(ThreeUnits(), 3);
  std::vector<int> taken(static_cast<std::size_t>(layout.flat_elements()));
  for (ParamId p = 0; p < static_cast<ParamId>(layout.params().size()); ++p) {
    const ParamPlace& place = layout.params()[static_cast<std::size_t>(p)];
    EXPECT_EQ(place.flat.begin % ParamLayout::kAlignElements, 0);
    const Range& unit = layout.units()[static_cast<std::size_t>(place.unit)].flat;
    EXPECT_EQ(place.flat.size, place.spec.shape.elements());
    ASSERT_GE(place.flat.begin, unit.begin);
    ASSERT_LE(place.flat.end(), unit.end());
    for (std::int64_t at = place.flat.begin; at < place.flat.end(); ++at)
      EXPECT_EQ(++taken[static_cast<std::size_t>(at)], 1);
  }
}

// Sizes that nothing divides: blocks that two units share, units without a block of their own.
std::vector<UnitSpec> ManyUnits() {
  return {{"embed", {Param("wte", {97, 61}), Param("wpe", {5, 61})}, {}},
          {"empty", {}, {}},
          {"tiny", {Param("scale", {3})}, {}},
          {"small", {Param("a", {10, 7}), Param("b", {300})}, {}},
          {"large", {Param("c", {64, 333}), Param("d", {65}), Param("e", {4000})}, {"wte"}},
          {"last", {Param("f", {1025})}, {}}};
}

constexpr Strategy kDividing[] = {Strategy::kZero1, Strategy::kZero2, Strategy::kZero3};

TEST(Layout, EveryElementHasOneOwnerWhoHoldsItOnce) {
  for (const Strategy strategy : kDividing) {
    for (int world = 1; world <= 9; ++world) {
      const ParamLayout layout = *ParamLayout::Create(ManyUnits(), world, strategy);
      if (world == 1) {
        EXPECT_EQ(layout.strategy(), Strategy::kReplicated);
        continue;
      }
      std::vector<int> owners(static_cast<std::size_t>(layout.flat_elements()), -1);
      for (int r = 0; r < world; ++r) {
        std::int64_t before = 0;
        for (const Range& box : layout.Owned(r)) {
          EXPECT_EQ(box.begin % ParamLayout::kBlockElements, 0);
          EXPECT_TRUE(box.end() % ParamLayout::kBlockElements == 0 ||
                      box.end() == layout.flat_elements());
          for (std::int64_t at = box.begin; at < box.end(); ++at) {
            EXPECT_EQ(std::exchange(owners[static_cast<std::size_t>(at)], r), -1);
            ASSERT_EQ(layout.Offset(StateKind::kMoments, r, at), before + at - box.begin);
          }
          before += box.size;
        }
        EXPECT_EQ(layout.Elements(StateKind::kMoments, r), before);
      }
      for (ParamId p = 0; p < static_cast<ParamId>(layout.params().size()); ++p) {
        std::int64_t at = layout.params()[static_cast<std::size_t>(p)].flat.begin;
        for (const Share& share : layout.Shares(p)) {
          EXPECT_EQ(share.flat.begin, at);
          for (; at < share.flat.end(); ++at)
            ASSERT_EQ(owners[static_cast<std::size_t>(at)], share.owner);
        }
        EXPECT_EQ(at, layout.params()[static_cast<std::size_t>(p)].flat.end());
      }
    }
  }
}

TEST(Layout, AStrategyDividesWhatItsNameSaysAndTheRestIsWhole) {
  const std::pair<StateKind, int> kinds[] = {// From which stage on.
                                             {StateKind::kWeights, 1},
                                             {StateKind::kMoments, 1},
                                             {StateKind::kGradients, 2}};
  for (int row = 0; row <= 7; ++row) {
    const int stage = row / 2;
    const bool rounded = row % 2 == 1;
    const ParamLayout layout =
        *ParamLayout::Create(ManyUnits(), 3, static_cast<Strategy>(stage), /*group=*/0, rounded);
    EXPECT_EQ(NameOf(layout.strategy()), std::string(stage == 0 ? "ddp" : "zero-") +
                                             (stage == 0 ? "" : std::to_string(stage)));
    EXPECT_EQ(layout.FreesWeights(), stage == 3);
    EXPECT_EQ(layout.GathersInPlace(), (stage == 1 || stage == 2) && !rounded);
    for (const auto& [kind, from] : kinds) {
      const bool room_for_all = kind == StateKind::kWeights && layout.GathersInPlace();
      EXPECT_EQ(layout.Divides(kind), from <= stage);
      std::int64_t all = 0;
      for (int r = 0; r < 3; ++r) {
        all += layout.Elements(kind, r);
        for (const Range& box : layout.Boxes(kind, r)) {
          if (room_for_all) {
            EXPECT_EQ(layout.Offset(kind, r, box.end() - 1), box.end() - 1);
          }
        }
      }
      EXPECT_EQ(all, layout.flat_elements() * (from <= stage && !room_for_all ? 1 : 3));
    }
    EXPECT_EQ(layout.Shares(0).empty(), stage == 0);
  }
}

TEST(Layout, RanksAtOnePlaceOfTheirGroupsOwnTheSame) {
  for (const Strategy strategy : kDividing) {
    for (const auto& [world, group] : {std::pair(2, 2), {4, 2}, {6, 2}, {6, 3}, {12, 4}}) {
      const ParamLayout alone = *ParamLayout::Create(ManyUnits(), group, strategy);
      const ParamLayout layout = *ParamLayout::Create(ManyUnits(), world, strategy, group);
      EXPECT_EQ(layout.strategy(), strategy);
      EXPECT_EQ(layout.group(), group);
      EXPECT_EQ(layout.groups(), world / group);
      for (int r = 0; r < world; ++r) {
        EXPECT_EQ(layout.PlaceOf(r), r % group);
        for (const StateKind kind :
             {StateKind::kWeights, StateKind::kGradients, StateKind::kMoments})
          EXPECT_EQ(layout.Boxes(kind, r), alone.Boxes(kind, r % group));
        EXPECT_EQ(layout.Owned(r), alone.Owned(r % group));
      }
      for (ParamId p = 0; p < static_cast<ParamId>(layout.params().size()); ++p)
        EXPECT_EQ(layout.Shares(p), alone.Shares(p));
    }
    const ParamLayout ones = *ParamLayout::Create(ManyUnits(), 3, strategy, 1);
    EXPECT_EQ(ones.strategy(), Strategy::kReplicated);
    EXPECT_EQ(ones.groups(), 1);
    for (const auto& [world, group] : {std::pair(3, 2), {2, 4}, {2, -1}}) {
      const absl::Status status = ParamLayout::Create(ManyUnits(), world, strategy, group).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_NE(std::string(status.message()).find("no multiple of groups of "), std::string::npos);
    }
  }
}

// The even part, and at most a block more or less for each unit.
TEST(Layout, OwnersHaveEvenParts) {
  const ParamLayout layout = *ParamLayout::Create(ManyUnits(), 4, Strategy::kZero3);
  const auto units = static_cast<std::int64_t>(layout.units().size());
  for (int r = 0; r < 4; ++r) {
    EXPECT_NEAR(static_cast<double>(layout.Elements(StateKind::kWeights, r)),
                static_cast<double>(layout.flat_elements()) / 4,
                static_cast<double>(units * ParamLayout::kBlockElements));
  }
}

TEST(Layout, DoesNotDependOnTheWorld) {
  const ParamLayout one = *ParamLayout::Replicated(ThreeUnits(), 1);
  const ParamLayout many = *ParamLayout::Replicated(ThreeUnits(), 7);
  for (std::size_t p = 0; p < one.params().size(); ++p) {
    EXPECT_EQ(one.params()[p].flat, many.params()[p].flat);
  }
  for (int rank = 0; rank < 7; ++rank) {
    EXPECT_EQ(many.Boxes(StateKind::kWeights, rank), one.Boxes(StateKind::kWeights, 0));
  }
}

TEST(Layout, FindsByName) {
  const ParamLayout layout = *ParamLayout::Replicated(ThreeUnits(), 1);
  EXPECT_EQ(layout.Find("c"), 2);
  EXPECT_EQ(layout.Find("e"), std::nullopt);
}

TEST(Layout, PartsOfAUnitBeginWithItsParameters) {
  const ParamLayout layout = *ParamLayout::Replicated(
      {{"u", {Param("a", {3})}, {}},
       {"v", {Param("b", {100}), Param("c", {1}), Param("d", {5})}, {}, {1, 2}}},
      2);
  EXPECT_EQ(layout.units()[0].parts, (std::vector<Range>{{0, 64}}));
  EXPECT_EQ(layout.units()[1].parts, (std::vector<Range>{{64, 128}, {192, 64}, {256, 64}}));
}

TEST(Layout, RefusesWhatCanNotBe) {
  const std::vector<UnitSpec> twice = {{"u", {Param("a", {1})}, {}}, {"v", {Param("a", {1})}, {}}};
  const std::vector<UnitSpec> forward = {{"u", {Param("a", {1})}, {"a"}}};
  const auto parts = [](std::vector<int> begins, std::vector<std::string> shared = {}) {
    return std::vector<UnitSpec>{
        {"u", {Param("a", {1})}, {}},
        {"v", {Param("b", {1}), Param("c", {1})}, std::move(shared), std::move(begins)}};
  };
  std::vector<UnitSpec> crowd = {{"crowd", {}, {}}};
  for (int i = 0; i <= kMaxUnitParams; ++i)
    crowd[0].params.push_back(Param("p" + std::to_string(i), {1}));
  const struct {
    std::vector<UnitSpec> units;
    int world;
    const char* says;
  } kRows[] = {{ThreeUnits(), 0, "world 0"},
               {{}, 1, "no units"},
               {twice, 1, "a exists twice"},
               {forward, 1, "unit u shares a, which no unit before it has"},
               {parts({0}), 1, "unit v of 2 parameters has no part from 0"},
               {parts({2}), 1, "unit v of 2 parameters has no part from 2"},
               {parts({1, 1}), 1, "unit v of 2 parameters has no part from 1"},
               {parts({1}, {"a"}), 1, "unit v of 2 parameters has no part from 1"},
               {crowd, 1, "65 parameters, more than 64"}};
  for (const auto& row : kRows) {
    const absl::Status status = ParamLayout::Replicated(row.units, row.world).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(row.says), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace regroup::worker
