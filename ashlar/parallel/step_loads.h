// How many choices each expert got in a step: of the micro-batches here, then of all ranks.
//
// Shapes   of a block with experts [E + 1] I64: choices of each expert, then those that chose none.
#pragma once

#include <span>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/nn/model.h"

namespace ashlar::parallel {

class StepLoads {
 public:
  // Takes memory for all blocks of the model, since the loads of those that other stages of a
  // pipeline hold are reported too.  weights must outlive this.
  StepLoads(Arena& arena, const nn::ModelWeights& weights);

  void begin_step(const kernels::Context&);
  // After a pass of the chunk: finds the loads that its branches counted, and adds them to the
  // step's.
  void find(const nn::Saved& saved);
  void count(const kernels::Context&, const nn::Saved& saved);
  // Adds up what ranks have: of the micro-batch that was found, or of the step.
  void sum_found_over(const nn::Saved& saved, comm::Group& ranks);
  void sum_over(comm::Group& ranks);
  // After the last of these: what of_step_everywhere gives.
  void download(const kernels::Context&);

  // By block with experts: the blocks here, of the last micro-batch and of the step; and of the
  // step, all blocks of the model, on the host.
  std::span<const Tensor> found() const { return found_; }
  std::span<const Tensor> of_step() const { return of_step_; }
  std::span<const std::span<const int64_t>> of_step_everywhere() const { return everywhere_; }

  // Calls use(number among the blocks here with experts, its load) for those of the chunk.
  void for_each(const nn::Saved& saved,
                function_ref<void(size_t number, const nn::ExpertLoad& load)> use) const;

 private:
  const nn::ModelWeights& weights_;
  Tensor packed_;  // the loads of all blocks, one after another
  std::vector<Tensor> found_, of_step_;
  std::vector<int64_t> host_;                         // packed_, downloaded
  std::vector<std::span<const int64_t>> everywhere_;  // its blocks
};

}  // namespace ashlar::parallel
