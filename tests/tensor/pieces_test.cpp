// Parameters that are pieces of tensors, as a checkpoint reads and writes them.
#include "ashlar/tensor/pieces.h"

#include <gtest/gtest.h>

#include <random>

#include "ashlar/tensor/box_order.h"

namespace ashlar {
namespace {

// A parameter that keeps [begin, end) of its boxes, and data that holds the index in the tensor of
// each of its elements.
struct Case {
  Case(Allocator& allocator, const Shape& shape, const std::vector<Box>& boxes, int64_t begin,
       int64_t end) {
    p.logical = {"x", DType::kI64, shape};
    p.boxes = boxes;
    p.begin = begin, p.end = end;
    std::vector<int64_t> all;
    for (const Box& box : p.boxes)
      for (int64_t i = 0; i < box.length.numel(); ++i)
        all.push_back(index_in_tensor(p.logical.global_shape, box, i));
    p.local_shape = boxes.size() == 1 ? boxes[0].length : Shape{int64_t(all.size())};
    indices.assign(all.begin() + begin, all.begin() + end);
    data = make_tensor(allocator, DType::kI64, {end - begin}, Tag::kWeights);
    std::copy(indices.begin(), indices.end(), data.tensor.as<int64_t>());
  }
  KeptTensor kept() const { return {&p, p.logical, data.tensor}; }
  Parameter p;
  std::vector<int64_t> indices;
  OwnedTensor data;
};

// Two column blocks of [6, 4, 5].
Case column_blocks(Allocator& allocator, int64_t begin, int64_t end) {
  return Case(allocator, {6, 4, 5}, {{{1, 0, 0}, {4, 2, 5}}, {{0, 2, 1}, {6, 2, 3}}}, begin, end);
}

// Rows [first, first + rows) of gate and of up of each of `experts`, whose gate is `width` rows.
Case gate_up(Allocator& allocator, int64_t experts, int64_t width, int64_t first, int64_t rows,
             int64_t begin, int64_t end) {
  std::vector<Box> boxes;
  for (int64_t e = 0; e < experts; ++e)
    for (const int64_t half : {0, 1}) boxes.push_back({{e, half * width + first, 0}, {1, rows, 3}});
  return Case(allocator, {experts, 2 * width, 3}, boxes, begin, end);
}

// The indices that pieces state, in order; their data must be the same.
std::vector<int64_t> indices_in(const std::vector<Piece>& pieces) {
  std::vector<int64_t> indices;
  for (const Piece& piece : pieces) {
    EXPECT_EQ(piece.data.shape, piece.box.length);
    EXPECT_FALSE(piece.data.empty());
    for (int64_t i = 0; i < piece.data.numel(); ++i) {
      indices.push_back(index_in_tensor(piece.logical.global_shape, piece.box, i));
      int64_t at = i;
      if (piece.strides.ndim() > 0)
        for (int64_t d = piece.box.length.ndim() - 1, left = i; d >= 0; --d) {
          if (d == piece.box.length.ndim() - 1) at = 0;
          at += left % piece.box.length[int(d)] * piece.strides[int(d)];
          left /= piece.box.length[int(d)];
        }
      EXPECT_EQ(reinterpret_cast<const int64_t*>(piece.data.data)[at], indices.back());
    }
  }
  return indices;
}

std::vector<int64_t> sorted(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

TEST(PiecesOf, HoldEveryElementOnceInOrder) {
  Allocator allocator(Device::kCpu);
  std::mt19937_64 rng(1);
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t begin = int64_t(rng() % 77), end = begin + int64_t(rng() % uint64_t(77 - begin));
    const Case c = column_blocks(allocator, begin, end);
    KeptTensor kept = c.kept();
    kept.named.name = "optim.momentum.x";
    const std::vector<Piece> pieces = pieces_of(kept);
    EXPECT_EQ(indices_in(pieces), c.indices);
    for (const Piece& piece : pieces) EXPECT_EQ(piece.logical.name, "optim.momentum.x");
    EXPECT_EQ(sorted(indices_in(pieces_to_write({&kept, 1}))), sorted(c.indices));
  }
}

TEST(PiecesOf, AWholeTensorIsOnePiece) {
  Allocator allocator(Device::kCpu);
  const Case c(allocator, {3, 4}, {Box::whole({3, 4})}, 0, 12);
  const std::vector<Piece> pieces = pieces_of(c.kept());
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].box, Box::whole({3, 4}));
  EXPECT_EQ(pieces[0].data.data, c.data.tensor.data);
}

