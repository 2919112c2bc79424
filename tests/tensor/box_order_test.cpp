#include "ashlar/tensor/box_order.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace ashlar {
namespace {

// Indices of the elements of the tensor that stand in the box: all elements are asked.
std::vector<int64_t> indices_of(const Shape& shape, const Box& box) {
  std::vector<int64_t> indices;
  for (int64_t index = 0; index < shape.numel(); ++index) {
    int64_t rest = index;
    bool inside = true;
    for (int dim = shape.ndim() - 1; dim >= 0; --dim) {
      const int64_t at = rest % shape[dim] - box.offset[dim];
      inside = inside && at >= 0 && at < box.length[dim];
      rest /= shape[dim];
    }
    if (inside) indices.push_back(index);
  }
  return indices;
}

Box random_box(std::mt19937_64& rng, const Shape& shape) {
  Box box = Box::whole(shape);
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    if (rng() % 3 == 0) continue;
    box.offset[dim] = int64_t(rng() % uint64_t(shape[dim]));
    box.length[dim] = 1 + int64_t(rng() % uint64_t(shape[dim] - box.offset[dim]));
  }
  return box;
}

TEST(BoxOrder, IsThatOfAnEnumeration) {
  std::mt19937_64 rng(1);
  for (const Shape& shape : {Shape{7}, Shape{4, 5}, Shape{3, 4, 5}, Shape{2, 3, 2, 3}}) {
    for (int trial = 0; trial < 200; ++trial) {
      const Box box = random_box(rng, shape);
      const int64_t numel = box.length.numel();
      const std::vector<int64_t> indices = indices_of(shape, box);
      for (int64_t i = 0; i < numel; ++i)
        ASSERT_EQ(index_in_tensor(shape, box, i), indices[size_t(i)]);
      for (int64_t index = 0; index <= shape.numel(); ++index)
        ASSERT_EQ(elements_before(shape, box, index),
                  std::lower_bound(indices.begin(), indices.end(), index) - indices.begin());
    }
  }
}

TEST(BoxOrder, RunsAreTheElementsInOrder) {
  std::mt19937_64 rng(2);
  const Shape shape{3, 4, 5};
  for (int trial = 0; trial < 500; ++trial) {
    const Box box = random_box(rng, shape);
    const int64_t numel = box.length.numel();
    const int64_t begin = int64_t(rng() % uint64_t(numel + 1));
    const int64_t end = begin + int64_t(rng() % uint64_t(numel + 1 - begin));
    std::vector<int64_t> visited;
    for_each_run(shape, box, begin, end, [&](int64_t index, int64_t length) {
      ASSERT_GE(length, 1);
      for (int64_t i = 0; i < length; ++i) visited.push_back(index + i);
    });
    const std::vector<int64_t> all = indices_of(shape, box);
    ASSERT_EQ(visited, std::vector<int64_t>(all.begin() + begin, all.begin() + end));
  }
}

// A whole tensor is one run, a column one run a row.
TEST(BoxOrder, RunsAreAsLongAsTheTensorAllows) {
  int64_t count = 0;
  const auto body = [&](int64_t, int64_t) { ++count; };
  for_each_run({6, 8}, Box::whole({6, 8}), 3, 40, body);
  EXPECT_EQ(count, 1);
  count = 0;
  for_each_run({6, 8}, {{0, 2}, {6, 3}}, 0, 18, body);
  EXPECT_EQ(count, 6);
}

}  // namespace
}  // namespace ashlar
