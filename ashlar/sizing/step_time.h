// The analytic time and memory of a training step: closed formulas of a model, a layout and the
// rates of a machine, a thousand layouts and more a second.  A dry run and a simulation say the
// same more exactly (docs/plan.md); these formulas prune the layouts that a search looks at.
//
// How it works.  step_time adds up the kernels of one rank from their flop and bytes
// (block_time.h), a kernel taking the longer of flop / rate and bytes / bandwidth.  Gathers of
// weights and sums of gradients queue on a lane beside compute, block by block, with the two slots
// that ZeRO has, so that what overlaps is not counted twice.  Sums of tp, keys of cp, shares of tsp
// and rows of ep are waited for where the program waits.  With stages, the busiest one counts, and
// the others' time for one micro-batch is the bubble.
//
// Types   doubles throughout; the same input gives the same bits.
#pragma once

#include "ashlar/sizing/machine_rates.h"
#include "ashlar/sizing/step_shape.h"

namespace ashlar::sizing {

// Seconds of a step, and its parts, which add up to it: kernels first, then what compute waits for.
struct StepTime {
  double forward_s = 0, recompute_s = 0, loss_s = 0, backward_s = 0;
  double weights_s = 0;         // copies of shards and packing of operands
  double optimizer_s = 0;       // norm of gradients, momenta, Newton-Schulz, update
  double gather_wait_s = 0;     // for weights of other ranks
  double gradients_wait_s = 0;  // for sums of gradients, less what backward hides
  double tp_s = 0, cp_s = 0, tsp_s = 0, ep_s = 0, pp_s = 0;
  double bubble_s = 0;
  double muon_s = 0;     // for parts of matrices
  double reading_s = 0;  // beyond the rest of the step
  double total_s = 0;
};
StepTime step_time(const StepShape& shape, const MachineRates& rates);

// Bytes of the fullest rank by closed formulas, by the tags of docs/architecture.md#memory.
struct MemoryEstimate {
  double weights = 0, gradients = 0, optimizer = 0;
  double saved = 0;      // activations
  double workspace = 0;  // and messages
  double total = 0;
};
MemoryEstimate step_memory(const StepShape& shape);

}  // namespace ashlar::sizing
