// The whole model of a step that holds only what was trained: trained tensors from the step, all
// others from the model that it builds on, with the products of its adapters added.
//
//   W' = W + scale B A      of W [N, K], A [r, K], B [N, r]
//
// Numerics  added in F64, then rounded to the type of the piece.
// Memory    the adapters in F64; during a read a row of a tensor, and a piece in F64 if it is BF16.
// Errors    those of the two readers.
// Threads   const members from several threads.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/models/tensor_reader.h"

namespace ashlar::models {

// A linear layer's adapter, row-major.
struct AdapterValues {
  int64_t rank = 0, rows = 0, cols = 0;  // [N, K] of W
  std::vector<double> a, b;              // [r, K], [N, r]
};

class TunedTensors final : public TensorReader {
 public:
  // step: what was trained.  scale: of its adapters.
  TunedTensors(std::unique_ptr<const StoredTensors> base, std::unique_ptr<const StoredTensors> step,
               double scale);

  const StoredTensors& base() const { return *base_; }
  // By the name of the layer's weight.
  const std::map<std::string, AdapterValues>& adapters() const { return adapters_; }

  // The name of a tensor of the model that the step holds itself, buffers aside; "": none.
  std::string trained_whole() const;

  void read(std::span<const Piece> pieces) const override;
  DType type_of(const std::string& name) const override;
  BytePosition position_of(const std::string& name) const override;

 private:
  void read_adapters();
  void add_product(const AdapterValues& adapter, const Piece& piece) const;
  void read_narrow(const AdapterValues& adapter, const Piece& piece) const;
  std::unique_ptr<const StoredTensors> base_, step_;
  double scale_;
  std::map<std::string, AdapterValues> adapters_;
};

}  // namespace ashlar::models
