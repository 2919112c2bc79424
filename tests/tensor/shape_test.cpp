#include "ashlar/tensor/shape.h"

#include <gtest/gtest.h>

#include <vector>

namespace ashlar {
namespace {

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

}  // namespace
}  // namespace ashlar
