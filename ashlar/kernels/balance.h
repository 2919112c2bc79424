// One update of the selection biases of a router by the loads of its experts.
//
//   g_e = count_e / sum of all counts - 1 / num_trained
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   b = b - lr (m / correction1) / (sqrt(v / correction2) + eps)
//   centered: the mean of the trained biases is then subtracted from each of them
//
// Source   the rule and its choices: optim/balance.h.
// Shapes   counts [E+1] I64, choices of each class; b m v [X], X = E+1, or E without a skip class.
//          The first num_trained classes are updated; the others keep what they have.
// Types    b m v: F32 or F64 of one type.
// Cost     15 flop a class; latency-bound.
// Numerics fp64, class after class, rounded where a value is stored.  Where all counts are 0
//          nothing changes.
#pragma once

#include "ashlar/kernels/context.h"

namespace ashlar::kernels {

struct BalanceRates {
  double lr, beta1, beta2, eps;
  double correction1, correction2;  // 1 - beta^t
};
struct BalanceUpdate {
  BalanceRates rates;
  int64_t num_trained;
  bool centered;
  Tensor counts_E1;
  Tensor bias_X, first_X, second_X;  // updated
};
void balance_update(const Context&, const BalanceUpdate&);

}  // namespace ashlar::kernels
