// Launches of kernels/gpu: norms and the merges before them.
#pragma once

#include "ashlar/kernels/gpu/device.h"

namespace ashlar::device {

// norm.h: (o + bo) ao + (r + br) ar; without vectors beta o + alpha r, where r may be normed first,
// with the weights r_norm and the statistics r_rstd.
struct Merge {
  Elements o, r;
  const float *ao = nullptr, *bo = nullptr, *ar = nullptr, *br = nullptr;
  float alpha = 1, beta = 1;
  const float *r_norm = nullptr, *r_rstd = nullptr;
};

// norm.h: y and rstd of h [rows, width], which is filled first where there is a merge, whose o is
// then present.  w null: the merge alone.
struct NormForward {
  Merge merge = {};
  Elements h;
  const float* w;
  Elements y;
  float* rstd;
  int64_t rows, width;
  float eps, weight_offset;
  bool by_vectors;
};
std::string launch(const NormForward&);

// norm.h: dr = dh; where d_o is present, the shares of a merge without vectors: d_o = beta dh and
// dr = alpha dh.  dr may be h, dh_in or dy_in.  Also fills the partials of dw,
// [ceil(rows / kPartialRows), width].
struct NormBackward {
  Elements dy, h;
  const float *w, *rstd;
  Elements dh_in, dy_in, dr, d_o = {};
  float alpha = 1, beta = 1;
  float* partials;
  int64_t rows, width;
  float weight_offset;
  bool by_vectors;
};
std::string launch(const NormBackward&);

// norm.h: d_o and dr of dh behind a merge; with vectors also the partials
// [4, ceil(rows / kPartialRows), width] of the gradients of ao, bo, ar and br.
struct MergeBackward {
  Merge merge;
  Elements dh, d_o, dr;
  float* partials;
  int64_t rows, width;
  bool by_vectors;
};
std::string launch(const MergeBackward&);

}  // namespace ashlar::device
