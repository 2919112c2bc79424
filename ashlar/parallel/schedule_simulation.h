// What the programs of a pipeline take, action by action, on stages that do nothing else.
//
// A stage runs its actions in order.  Forward of virtual stage n waits for the output of n - 1,
// backward for the gradient of n + 1.  In programs with transfers (schedule.h) they wait for their
// receives: the k-th send of a channel meets its k-th receive when both have been posted and what
// was sent before on the channel has arrived; it arrives transfer_s later.  In programs without,
// what a stage makes is at once where it is read.
#pragma once

#include <string>
#include <vector>

#include "ashlar/parallel/schedule.h"

namespace ashlar::parallel {

// Of one chunk and micro-batch.  kBackward takes inputs_s + weights_s.
struct ActionTimes {
  double forward_s = 1, inputs_s = 1, weights_s = 1, transfer_s = 0;
};

// kPost: a stage goes on when it has posted a send.  kWait: when the other side has taken it.
enum class Sends : uint8_t { kPost, kWait };

struct Interval {
  double begin_s = 0, end_s = 0;  // of a receive: posted, arrived; of a send: posted, taken
};

struct Simulation {
  std::vector<std::vector<Interval>> times;  // by stage and action
  double end_s = 0;
  double bubble_share = 0;  // of the stages' time until end_s: not in forward or backward
  std::string problem;      // "", or which stages wait for what for ever, or what does not match
};
Simulation simulate(const Programs& programs, const ActionTimes& times = {},
                    Sends sends = Sends::kPost);

// The time that a stage of compute_order(...) does not compute, without transfers, by formula:
//   kGpipe, k1f1b, kInterleaved   (p - 1) (F + I + W), of the times of a chunk: with the blocks of a
//                                 stage cut into v chunks a v-th of what it is with one
//   kZeroBubble                   (p - 1) (F + I - W) where m >= p and F = I = W; the p - m
//                                 micro-batches that lack to fill the pipeline add F each
double bubble_s(Schedule schedule, int num_stages, int64_t micro_batches, const ActionTimes& times);

}  // namespace ashlar::parallel
