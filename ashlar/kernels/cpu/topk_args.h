// The rows of topk.h on the vectors of isa(); one call per task of tokens [begin, end).
#pragma once

#include <algorithm>

#include "ashlar/kernels/cpu/elementwise.h"
#include "ashlar/kernels/moe.h"

namespace ashlar::kernels::cpu {

template <typename T>
struct TopkArgs {
  int64_t E, k;
  bool choose_by_logits, renormalize;
  T scale;
  Cells<T> logits, bias, p, lse, weight;  // bias may be absent
  int32_t* expert;
};
void topk_rows_fast(const TopkArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct TopkGradientArgs {
  int64_t E, k, tokens_per_row;
  bool renormalize;
  double balance_scale;
  T scale, z_scale;
  Cells<T> dweight, p, lse, weight, loads, dlogits;  // loads may be absent
  const int32_t* expert;
};
// partial: the two losses.
void topk_gradient_rows_fast(const TopkGradientArgs<float>& args, int64_t begin, int64_t end,
                             float* partial);

// The factor of a row's loads in the balancing loss of its tokens; tokens must be visited in order.
template <typename T>
class RowScale {
 public:
  explicit RowScale(const TopkGradientArgs<T>& args) : x(args) {}
  T of_token(int64_t t) {
    if (!x.loads || t / x.tokens_per_row == row_) return scale_;
    row_ = t / x.tokens_per_row;
    double choices = 0;
    for (int64_t e = 0; e < x.E; ++e) choices += double(x.loads[row_ * x.E + e]);
    return scale_ = choices == 0 ? T(0) : T(x.balance_scale / (choices / double(x.k)));
  }

 private:
  const TopkGradientArgs<T>& x;
  int64_t row_ = -1;
  T scale_ = 0;
};

// Puts the k experts of largest score(e), ties to the lowest, into `best`, in ascending order; k
// different ones whatever the scores are.
template <typename Score>
void choose(int64_t num_experts, int64_t k, Score score, int32_t* best) {
  // best[0 .. count) are the best so far, the best of all first.
  for (int64_t e = 0, count = 0; e < num_experts; ++e) {
    const auto value = score(e);
    if (count == k && !(value > score(best[k - 1]))) continue;
    int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && value > score(best[at - 1]); --at) best[at] = best[at - 1];
    best[at] = int32_t(e);
  }
  std::sort(best, best + k);
}

// The weights of a token's chosen experts from its logits and probabilities.
template <typename T>
void weigh_chosen(const TopkArgs<T>& x, int64_t t, T (*exponential)(T)) {
  const int32_t* best = x.expert + t * x.k;
  const int64_t row = t * x.E;
  if (!x.renormalize) {
    for (int64_t j = 0; j < x.k; ++j) x.weight.set(t * x.k + j, x.scale * x.p[row + best[j]]);
    return;
  }
  T largest = x.logits[row + best[0]], sum = 0;
  for (int64_t j = 1; j < x.k; ++j) largest = std::max(largest, x.logits[row + best[j]]);
  for (int64_t j = 0; j < x.k; ++j) {
    const T e = exponential(x.logits[row + best[j]] - largest);
    x.weight.set(t * x.k + j, e);
    sum += e;
  }
  for (int64_t j = 0; j < x.k; ++j)
    x.weight.set(t * x.k + j, x.scale * (x.weight[t * x.k + j] / sum));
}

// The gradient that the weights of a token's chosen experts send to its logits:
// extra(j) for the j-th chosen expert, less p_i common() for every expert i.
template <typename T>
struct ChosenGradient {
  T through_weights = 0;  // sum over the chosen of the gradient of each weight times what it is

  ChosenGradient(const TopkGradientArgs<T>& args, int64_t token) : x(args), t(token) {
    for (int64_t j = 0; j < x.k; ++j)
      through_weights += x.dweight[t * x.k + j] * x.weight[t * x.k + j];
  }
  // The part through the probabilities of all experts, on which renormalized weights do not depend.
  T common() const { return x.renormalize ? T(0) : through_weights; }
  T extra(int64_t j) const {
    const T weight = x.weight[t * x.k + j], dweight = x.dweight[t * x.k + j];
    if (!x.renormalize) return weight * dweight;
    return weight * (dweight - through_weights / x.scale);
  }

 private:
  const TopkGradientArgs<T>& x;
  int64_t t;
};

}  // namespace ashlar::kernels::cpu
