// A call of recurrence.h with whom it runs on, and one value head of it token by token: what the
// plain reference and the tiles share.
#pragma once

#include <cmath>

#include "ashlar/kernels/cpu/elementwise.h"
#include "ashlar/kernels/recurrence.h"

namespace ashlar::kernels::cpu {

struct RecurrenceArgs : Recurrence {
  const Context& ctx;
  DType compute;

  int64_t state_size() const { return shape.dk * shape.dv; }
  bool has_beta() const { return bool(beta_TH); }
  bool starts_document(int64_t t) const { return sequence.position_T()[size_t(t)] == 0; }
};

// The inputs of head h at token t, as A.
template <typename A>
struct HeadOfRecurrence {
  HeadOfRecurrence(const RecurrenceArgs& call, int64_t head)
      : x(call),
        h(head),
        j(head / (call.shape.H / call.shape.K)),
        q_cells(call.q),
        k_cells(call.k),
        v_cells(call.v),
        decay_cells(call.log_decay),
        beta_cells(call.beta_TH) {}

  A q(int64_t t, int64_t c) const { return q_cells[t * x.q.stride + j * x.shape.dk + c]; }
  A k(int64_t t, int64_t c) const { return k_cells[t * x.k.stride + j * x.shape.dk + c]; }
  A v(int64_t t, int64_t e) const { return v_cells[t * x.v.stride + h * x.shape.dv + e]; }
  A beta(int64_t t) const { return beta_cells[t * x.shape.H + h]; }
  A log_decay(int64_t t, int64_t c) const {
    switch (x.decay) {
      case Decay::kNone:
        return 0;
      case Decay::kHead:
        return decay_cells[h];
      case Decay::kToken:
        return decay_cells[t * x.shape.H + h];
      case Decay::kChannel:
        return decay_cells[(t * x.shape.H + h) * x.shape.dk + c];
    }
    return 0;
  }

  const RecurrenceArgs& x;
  const int64_t h, j;  // of v; of q and k
  const Cells<A> q_cells, k_cells, v_cells, decay_cells, beta_cells;
};

struct RecurrenceMaps {
  Tensor transition, made;
};

void recurrence_forward_reference(const RecurrenceArgs& call, const Matrix& out,
                                  const Tensor& leaving);
void recurrence_backward_reference(const RecurrenceArgs& call, const RecurrenceGradients& g);
void recurrence_maps_reference(const RecurrenceArgs& call, const RecurrenceMaps& maps);
void recurrence_backward_maps_reference(const RecurrenceArgs& call, const Matrix& dout,
                                        const Tensor& d_made);

}  // namespace ashlar::kernels::cpu
