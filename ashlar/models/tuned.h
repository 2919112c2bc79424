// The whole model of a step that holds only what was trained: trained tensors from the step, all
// others from the model that it builds on, with the products of its adapters added.
//
//   W' = W + scale B A      of W [N, K], A [r, K], B [N, r]
//
// Numerics  added in F64, then rounded to the type of the piece.
// Memory    during a read a piece's adapters, and the piece in F64 if it is BF16.
// Errors    those of the two readers.
// Threads   const members from several threads.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/models/tensor_reader.h"

namespace ashlar::models {

// The adapter of a linear layer, or of a stack of experts.
struct AdapterShape {
  int64_t rank = 0, rows = 0, cols = 0;  // [N, K] of W
  bool stack = false;
};
// Its values, row-major: [r, K] and [N, r], of a stack those of several experts.
struct AdapterValues {
  std::vector<double> a, b;
};

class TunedTensors final : public TensorReader {
 public:
  // step: what was trained.  scale: of its adapters.
  TunedTensors(std::unique_ptr<const StoredTensors> base, std::unique_ptr<const StoredTensors> step,
               double scale);

  const StoredTensors& base() const { return *base_; }
  // By the name of the layer's weight, or of the stack.
  const std::map<std::string, AdapterShape>& adapters() const { return adapters_; }
  // Reads the adapter of a weight; of a stack that of experts [first, first + count).
  AdapterValues values_of(const std::string& weight, int64_t first = 0, int64_t count = 1) const;

  // The name of a tensor of the model that the step holds itself, buffers aside; "": none.
  std::string trained_whole() const;

  void read(std::span<const Piece> pieces) const override;
  DType type_of(const std::string& name) const override;
  BytePosition position_of(const std::string& name) const override;

 private:
  void find_adapters();
  void add_product(const Piece& piece) const;
  void read_narrow(const Piece& piece) const;
  std::unique_ptr<const StoredTensors> base_, step_;
  double scale_;
  std::map<std::string, AdapterShape> adapters_;
};

}  // namespace ashlar::models
