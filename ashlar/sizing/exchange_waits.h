// The waits of a block's compute for the ranks that share its sequences, heads, widths or experts
// (tp, cp, tsp, ep), in closed form.
#pragma once

#include "ashlar/sizing/block_time.h"
#include "ashlar/sizing/machine_rates.h"
#include "ashlar/sizing/rank_weights.h"
#include "ashlar/sizing/step_shape.h"

namespace ashlar::sizing {

struct ExchangeWaits {
  double forward_s = 0, backward_s = 0;
  double turn_pack_s = 0;  // tsp: packing of other ranks' shares, in every pass
};
ExchangeWaits exchange_waits(const StepShape& shape, const BlockSpec& block,
                             const BlockTuning& tuning, const BlockTime& kernels,
                             const RankPass& pass, const MachineRates& rates);

}  // namespace ashlar::sizing
