// The weighted average of several models, computed as it is read.
//
//   average = (w_1 x_1 + w_2 x_2 + ... ) / (w_1 + w_2 + ...)      of every element, in fp64, in the
//                                                              order in which the models are given
// So only the proportions of the weights matter, equal models average to that model, and a single
// model stays as it is, bit for bit.  A weight may be negative.  Balancing biases are averaged like
// everything else: they belong to the routers.
//
// Source   Izmailov et al. 2018, arXiv 1803.05407; Wortsman et al. 2022, arXiv 2203.05482.
// Errors   kConfig: models that differ (the first difference is named), weights that are not finite
//          or whose sum is 0; those of StoredTensors.
// Threads  const members from several threads.
#pragma once

#include <span>
#include <vector>

#include "ashlar/models/tensor_reader.h"

namespace ashlar::models {

// kConfig unless all have the sizes and the choices of one model.
void require_same_model(std::span<const ModelSource> sources);

class AveragedTensors final : public TensorReader {
 public:
  // At least one model, each with a weight; require_same_model() holds for them.
  AveragedTensors(std::vector<StoredTensors> models, std::vector<double> weights);

  // Takes 16 bytes for each element of the pieces, beside them.
  void read(std::span<const Piece> pieces) const override;
  DType type_of(const std::string& name) const override;  // F64, unless there is one model
  BytePosition position_of(const std::string& name) const override;  // in the first model

 private:
  std::vector<StoredTensors> models_;
  std::vector<double> weights_;
  double sum_ = 0;
};

}  // namespace ashlar::models
