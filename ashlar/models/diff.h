// What two steps or models, of whatever layout and format, have in common: names, shapes, types,
// and values, tensor by tensor.
//
// Memory   one slab of each side for each worker: at most kMaxWorkers times 2 kSlabElements
//          elements, and a chunk of 4 MiB for each.
// Errors   those of StoredTensors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/log.h"
#include "ashlar/models/tensor_reader.h"

namespace ashlar::models {

// Elements of one type are the same if their bits are; of different types if their values are.
struct ValueDiff {
  int64_t differing = 0;   // elements
  int64_t not_finite = 0;  // of them: one of the two is infinite or no number
  double max_abs = 0;      // largest difference of the others, in fp64

  void add(const ValueDiff& more);  // of other elements
};

struct TensorDiff {
  std::string name;
  checkpoint::Component component = checkpoint::Component::kModel;
  std::optional<LogicalTensor> a, b;  // nullopt: not there
  std::optional<ValueDiff> values;    // if they were compared: both there, of one shape
  bool equal() const;
};

struct DiffOptions {
  bool values = false;
  std::optional<checkpoint::Component> component = {};  // this one only
  int num_threads = 0;                                  // 0: kMaxWorkers
  Log* log = nullptr;                                   // for a progress line
};

struct Diff {
  std::vector<TensorDiff> tensors;  // A's in their order, then those that only B has
  // Where one side is a Hugging Face directory, which can hold a model only, what the other has
  // beside it is not compared.
  std::vector<checkpoint::Component> left_out;
  bool equal() const;
};

Diff diff(const StoredTensors& a, const StoredTensors& b, const DiffOptions& options);

}  // namespace ashlar::models
