// Compares two steps or models, of any layout and format, tensor by tensor: names, shapes, types
// and values.
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

// Elements of one type are equal if their bits are, those of different types if their values are.
struct ValueDiff {
  int64_t differing = 0;   // elements
  int64_t not_finite = 0;  // of the differing: one of the two is infinite or no number
  double max_abs = 0;      // largest difference of the others, in fp64

  void add(const ValueDiff& more);  // of other elements
};

struct TensorDiff {
  std::string name;
  checkpoint::Component component = checkpoint::Component::kModel;
  std::optional<LogicalTensor> a, b;  // nullopt: that side lacks it
  std::optional<ValueDiff> values;    // present if they were compared: both sides, one shape
  bool equal() const;
};

struct DiffOptions {
  bool values = false;
  std::optional<checkpoint::Component> component = {};  // this one only
  int num_threads = 0;                                  // 0: kMaxWorkers
  Log* log = nullptr;                                   // for a progress line
};

struct Diff {
  std::vector<TensorDiff> tensors;  // A's in their order, then those of B alone
  // Where one side is a Hugging Face directory, which holds only a model, the other side's tensors
  // beside the model are not compared.
  std::vector<checkpoint::Component> left_out;
  bool equal() const;
};

Diff diff(const StoredTensors& a, const StoredTensors& b, const DiffOptions& options);

}  // namespace ashlar::models
