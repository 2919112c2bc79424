// Slabs: every element in one of them, none too large, chunks read once; and pieces of ranges.
#include "ashlar/models/slabs.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "ashlar/tensor/box_order.h"
#include "tests/checkpoint/random_boxes.h"
#include "tests/support/errors.h"

namespace ashlar::models {
namespace {

// Places only.
class Places final : public TensorReader {
 public:
  explicit Places(std::map<std::string, BytePosition> places) : places_(std::move(places)) {}
  void read(std::span<const Piece>) const override {}
  DType type_of(const std::string&) const override { return DType::kF32; }
  BytePosition position_of(const std::string& name) const override { return places_.at(name); }

 private:
  std::map<std::string, BytePosition> places_;
};

TEST(TensorSlabs, HoldEveryElementOnceAndAreSmall) {
  checkpoint::Draw draw(5, "slabs");
  for (int round = 0; round < 50; ++round) {
    std::vector<LogicalTensor> tensors;
    std::vector<TensorRange> ranges;
    std::map<std::string, BytePosition> places;
    for (size_t n = 0; n < 20; ++n) {
      const int64_t count = draw.below(3) ? draw.below(1000) : draw.below(3 * kSlabElements);
      tensors.push_back({fmt::format("t{}", n), DType::kF32, {count}, Role::kParameter});
      ranges.push_back({n, 0, count});
      places[tensors.back().name] = {draw.below(1 << 30) * 4, 4};
    }
    std::map<size_t, int64_t> next;  // of each tensor
    for (const Slab& slab : cut_into_slabs(tensors, ranges, Places(places))) {
      EXPECT_GT(num_elements(slab), 0);
      EXPECT_LE(num_elements(slab), kSlabElements);
      for (const TensorRange& range : slab) {
        EXPECT_EQ(range.first, next[range.tensor]);
        next[range.tensor] += range.count;
      }
    }
    for (const TensorRange& range : ranges) EXPECT_EQ(next[range.tensor], range.count);
  }
}

// A tensor that begins inside a chunk: each chunk of it is in one slab.
TEST(TensorSlabs, CutLargeTensorsWhereChunksEnd) {
  const std::vector<LogicalTensor> tensors{{"small", DType::kF32, {10}, Role::kParameter},
                                           {"large", DType::kF32, {5 << 20}, Role::kParameter}};
  const std::vector<TensorRange> ranges{{0, 0, 10}, {1, 0, 5 << 20}};
  const int64_t begin = 3 * checkpoint::kChunkBytes + 4096;
  const Places places({{"small", {begin - 40, 4}}, {"large", {begin, 4}}});
  const std::vector<Slab> slabs = cut_into_slabs(tensors, ranges, places);
  ASSERT_EQ(slabs.size(), 6u);
  EXPECT_EQ(slabs[0].size(), 2u);
  for (const Slab& slab : slabs) {
    const TensorRange& range = slab.back();
    const int64_t end = begin + 4 * (range.first + range.count);
    EXPECT_TRUE(end % checkpoint::kChunkBytes == 0 || range.first + range.count == 5 << 20) << end;
  }
}

TEST(TensorSlabs, PiecesOfARangeAreItsElementsInOrder) {
  checkpoint::Draw draw(6, "pieces");
  for (int round = 0; round < 300; ++round) {
    const Shape shape{1 + draw.below(4), 1 + draw.below(5), 1 + draw.below(6)};
    const int64_t numel = shape.numel(), first = draw.below(numel);
    const TensorRange range{0, first, 1 + draw.below(numel - first)};
    std::vector<float> data(size_t(range.count));
    std::vector<Piece> pieces;
    add_pieces({"w", DType::kF32, shape, Role::kParameter}, range, tensor_over(std::span(data)),
               pieces);
    int64_t index = first;
    for (const Piece& piece : pieces) {
      EXPECT_EQ(piece.data.as<float>(), data.data() + (index - first));
      EXPECT_EQ(piece.data.shape, piece.box.length);
      for (int64_t i = 0; i < piece.data.numel(); ++i)
        ASSERT_EQ(index_in_tensor(shape, piece.box, i), index++);
    }
    EXPECT_EQ(index, first + range.count);
  }
}

TEST(TensorSlabs, TheFirstErrorEndsTheWork) {
  std::vector<Slab> slabs;
  for (int64_t n = 0; n < 1000; ++n) slabs.push_back({{0, n, 1}});
  for (const int threads : {1, 4}) {
    std::atomic<int> calls = 0;
    const std::string message = testing_support::message_of(ErrorKind::kStorage, [&] {
      for_each_slab(slabs, threads, nullptr, "", [&](const Slab& slab, int worker) {
        EXPECT_LT(worker, threads);
        ++calls;
        if (slab[0].first > 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ASHLAR_REQUIRE(slab[0].first != 3, kStorage, "slab {}", slab[0].first);
      });
    });
    EXPECT_EQ(message, "slab 3");
    EXPECT_LT(calls, 900);
  }
}

}  // namespace
}  // namespace ashlar::models
