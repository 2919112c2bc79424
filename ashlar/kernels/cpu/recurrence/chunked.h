// The recurrence in tiles of kTile tokens: products of matrices instead of steps of tokens.  Real
// is float, with an engine of gemm/, or double, with none: the same algorithm for tests.
#pragma once

#include "ashlar/kernels/cpu/gemm/engine.h"
#include "ashlar/kernels/cpu/recurrence/args.h"

namespace ashlar::kernels::cpu {

// Columns of values that a task of forward takes: whole panels.
int64_t columns_a_task(const RecurrenceArgs& call);

template <typename Real>
void recurrence_forward_chunked(const gemm::Engine* engine, const RecurrenceArgs& call,
                                const Matrix& out, const Tensor& leaving);
template <typename Real>
void recurrence_backward_chunked(const gemm::Engine* engine, const RecurrenceArgs& call,
                                 const RecurrenceGradients& g);
template <typename Real>
void recurrence_maps_chunked(const gemm::Engine* engine, const RecurrenceArgs& call,
                             const RecurrenceMaps& maps);
template <typename Real>
void recurrence_backward_maps_chunked(const gemm::Engine* engine, const RecurrenceArgs& call,
                                      const Matrix& dout, const Tensor& d_made);

}  // namespace ashlar::kernels::cpu
