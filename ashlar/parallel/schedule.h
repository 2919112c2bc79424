// Pipeline schedules, as data: the order in which every stage of a pipeline runs its micro-batches,
// and its sends and receives.
//
// p stages (the ranks along pp) hold the blocks in their order.  A stage holds v chunks of them:
// chunk c of stage s is virtual stage c p + s of v p.  Virtual stage n sends its output to n + 1,
// which sends the gradient of that output back.  Chunks may differ in length: schedules know no
// blocks.
//
//   schedule      order of stage s
//   kGpipe        all forwards, then all backwards
//   k1f1b         p - s - 1 forwards; then forward and backward in turn; then the other backwards
//   kInterleaved  1F1B over chunks, p micro-batches at a time through each of them, after
//                 2 (p - s - 1) + (v - 1) p forwards
//   kZeroBubble   1F1B with backward in two parts: the weights' part of a micro-batch runs s
//                 backwards later than the inputs' part
//
// Sources  GPipe: Huang et al., "GPipe", 2019.  1F1B: Narayanan et al., "Memory-Efficient
//          Pipeline-Parallel DNN Training", 2021 (PipeDream-Flush).  Interleaved: Narayanan et al.,
//          "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021.
//          Zero bubble: Qi et al., "Zero Bubble Pipeline Parallelism", 2024 (its ZB-H1).
//
// Every schedule keeps the micro-batches of a chunk in ascending order, in forward, in backward and
// in the weights' part, so that sums of gradients over micro-batches have the order of one rank.
//
// Memory  the most (chunk, micro-batch) pairs that stage s keeps between forward and the end of
// backward, in a step of m micro-batches (num_slots of the program without transfers):
//
//   kGpipe       m              kInterleaved   min(m v, 2 (p - s - 1) + (v - 1) p + 1)
//   k1f1b        min(m, p - s)  kZeroBubble    min(m, p)
//
// A receive is posted before the forward of the previous pair, and takes the slot of its own pair:
// a stage that receives has one slot more, but never more slots than pairs.
//
// Errors  kConfig: these numbers do not allow the schedule.
#pragma once

#include <span>
#include <vector>

#include "ashlar/parallel/program.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::parallel {

using Programs = std::vector<std::vector<Action>>;  // by stage

// Forward and backward (kForward, kBackward; kZeroBubble: kForward, kInputs, kWeights) of every
// micro-batch.  num_chunks: v, of every stage; 1 except for kInterleaved, which needs 2 or more and
// a number of micro-batches that p divides.
Programs compute_order(Schedule schedule, int num_stages, int num_chunks, int64_t micro_batches);

// Adds the sends and receives of all stages.  A channel is a first-in-first-out queue of
// activations or of gradients from one neighbour to another; stage p - 1 and stage 0 are neighbours
// where there are chunks.  An executor may rely on this:
//
//   - the k-th send of a channel meets its k-th receive, and both are of the same pair
//   - a receive comes before the action that reads it; at most two receives of a channel are posted
//     and not yet read; the receive of a gradient comes after the forward of its pair
//   - the programs run to their end even if every send blocks until it is received; receives are
//     only posted, and the action that reads the message waits for it
//
// A neighbour's order of sends is this stage's order of receives, so any programs whose actions can
// run at all may be given.
Programs with_transfers(const Programs& programs);

// Memory of (chunk, micro-batch) pairs: the first action that names a pair takes a slot, and the
// last one frees it.
struct PairSlots {
  int count = 0;
  std::vector<int> of;  // each action's slot: 0 .. count - 1
};
PairSlots slots_of(std::span<const Action> program);
int num_slots(std::span<const Action> program);

}  // namespace ashlar::parallel
