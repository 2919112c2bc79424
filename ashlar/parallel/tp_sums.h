// Adds up the gradients that tensor parallelism leaves partial over the tp ranks
// (nn::partial_over_shares): vectors, packed into one buffer, and vocabulary tables in place.  The
// vectors are those applied to each head and the halves of adapters that are whole on every rank;
// with parallel.sequence_parallel also norms, merges, the input's scale and bias and the final
// norm, and the tables are embedding and head.  Runs once a step, after its last backward and
// before the sums over data ranks.
//
// Cost     all_reduce "tp norms" of the vectors' elements in the wide type, and all_reduce
//          "tp embedding" of V H for each table.
// Memory   the buffer, taken at construction under Tag::kCommunication.
#pragma once

#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/nn/model.h"

namespace ashlar::parallel {

class PartialSums {
 public:
  // shards_stream: with parallel.sequence_parallel.  The model must outlive this, and keep the
  // gradients of its root (nn::FlatLayout) in place.
  PartialSums(Allocator& allocator, const nn::Model& model, bool shards_stream);
  bool empty() const { return vectors_.empty() && tables_.empty(); }
  void sum(const kernels::Context& ctx, comm::Group& tp) const;

 private:
  std::vector<Tensor> vectors_, tables_;
  OwnedTensor packed_;
};

}  // namespace ashlar::parallel
