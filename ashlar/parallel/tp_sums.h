// The gradients that parallel.sequence_parallel leaves partial over the tp ranks, added up: vectors
// of norms and merges, the input's scale and bias, the final norm (packed into one buffer), and the
// embedding (in place).  Once a step, after its last backward and before the sums over data ranks.
//
// Cost     all_reduce "tp norms" of (10 L + 3) H elements of the stream type, all_reduce
//          "tp embedding" of V H.
// Memory   the buffer, taken at construction under Tag::kCommunication.
#pragma once

#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/nn/model.h"

namespace ashlar::parallel {

class PartialSums {
 public:
  // The model must outlive this, and keep the gradients of its root (nn::FlatLayout) in place.
  PartialSums(Allocator& allocator, const nn::Model& model);
  void sum(const kernels::Context& ctx, comm::Group& tp) const;

 private:
  std::vector<Tensor> vectors_;
  Tensor embed_;
  OwnedTensor packed_;
};

}  // namespace ashlar::parallel
