// Launches of kernels/gpu: which expert a token goes to.
#pragma once

#include "ashlar/kernels/gpu/device.h"

namespace ashlar::device {

// router.h: fills r, n and rstd.  gamma null: there is no r_prev.
struct RouterMixForward {
  float* r;
  const float *b, *r_prev, *gamma, *w;
  Elements n;
  float* rstd;
  int64_t rows, width;
  float eps;
  bool by_vectors;
};
std::string launch(const RouterMixForward&);

// router.h: dr, also as dr_low if that is present, and with gamma dr_prev, which may be dr_next.
// dr_next null: there is none.
struct RouterMixBackward {
  Elements dn;
  const float *dr_next, *r, *gamma, *w, *rstd;
  float *dr, *dr_prev;
  Elements dr_low;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const RouterMixBackward&);

// The partials [2, ceil(rows / kPartialRows), width] of db_dn and dw, and with r_prev of dgamma.
struct RouterMixSums {
  Elements dn;
  const float *dr, *r, *r_prev, *rstd;
  float* partials;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const RouterMixSums&);

struct BiasGeluForward {
  const float *z, *b;
  Elements s;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const BiasGeluForward&);

// router.h: dz, and the partials [ceil(rows / kPartialRows), width] of db.
struct BiasGeluBackward {
  Elements ds;
  const float *z, *b;
  Elements dz;
  float* partials;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const BiasGeluBackward&);

// router.h, for any number of classes.
struct RouterSelectForward {
  const float *logits, *bias;
  float* p;
  int32_t* expert;
  float* weight;
  int64_t rows;
  int32_t classes;
};
std::string launch(const RouterSelectForward&);

// expert below 0: the token is padding.
struct RouterSelectBackward {
  const float *dweight, *p;
  const int32_t* expert;
  Elements dlogits;
  int64_t rows;
  int32_t classes;
};
std::string launch(const RouterSelectBackward&);

// topk.h.
inline constexpr int64_t kMaxChoices = 1024;  // of a token
struct TopkForward {
  bool choose_by_logits, renormalize;
  float scale;
  const float *logits, *bias;  // bias null: none
  float *p, *lse, *weight;
  int32_t* expert;
  int64_t tokens, classes, k;
};
std::string launch(const TopkForward&);

// topk.h, with loads of rows of tokens_per_row tokens, or null; balance_scale counts k choices of a
// token.  Also fills the partials [ceil(tokens / kPartialRows), 2] of the losses.
struct TopkBackward {
  bool renormalize;
  float scale, balance_scale, z_scale;
  const float *dweight, *p, *lse, *weight, *loads;
  const int32_t* expert;
  Elements dlogits;
  float* partials;
  int64_t tokens, classes, k, tokens_per_row;
};
std::string launch(const TopkBackward&);

// balance.h.
struct BalanceUpdate {
  double lr, beta1, beta2, eps, correction1, correction2;
  const int64_t* counts;
  float *bias, *first, *second;
  int64_t num_counts, num_trained;
  bool centered;
};
std::string launch(const BalanceUpdate&);

}  // namespace ashlar::device
