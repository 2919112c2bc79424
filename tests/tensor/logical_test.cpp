// Parameters that are pieces of tensors, as a checkpoint sees them.
#include "ashlar/tensor/logical.h"

#include <gtest/gtest.h>

#include <random>

#include "ashlar/tensor/box_order.h"

namespace ashlar {
namespace {

// A parameter of two column blocks of [6, 4, 5] from which [begin, end) is kept, and data that
// holds the index in the tensor of each of its elements.
struct Case {
  Case(Allocator& allocator, int64_t begin, int64_t end) {
    p.logical = {"x", DType::kI64, {6, 4, 5}};
    p.boxes = {{{1, 0, 0}, {4, 2, 5}}, {{0, 2, 1}, {6, 2, 3}}};
    p.begin = begin, p.end = end;
    std::vector<int64_t> all;
    for (const Box& box : p.boxes)
      for (int64_t i = 0; i < box.length.numel(); ++i)
        all.push_back(index_in_tensor(p.logical.global_shape, box, i));
    indices.assign(all.begin() + begin, all.begin() + end);
    data = make_tensor(allocator, DType::kI64, {end - begin}, Tag::kWeights);
    std::copy(indices.begin(), indices.end(), data.tensor.as<int64_t>());
  }
  Parameter p;
  std::vector<int64_t> indices;
  OwnedTensor data;
};

// The indices that pieces state, in order; their data must be the same.
std::vector<int64_t> indices_in(const std::vector<Piece>& pieces) {
  std::vector<int64_t> indices;
  for (const Piece& piece : pieces) {
    EXPECT_EQ(piece.data.shape, piece.box.length);
    EXPECT_FALSE(piece.data.empty());
    for (int64_t i = 0; i < piece.data.numel(); ++i) {
      indices.push_back(index_in_tensor(piece.logical.global_shape, piece.box, i));
      EXPECT_EQ(piece.data.as<int64_t>()[i], indices.back());
    }
  }
  return indices;
}

TEST(PiecesOf, HoldEveryElementOnceInOrder) {
  Allocator allocator(Device::kCpu);
  std::mt19937_64 rng(1);
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t begin = int64_t(rng() % 77), end = begin + int64_t(rng() % uint64_t(77 - begin));
    const Case c(allocator, begin, end);
    LogicalTensor named = c.p.logical;
    named.name = "optim.momentum.x";
    const std::vector<Piece> pieces = pieces_of(c.p, named, c.data.tensor);
    EXPECT_EQ(indices_in(pieces), c.indices);
    for (const Piece& piece : pieces) EXPECT_EQ(piece.logical.name, "optim.momentum.x");
  }
}

TEST(PiecesOf, CopiesSplitTheirElements) {
  Allocator allocator(Device::kCpu);
  for (const int num_copies : {1, 2, 3, 7}) {
    for (const auto& [begin, end] : {std::pair(0, 76), std::pair(13, 50), std::pair(40, 42)}) {
      Case c(allocator, begin, end);
      c.p.num_copies = num_copies;
      std::vector<int64_t> all;
      for (c.p.copy = 0; c.p.copy < num_copies; ++c.p.copy) {
        const std::vector<int64_t> share =
            indices_in(pieces_of(c.p, c.p.logical, c.data.tensor, true));
        EXPECT_LE(int64_t(share.size()), (end - begin) / num_copies + 1);
        all.insert(all.end(), share.begin(), share.end());
        // To load, a copy wants all of them.
        EXPECT_EQ(indices_in(pieces_of(c.p, c.p.logical, c.data.tensor)), c.indices);
      }
      EXPECT_EQ(all, c.indices);
    }
  }
}

TEST(PiecesOf, AWholeTensorIsOnePiece) {
  Allocator allocator(Device::kCpu);
  const OwnedTensor data = make_tensor(allocator, DType::kF32, {3, 4}, Tag::kWeights);
  Parameter p;
  p.logical = {"w", DType::kF32, {3, 4}};
  p.boxes = {Box::whole({3, 4})};
  p.end = 12;
  const std::vector<Piece> pieces = pieces_of(p, p.logical, data.tensor);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].box, Box::whole({3, 4}));
  EXPECT_EQ(pieces[0].data.data, data.tensor.data);
}

TEST(MatrixShape, CountsMatricesOverAllLeadingDims) {
  const auto expect = [](const Shape& shape, int64_t num_matrices, int64_t rows, int64_t cols) {
    const MatrixShape matrix = matrix_shape(shape, num_matrices);
    EXPECT_EQ(matrix.rows, rows);
    EXPECT_EQ(matrix.cols, cols);
  };
  expect({6, 4}, 1, 6, 4);
  expect({5, 8, 3}, 5, 8, 3);
  expect({5, 8, 3}, 10, 4, 3);  // gate and up apart
  expect({7}, 1, 1, 7);
}

}  // namespace
}  // namespace ashlar
