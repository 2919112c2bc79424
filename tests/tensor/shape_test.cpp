#include "ashlar/tensor/shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ashlar/core/rng.h"

namespace ashlar {
namespace {

// Coordinates of element `index` of a row-major box.
std::vector<int64_t> coordinates(const Box& box, int64_t index) {
  std::vector<int64_t> at(size_t(box.length.ndim()));
  for (int d = box.length.ndim() - 1; d >= 0; --d) {
    at[size_t(d)] = box.offset[d] + index % box.length[d];
    index /= box.length[d];
  }
  return at;
}

// The fewest boxes that elements [begin, end) can be cut into, by trying every cut: a run of
// elements is a box if it fills its bounding box.
int64_t fewest_boxes(const Box& box, int64_t begin, int64_t end) {
  std::vector<int64_t> fewest(size_t(end - begin) + 1, 0);  // of the elements before a cut
  for (int64_t to = begin + 1; to <= end; ++to) {
    fewest[size_t(to - begin)] = to - begin;
    std::vector<int64_t> low = coordinates(box, to - 1), high = low;
    for (int64_t from = to - 1; from >= begin; --from) {
      const std::vector<int64_t> at = coordinates(box, from);
      int64_t volume = 1;
      for (size_t d = 0; d < at.size(); ++d) {
        low[d] = std::min(low[d], at[d]);
        high[d] = std::max(high[d], at[d]);
        volume *= high[d] - low[d] + 1;
      }
      if (volume == to - from)
        fewest[size_t(to - begin)] =
            std::min(fewest[size_t(to - begin)], fewest[size_t(from - begin)] + 1);
    }
  }
  return fewest.back();
}

void expect_range(const Box& box, int64_t begin, int64_t end) {
  SCOPED_TRACE(box.length.to_string() + " [" + std::to_string(begin) + ", " + std::to_string(end) +
               ")");
  const std::vector<Box> pieces = boxes_of_range(box, begin, end);
  int64_t element = begin;
  for (const Box& piece : pieces) {
    ASSERT_GT(piece.length.numel(), 0);
    for (int64_t i = 0; i < piece.length.numel(); ++i, ++element)
      ASSERT_EQ(coordinates(piece, i), coordinates(box, element));
  }
  EXPECT_EQ(element, end);
  EXPECT_EQ(int64_t(pieces.size()), fewest_boxes(box, begin, end));
  EXPECT_LE(int64_t(pieces.size()), std::max(1, 2 * box.length.ndim() - 1));
}

TEST(Shape, CountsElements) {
  EXPECT_EQ(Shape().numel(), 1);
  EXPECT_EQ(Shape().ndim(), 0);
  EXPECT_EQ((Shape{0}).numel(), 0);
  EXPECT_EQ((Shape{3, 4, 5}).numel(), 60);
  EXPECT_EQ((Shape{3, 0, 5}).numel(), 0);
  EXPECT_EQ((Shape{int64_t{1} << 20, int64_t{1} << 20}).numel(), int64_t{1} << 40);
}

TEST(Shape, ComparesExtentsInUse) {
  EXPECT_EQ((Shape{3, 4}), (Shape{3, 4}));
  EXPECT_NE((Shape{3, 4}), (Shape{4, 3}));
  EXPECT_NE((Shape{3}), (Shape{3, 1}));
  EXPECT_NE(Shape(), (Shape{0}));
  const std::vector<int64_t> dims = {2, 7};
  Shape shape{std::span<const int64_t>(dims)};
  EXPECT_EQ(shape, (Shape{2, 7}));
  shape[1] = 9;
  EXPECT_EQ(shape, (Shape{2, 9}));
  EXPECT_EQ(shape[0], 2);
}

TEST(Shape, Prints) {
  EXPECT_EQ(Shape().to_string(), "[]");
  EXPECT_EQ((Shape{3, 4}).to_string(), "[3, 4]");
}

TEST(ShapeDeathTest, HasAtMostEightDims) {
  const std::vector<int64_t> dims(Shape::kMaxDims + 1, 1);
  EXPECT_EQ(Shape(std::span(dims).first(8)).ndim(), 8);
  EXPECT_DEATH(Shape(std::span<const int64_t>(dims)), "kMaxDims");
}

TEST(Box, WholeStartsAtZero) {
  const Box box = Box::whole({3, 4});
  EXPECT_EQ(box.offset, (Shape{0, 0}));
  EXPECT_EQ(box.length, (Shape{3, 4}));
  EXPECT_EQ(box, (Box{{0, 0}, {3, 4}}));
  EXPECT_NE(box, (Box{{1, 0}, {3, 4}}));
  EXPECT_EQ(Box::whole(Shape()), (Box{Shape(), Shape()}));
}

TEST(BoxesOfRange, AreTheElementsInOrderAndTheFewestOfRandomShapes) {
  const Rng rng(3, "boxes_of_range");
  uint64_t next = 0;
  for (int trial = 0; trial < 300; ++trial) {
    Box box;
    const int ndim = 1 + trial % 4;
    std::vector<int64_t> offset, length;
    for (int d = 0; d < ndim; ++d) {
      offset.push_back(int64_t(rng.below(next++, 9)));
      length.push_back(1 + int64_t(rng.below(next++, 4)));
    }
    box.offset = Shape(offset);
    box.length = Shape(length);
    const int64_t numel = box.length.numel();
    const int64_t begin = int64_t(rng.below(next++, uint64_t(numel) + 1));
    expect_range(box, begin, begin + int64_t(rng.below(next++, uint64_t(numel - begin) + 1)));
    expect_range(box, 0, numel);
  }
}

TEST(BoxesOfRange, OfScalarsAndEmptyBoxes) {
  EXPECT_EQ(boxes_of_range({}, 0, 1), std::vector<Box>{Box()});
  EXPECT_TRUE(boxes_of_range({}, 0, 0).empty());
  EXPECT_TRUE(boxes_of_range({}, 1, 1).empty());
  EXPECT_TRUE(boxes_of_range({{2, 3}, {0, 4}}, 0, 0).empty());
  EXPECT_TRUE(boxes_of_range({{2, 3, 0}, {2, 0, 3}}, 0, 0).empty());
  EXPECT_TRUE(boxes_of_range({{5}, {3}}, 3, 3).empty());
}

TEST(BoxesOfRange, BreaksRowsOnlyAtItsEnds) {
  EXPECT_EQ(boxes_of_range({{10, 20}, {4, 5}}, 3, 17),
            (std::vector<Box>{{{10, 23}, {1, 2}}, {{11, 20}, {2, 5}}, {{13, 20}, {1, 2}}}));
}

}  // namespace
}  // namespace ashlar
