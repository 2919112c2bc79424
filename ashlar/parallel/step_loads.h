// How often each expert was chosen in a step: in the micro-batches of this rank, then on all ranks.
//
// Shapes   for a block with experts [E + 1] I64: choices of each expert, then choices of none.
#pragma once

#include <span>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/kernels/copy.h"
#include "ashlar/nn/model.h"

namespace ashlar::parallel {

class StepLoads {
 public:
  // Takes memory for all blocks of the model, since the loads of those that other stages of a
  // pipeline hold are reported too.  weights must outlive this.
  StepLoads(Arena& arena, const nn::ModelWeights& weights);

  void begin_step(const kernels::Context&);
  // To be called after a pass of the chunk: find looks up the loads that its branches counted, and
  // count adds them to the step's.
  void find(const nn::Saved& saved);
  void count(const kernels::Context&, const nn::Saved& saved);
  // Adds up the loads of all ranks: those of the micro-batch that was found, or those of the step.
  void sum_found_over(const nn::Saved& saved, comm::Group& ranks);
  void sum_over(comm::Group& ranks);
  // After the last sum its download fills what of_step_everywhere gives.
  kernels::Download result() { return {.from = packed_, .counts = host_}; }
  const Tensor& packed() const { return packed_; }

  // Loads by block with experts: of the blocks here, in the last micro-batch and in the step; and
  // of all blocks of the model in the step, on the host.
  std::span<const Tensor> found() const { return found_; }
  std::span<const Tensor> of_step() const { return of_step_; }
  std::span<const std::span<const int64_t>> of_step_everywhere() const { return everywhere_; }

  // Calls use(number, load) for the blocks of the chunk that have experts; `number` counts the
  // blocks here with experts.
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
