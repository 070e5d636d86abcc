#include "worker/layout/layout.h"

#include <gtest/gtest.h>

#include <string>
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
    const Range shard = layout.Shard(place.unit, 2);
    for (std::int64_t i = 0; i < place.spec.shape.elements(); ++i) {
      const Piece piece = layout.Locate(p, i);
      EXPECT_EQ(piece.owner, 0);
      ASSERT_GE(piece.offset, shard.begin);
      ASSERT_LT(piece.offset, shard.end());
      EXPECT_EQ(++taken[static_cast<std::size_t>(piece.offset)], 1);
    }
  }
}

TEST(Layout, DoesNotDependOnTheWorld) {
  const ParamLayout one = *ParamLayout::Replicated(ThreeUnits(), 1);
  const ParamLayout many = *ParamLayout::Replicated(ThreeUnits(), 7);
  for (std::size_t p = 0; p < one.params().size(); ++p) {
    EXPECT_EQ(one.params()[p].flat, many.params()[p].flat);
  }
  for (int rank = 0; rank < 7; ++rank) EXPECT_EQ(many.Shard(2, rank), one.Shard(2, 0));
}

TEST(Layout, FindsByName) {
  const ParamLayout layout = *ParamLayout::Replicated(ThreeUnits(), 1);
  EXPECT_EQ(layout.Find("c"), 2);
  EXPECT_EQ(layout.Find("e"), std::nullopt);
}

TEST(Layout, RefusesWhatCanNotBe) {
  const std::vector<UnitSpec> twice = {{"u", {Param("a", {1})}, {}}, {"v", {Param("a", {1})}, {}}};
  const std::vector<UnitSpec> forward = {{"u", {Param("a", {1})}, {"a"}}};
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
               {crowd, 1, "65 parameters, more than 64"}};
  for (const auto& row : kRows) {
    const absl::Status status = ParamLayout::Replicated(row.units, row.world).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(row.says), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace regroup::worker
