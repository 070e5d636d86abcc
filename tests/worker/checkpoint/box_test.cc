#include "worker/checkpoint/box.h"

#include <gtest/gtest.h>

#include <limits>

#include "common/base/rng.h"

namespace regroup::worker {
namespace {

// Every element of a box in its own order, by its place in the tensor; by plain counting.
Dims PlacesIn(const Dims& shape, const Box& box) {
  Dims places, at(shape.size(), 0);
  for (std::int64_t i = 0; i < ElementsOf(box.size); ++i) {
    std::int64_t place = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) place = place * shape[d] + box.begin[d] + at[d];
    places.push_back(place);
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < box.size[d]) break;
      at[d] = 0;
    }
  }
  return places;
}

const std::vector<Dims> kShapes = {{},        {1},          {7},       {1, 1},         {4, 5},
                                   {1, 6, 1}, {3, 1, 4, 2}, {2, 3, 4}, {2, 1, 2, 1, 3}};

TEST(BoxTest, AnIntervalIsFewBoxesInItsOrder) {
  for (const Dims& shape : kShapes) {
    const std::int64_t elements = ElementsOf(shape);
    for (std::int64_t begin = 0; begin < elements; ++begin) {
      for (std::int64_t end = begin + 1; end <= elements; ++end) {
        const std::vector<Box> boxes = BoxesOf(shape, begin, end);
        Dims places;
        for (const Box& box : boxes) {
          ASSERT_TRUE(HasBox(shape, box));
          for (std::int64_t place : PlacesIn(shape, box)) places.push_back(place);
          EXPECT_EQ(Runs(shape, box).count(), 1);
        }
        Dims expected;
        for (std::int64_t i = begin; i < end; ++i) expected.push_back(i);
        ASSERT_EQ(places, expected) << begin << " " << end;
        EXPECT_LE(boxes.size(), std::max<std::size_t>(1, 2 * shape.size() - 1));
        if (begin == 0 && end == elements) {
          EXPECT_EQ(boxes.size(), 1u);
        }
      }
    }
  }
}

// All boxes of a shape.
std::vector<Box> AllBoxes(const Dims& shape) {
  std::vector<Box> boxes = {{}};
  for (std::int64_t n : shape) {
    std::vector<Box> longer;
    for (const Box& box : boxes) {
      for (std::int64_t begin = 0; begin < n; ++begin) {
        for (std::int64_t size = 1; begin + size <= n; ++size) {
          Box next = box;
          next.begin.push_back(begin);
          next.size.push_back(size);
          longer.push_back(std::move(next));
        }
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

TEST(BoxTest, RunsAreTheElementsOfABoxInItsOrder) {
  for (const Dims& shape : kShapes) {
    for (const Box& box : AllBoxes(shape)) {
      const Runs runs(shape, box);
      Dims places;
      for (std::int64_t run = 0; run < runs.count(); ++run) {
        for (std::int64_t i = 0; i < runs.length(); ++i) places.push_back(runs.Begin(run) + i);
      }
      ASSERT_EQ(places, PlacesIn(shape, box));
    }
  }
}

TEST(BoxTest, OnlyBoxesInsideATensorAreItsOwn) {
  const Dims shape = {4, 5};
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(HasBox(shape, {{3, 0}, {1, 5}}));
  EXPECT_TRUE(HasBox({}, {}));
  for (const Box& box : std::vector<Box>{{{}, {}},
                                         {{0}, {4}},
                                         {{0, 0, 0}, {1, 1, 1}},
                                         {{0, 0}, {4}},
                                         {{-1, 0}, {1, 1}},
                                         {{0, 0}, {0, 5}},
                                         {{0, 0}, {-1, 5}},
                                         {{4, 0}, {1, 1}},
                                         {{3, 0}, {2, 1}},
                                         {{1, 0}, {kHuge, 1}},
                                         {{kHuge, 0}, {kHuge, 1}}}) {
    EXPECT_FALSE(HasBox(shape, box));
  }
}

TEST(BoxTest, ShapesHaveBounds) {
  for (const Dims& shape : kShapes) EXPECT_TRUE(IsShape(shape));
  EXPECT_TRUE(IsShape({1ll << 48}));
  EXPECT_TRUE(IsShape(Dims(8, 2)));
  for (const Dims& shape : std::vector<Dims>{
           {0}, {-1}, {2, 0}, Dims(9, 1), {(1ll << 48) + 1}, {1ll << 40, 1ll << 40}, {-1, -1}})
    EXPECT_FALSE(IsShape(shape));
}

bool AreWhole(const Dims& shape, const std::vector<Box>& boxes, std::uint64_t seed = 1) {
  Coverage coverage(seed);
  for (const Box& box : boxes) coverage.Add(box);
  return coverage.IsWhole(shape);
}

// Cuts a box at random until there are `count`.
std::vector<Box> Shatter(const Dims& shape, int count, Rng& rng) {
  std::vector<Box> boxes = {{Dims(shape.size(), 0), shape}};
  for (int tries = 0; tries < 10 * count && static_cast<int>(boxes.size()) < count; ++tries) {
    Box& box = boxes[rng.Below(boxes.size())];
    const std::size_t d = rng.Below(shape.size());
    if (box.size[d] == 1) continue;
    Box rest = box;
    const auto cut =
        static_cast<std::int64_t>(1 + rng.Below(static_cast<std::uint64_t>(box.size[d] - 1)));
    box.size[d] = cut;
    rest.begin[d] += cut;
    rest.size[d] -= cut;
    boxes.push_back(std::move(rest));
  }
  return boxes;
}

TEST(CoverageTest, BoxesOfAWholeTensorAreWholeAndOthersAreNot) {
  Rng rng(2);
  const std::vector<Dims> shapes = {{1ll << 48}, {50257, 768}, {64, 3, 7, 7}, {2, 2}, Dims(8, 64)};
  for (int i = 0; i < 300; ++i) {
    const Dims& shape = shapes[rng.Below(shapes.size())];
    const std::vector<Box> whole = Shatter(shape, 2 + static_cast<int>(rng.Below(40)), rng);
    ASSERT_GE(whole.size(), 2u);
    EXPECT_TRUE(AreWhole(shape, whole, rng.Below(1000)));
    const std::size_t victim = rng.Below(whole.size()), d = rng.Below(shape.size());
    std::vector<Box> bad = whole;
    bad.pop_back();
    EXPECT_FALSE(AreWhole(shape, bad));
    bad.push_back(whole[0]);  // One missing, one twice.
    EXPECT_FALSE(AreWhole(shape, bad));
    bad = whole;
    bad.push_back(whole[victim]);
    EXPECT_FALSE(AreWhole(shape, bad));
    bad = whole;
    if (bad[victim].begin[d] > 0) {  // As many elements as before, at another place.
      --bad[victim].begin[d];
      EXPECT_FALSE(AreWhole(shape, bad));
    }
  }
  EXPECT_FALSE(AreWhole({3, 3}, {}));
  EXPECT_TRUE(AreWhole({}, {{}}));
  EXPECT_FALSE(AreWhole({}, {}));
  EXPECT_FALSE(AreWhole({}, {{}, {}}));
}

}  // namespace
}  // namespace regroup::worker
