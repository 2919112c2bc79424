// A chunk of one token, as decoding has them: no tile, but one pass over the state, or two with the
// delta rule.
#pragma once

#include "ashlar/kernels/cpu/recurrence/head_tiles.h"

namespace ashlar::kernels::cpu {

// Elements of scratch that run_token takes.
int64_t token_scratch(const RecurrenceArgs& x);
// The token of `chunk` in columns [first, first + values) of head h: fills out, and leaving or,
// where that is absent, `state` [dk, dv], which is scratch too.
template <typename Real>
void run_token(const RecurrenceArgs& x, int64_t chunk, int64_t h, const ValueColumns& columns,
               const Matrix& out, const Tensor& leaving, Real* state, Real* scratch);

}  // namespace ashlar::kernels::cpu