TEST(PiecesToWrite, JoinWhatIsOneBoxWithStrides) {
  Allocator allocator(Device::kCpu);
  const Case c = gate_up(allocator, 5, 8, 2, 4, 0, 120);
  EXPECT_EQ(pieces_of(c.kept()).size(), 10u);
  const KeptTensor kept = c.kept();
  const std::vector<Piece> pieces = pieces_to_write({&kept, 1});
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].box, (Box{{0, 2, 0}, {5, 4, 3}}));
  EXPECT_EQ(pieces[1].box, (Box{{0, 10, 0}, {5, 4, 3}}));
  EXPECT_EQ(pieces[0].strides, (Shape{24, 3, 1}));
  EXPECT_EQ(sorted(indices_in(pieces)), sorted(c.indices));
}

TEST(PiecesToWrite, JoinNothingThatHasNoSingleStride) {
  Allocator allocator(Device::kCpu);
  std::mt19937_64 rng(2);
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t begin = int64_t(rng() % 120), end = begin + 1 + int64_t(rng() % (120 - begin));
    const Case c = gate_up(allocator, 5, 8, 2, 4, begin, end);
    const KeptTensor kept = c.kept();
    const std::vector<Piece> pieces = pieces_to_write({&kept, 1});
    EXPECT_EQ(sorted(indices_in(pieces)), sorted(c.indices));
    // The first and the last expert have three pieces at most: a whole half, and parts of one.
    EXPECT_LE(pieces.size(), 10u);
  }
}

TEST(PiecesToWrite, OfAllColumnsAreTheWhole) {
  Allocator allocator(Device::kCpu);
  const Case c = gate_up(allocator, 5, 8, 0, 8, 0, 240);
  const KeptTensor kept = c.kept();
  const std::vector<Piece> pieces = pieces_to_write({&kept, 1});
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].box, Box::whole({5, 16, 3}));
  EXPECT_EQ(pieces[0].strides.ndim(), 0);
}

// Three tensors that `num_copies` ranks keep: together these write each element once, and each
// writes about as many bytes, in few boxes.
TEST(PiecesToWrite, CopiesShareARowOfTensors) {
  Allocator allocator(Device::kMeta);
  const std::vector<Shape> shapes = {{3000, 256}, {7}, {16, 64, 1024}, {2048}};
  for (const int num_copies : {1, 2, 3, 5, 40}) {
    std::vector<Parameter> parameters(shapes.size());
    std::vector<OwnedTensor> data;
    int64_t all = 0;
    for (size_t i = 0; i < shapes.size(); ++i) {
      Parameter& p = parameters[i];
      p.logical = {"x" + std::to_string(i), DType::kF64, shapes[i]};
      p.boxes = {Box::whole(shapes[i])};
      p.local_shape = shapes[i];
      p.end = shapes[i].numel();
      p.num_copies = num_copies;
      data.push_back(make_tensor(allocator, DType::kF64, {p.end}, Tag::kWeights));
      all += data.back().tensor.bytes();
    }
    const int64_t num_parts = std::min<int64_t>(num_copies, all / kMinPartBytes);
    std::vector<int64_t> written(shapes.size(), 0);
    for (int copy = 0; copy < num_copies; ++copy) {
      std::vector<KeptTensor> kept;
      for (size_t i = 0; i < shapes.size(); ++i) {
        parameters[i].copy = copy;
        kept.push_back({&parameters[i], parameters[i].logical, data[i].tensor});
      }
      int64_t bytes = 0;
      const std::vector<Piece> pieces = pieces_to_write(kept);
      for (const Piece& piece : pieces) {
        bytes += piece.data.bytes();
        written[size_t(piece.logical.name[1] - '0')] += piece.data.numel();
      }
      EXPECT_LE(pieces.size(), 4u);
      if (copy < num_parts)
        EXPECT_NEAR(double(bytes) * double(num_parts) / double(all), 1.0, 0.05);
      else
        EXPECT_EQ(bytes, 0);
    }
    for (size_t i = 0; i < shapes.size(); ++i) EXPECT_EQ(written[i], shapes[i].numel()) << i;
  }
}

TEST(PiecesToWrite, OfDifferentKeepersAreCutApart) {
  Allocator allocator(Device::kMeta);
  std::vector<Parameter> parameters(2);
  std::vector<KeptTensor> kept;
  const OwnedTensor data = make_tensor(allocator, DType::kF64, {1 << 20}, Tag::kWeights);
  for (int i = 0; i < 2; ++i) {
    Parameter& p = parameters[size_t(i)];
    p.logical = {i == 0 ? "a" : "b", DType::kF64, {1 << 20}};
    p.boxes = {Box::whole({1 << 20})};
    p.local_shape = {1 << 20};
    p.end = 1 << 20;
    p.num_copies = 2;
    p.keepers = i;
    kept.push_back({&p, p.logical, data.tensor});
  }
  const std::vector<Piece> pieces = pieces_to_write(kept);  // copy 0 of both: half of each
  ASSERT_EQ(pieces.size(), 2u);
  for (const Piece& piece : pieces) EXPECT_EQ(piece.box, (Box{{0}, {1 << 19}}));
}

}  // namespace
}  // namespace ashlar
