// Pieces whose memory has gaps: what is stored of them is their box, as if it had none.
#include <gtest/gtest.h>

#include "ashlar/tensor/box_order.h"
#include "tests/checkpoint/safetensors_validator.h"
#include "tests/checkpoint/state_test_util.h"

namespace ashlar::checkpoint {
namespace {

// A tensor of int32 that is saved as boxes of one block of memory, which holds `memory` elements.
struct Strided {
  struct Part {
    Box box;
    int64_t at;
    Shape strides;
  };
  Strided(const Shape& shape, const std::vector<Part>& parts, int64_t memory)
      : shape(shape), values(size_t(memory), -1) {
    for (const Part& part : parts) {
      Tensor data = tensor_over(std::span(values)).slice(part.at, memory);
      data.shape = part.box.length;
      pieces.push_back({{"w", DType::kI32, shape}, part.box, data, part.strides});
      for (int64_t i = 0; i < part.box.length.numel(); ++i)
        values[size_t(part.at + place(part, i))] = int32_t(index_in_tensor(shape, part.box, i));
    }
  }
  static int64_t place(const Part& part, int64_t i) {
    int64_t at = 0;
    for (int d = part.box.length.ndim() - 1; d >= 0; --d) {
      at += i % part.box.length[d] * part.strides[d];
      i /= part.box.length[d];
    }
    return at;
  }
  Shape shape;
  std::vector<int32_t> values;
  std::vector<Piece> pieces;
};

// Every element of the loaded tensor is its own index.
void expect_saved(const Strided& strided) {
  const auto files = memory_files();
  Log log = quiet_log();
  Checkpointer checkpoints(*files, "root", direct(), log);
  SaveRequest request;
  request.step = 1;
  request.model = strided.pieces;
  checkpoints.save(request);
  const StepReader reader(*files, "root/step-000000000001");
  EXPECT_EQ(reader.index().files.size(), strided.pieces.size() + 1);
  for (const IndexFile& file : reader.index().files) {
    if (file.path == "extra/timing.json") continue;
    SafetensorsValidator validator;
    EXPECT_EQ(validator.validate(read_all(*files, join("root/step-000000000001", file.path))), "");
  }
  std::vector<int32_t> loaded(size_t(strided.shape.numel()), -1);
  Tensor data = tensor_over(std::span(loaded));
  data.shape = strided.shape;
  const Piece whole{{"w", DType::kI32, strided.shape}, Box::whole(strided.shape), data};
  reader.load({&whole, 1});
  for (size_t i = 0; i < loaded.size(); ++i) ASSERT_EQ(loaded[i], int32_t(i));
}

// Gate and up of five experts, one over the other: each box is five runs of 1.2 MB, so that chunks
// end inside runs.
TEST(StridedPieces, RunsOfRowsLongerThanAChunk) {
  const int64_t run = 300 * 1001;
  expect_saved({{5, 600, 1001},
                {{{{0, 0, 0}, {5, 300, 1001}}, 0, {2 * run, 1001, 1}},
                 {{{0, 300, 0}, {5, 300, 1001}}, run, {2 * run, 1001, 1}}},
                10 * run});
}

// Columns, in memory that holds the rows far apart and the outer dims in another order.
TEST(StridedPieces, SingleElementsAndDimsInAnyOrder) {
  expect_saved(
      {{3, 4, 5},
       {{{{0, 0, 0}, {3, 4, 2}}, 0, {7, 40, 3}}, {{{0, 0, 2}, {3, 4, 3}}, 200, {12, 3, 1}}},
       300});
}

}  // namespace
}  // namespace ashlar::checkpoint
