// The states of a head in the tensors of a call.
#pragma once

#include "ashlar/kernels/cpu/recurrence/head_tiles.h"

namespace ashlar::kernels::cpu {

// Columns [columns.first, + columns.values) of number i of [.., H, dk, dv], in rows of `stride`.
template <typename Real>
class States {
 public:
  States(const RecurrenceArgs& x, int64_t h, const ValueColumns& columns, int64_t stride)
      : x_(x), ops_(row_ops<Real>()), h_(h), columns_(columns), stride_(stride) {}
  int64_t size() const { return x_.shape.dk * stride_; }
  void load(const Tensor& states, int64_t i, Real* M) const {
    if (!states) return void(std::fill_n(M, size(), Real(0)));
    ops_.copy(view(at(states, i), x_.shape.dk, columns_.values, x_.shape.dv), 1, M, stride_);
  }
  void store(const Real* M, const Tensor& states, int64_t i) const {
    if (!states) return;
    ops_.copy(view(M, x_.shape.dk, columns_.values, stride_), 1, at(states, i), x_.shape.dv);
  }

 private:
  Real* at(const Tensor& states, int64_t i) const {
    return states.as<Real>() + (i * x_.shape.H + h_) * x_.state_size() + columns_.first;
  }
  const RecurrenceArgs& x_;
  const RowOps<Real>& ops_;
  int64_t h_;
  ValueColumns columns_;
  int64_t stride_;
};

}  // namespace ashlar::kernels::cpu
