// The time that the programs of a pipeline take, action by action, on stages that do nothing else.
//
// A stage runs its actions in order.  Forward of virtual stage n waits for the output of n - 1,
// backward for the gradient of n + 1.  In programs with transfers (schedule.h) they wait for their
// receives: the k-th send of a channel meets its k-th receive when both have been posted and the
// earlier messages of the channel have arrived; it arrives transfer_s later.  In programs without
// transfers a result is available at once where it is read.
#pragma once

#include <string>
#include <vector>

#include "ashlar/parallel/schedule.h"

namespace ashlar::parallel {

// Times of one chunk and micro-batch.  kBackward takes inputs_s + weights_s.
struct ActionTimes {
  double forward_s = 1, inputs_s = 1, weights_s = 1, transfer_s = 0;
};

// kPost: a stage continues once it has posted a send.  kWait: once the send has been received.
enum class Sends : uint8_t { kPost, kWait };

struct Interval {
  double begin_s = 0, end_s = 0;  // a receive: posted, arrived; a send: posted, received
};

struct Simulation {
  std::vector<std::vector<Interval>> times;  // by stage and action
  double end_s = 0;
  double bubble_share = 0;  // share of the stages' time until end_s in which they are idle
  std::string problem;  // "", or a deadlock with the stages in it, or messages that do not match
};
Simulation simulate(const Programs& programs, const ActionTimes& times = {},
                    Sends sends = Sends::kPost);

// The idle time of a stage of compute_order(...), without transfers, by formula:
//   kGpipe, k1f1b, kInterleaved   (p - 1) (F + I + W), with the times of a chunk: if a stage's
//                                 blocks are cut into v chunks, a v-th of the time with one
//   kZeroBubble                   (p - 1) (F + I - W) where m >= p and F = I = W; each of the p - m
//                                 micro-batches that are missing to fill the pipeline adds F
double bubble_s(Schedule schedule, int num_stages, int64_t micro_batches, const ActionTimes& times);

}  // namespace ashlar::parallel
