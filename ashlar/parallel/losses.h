// The losses of a step: their sums, and the memory into which the layers write them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ashlar/kernels/copy.h"

namespace ashlar::parallel {

// Losses of `count` targets, added up.
struct LossSum {
  double sum = 0.0;
  double count = 0.0;  // exact below 2^53
  // The routers' losses in a step, as they are added to its mean loss (nn::StepLosses).
  double aux_loss = 0.0, z_loss = 0.0;
  // With ep: rounds in which rows went to experts, and mixtures of micro-batches that took them.
  double rounds = 0.0, mixtures = 0.0;
  LossSum& operator+=(const LossSum& other);
};

// All members.  Ranks add up the first 2, with losses of routers 4, with ep all.
inline constexpr std::array kLossMembers = {&LossSum::sum,    &LossSum::count,  &LossSum::aux_loss,
                                            &LossSum::z_loss, &LossSum::rounds, &LossSum::mixtures};

// Keeps the losses of all micro-batches of a step in memory of the device, so that the host waits
// for them once, at the end of the step.
//
// Memory   on the device an element for every token of the step, and two for every micro-batch and
//          router; on the host 8 bytes for each of these.
class LossTable {
 public:
  // num_tokens: tokens of a micro-batch whose loss this rank computes.  num_routers: routers here
  // that have losses.
  LossTable(Arena& arena, DType dtype, int64_t micro_batches, int64_t num_tokens,
            int64_t num_routers);

  // The tensors that the layers fill: [num_tokens], 0 where a token has no target; and [2], as
  // nn::ExpertLoad::losses_2.
  Tensor of_tokens(int64_t micro_batch) const;
  Tensor of_router(int64_t micro_batch, int64_t router) const;

  kernels::Download result() { return {.from = rows_, .reals = host_}; }  // all of it
  const Tensor& rows() const { return rows_; }
  void download_tokens(const kernels::Context&, int64_t micro_batch);
  // After: a download.  Sums in fp64, one after another.
  double sum_of_tokens(int64_t micro_batch) const;
  void add_router(int64_t micro_batch, int64_t router, LossSum& sum) const;

 private:
  int64_t row_numel() const { return num_tokens_ + 2 * num_routers_; }
  int64_t num_tokens_, num_routers_;
  Tensor rows_;               // by micro-batch: of its tokens, then of its routers
  std::vector<double> host_;  // the same; empty on meta
};

}  // namespace ashlar::parallel
