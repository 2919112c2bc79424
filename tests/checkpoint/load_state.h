// A made-up model cut in the ways that runs cut theirs, written by several writers.
#pragma once

#include <fmt/core.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/checkpoint/format/boxes.h"
#include "tests/checkpoint/state_test_util.h"

namespace ashlar::checkpoint {

struct Cut {
  std::string name;
  int num_ranks = 1;
  // The boxes of rank r of n of tensor number t.
  std::function<std::vector<Box>(int t, const Shape& shape, int r, int n)> boxes;
};

inline Box part_of_dim(const Shape& shape, int dim, int r, int n) {
  Box box = Box::whole(shape);
  box.offset[dim] = shape[dim] * r / n;
  box.length[dim] = shape[dim] * (r + 1) / n - box.offset[dim];
  return box;
}
// Every rank has all: zero 0.
inline Cut copies(int num_ranks) {
  return {"zero 0", num_ranks,
          [](int, const Shape& shape, int, int) { return std::vector{Box::whole(shape)}; }};
}
// Columns of even tensors, rows of odd ones.
inline Cut tensor_parallel(int num_ranks) {
  return {"tp", num_ranks, [](int t, const Shape& shape, int r, int n) {
            return std::vector{part_of_dim(shape, t % 2 ? 0 : shape.ndim() - 1, r, n)};
          }};
}
inline Cut contiguous(int num_ranks) {
  return {"contiguous", num_ranks, [](int, const Shape& shape, int r, int n) {
            const int64_t numel = shape.numel();
            return boxes_of_range(Box::whole(shape), numel * r / n, numel * (r + 1) / n);
          }};
}
inline Cut bucketed(int num_ranks, int64_t bucket) {
  return {"bucketed", num_ranks, [bucket](int, const Shape& shape, int r, int n) {
            std::vector<Box> boxes;
            for (int64_t begin = 0; begin < shape.numel(); begin += bucket) {
              const int64_t length = std::min(bucket, shape.numel() - begin);
              for (const Box& box : boxes_of_range(Box::whole(shape), begin + length * r / n,
                                                   begin + length * (r + 1) / n))
                boxes.push_back(box);
            }
            return boxes;
          }};
}

class CutModel {
 public:
  explicit CutModel(std::vector<Shape> shapes) : shapes_(std::move(shapes)) {}

  int64_t bytes() const {
    int64_t bytes = 0;
    for (const Shape& shape : shapes_) bytes += shape.numel() * 4;
    return bytes;
  }
  State state(const Cut& cut, int rank) const {
    State state;
    for (size_t t = 0; t < shapes_.size(); ++t)
      for (const Box& box : cut.boxes(int(t), shapes_[t], rank, cut.num_ranks))
        state.add_box(fmt::format("t{}", t), DType::kI32, shapes_[t], box, Role::kParameter);
    return state;
  }

  // Every element is a function of tensor and place.
  static int32_t value(size_t tensor, int64_t place) {
    return int32_t(splitmix64(tensor * 1000003 + size_t(place)));
  }
  static void fill(State& state) {
    visit(state, [](int32_t& element, int32_t value) { element = value; });
  }
  static int64_t num_wrong(State& state) {
    int64_t wrong = 0;
    visit(state, [&](int32_t& element, int32_t value) { wrong += element != value; });
    return wrong;
  }

  // Writes step 1 under "root"; each rank of the cut is a writer.  A cut of copies has one.
  void save(FileSystem& files, const Cut& cut) const {
    Log log = quiet_log();
    CheckpointOptions options = direct();
    options.num_writers = cut.num_ranks;
    std::vector<std::unique_ptr<Checkpointer>> writers;
    for (; options.writer_rank < cut.num_ranks; ++options.writer_rank)
      writers.push_back(std::make_unique<Checkpointer>(files, "root", options, log));
    const Id attempt = random_id();
    for (int w = cut.num_ranks - 1; w >= 0; --w) {
      State part = state(cut, w);
      fill(part);
      SaveRequest request;
      request.step = 1;
      request.attempt = attempt;
      request.model = part.pieces();
      if (w == 0) request.extra = {{"notes.txt", "of all", false}};
      writers[size_t(w)]->save(request);
    }
  }

 private:
  template <typename F>
  static void visit(State& state, F&& body) {
    for (Piece& piece : state.pieces()) {
      const auto tensor = size_t(std::stoi(piece.logical.name.substr(1)));
      const Shape& shape = piece.logical.global_shape;
      const Box whole = Box::whole(shape);
      int32_t* elements = piece.data.as<int32_t>();
      if (piece.box.length.numel() == 0) continue;
      for (Runs runs(piece.box, piece.box, whole); !runs.done(); runs.next())
        for (int64_t i = 0; i < runs.length(); ++i)
          body(elements[runs.from() + i], value(tensor, runs.to() + i));
    }
  }
  std::vector<Shape> shapes_;
};

}  // namespace ashlar::checkpoint
