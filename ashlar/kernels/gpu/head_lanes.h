// A head over 32 lanes.  A lane has pairs of elements that RoPE turns together, half of rotary_dim
// apart, and some of the elements behind them.  Shape: a struct of launch.h with head_dim,
// rotary_dim, positions and table.
#pragma once

#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {

inline constexpr int kHeadPairs = int(kMaxHeadWidth) / 2 / kLanes;  // of a lane, at most
inline constexpr int kHeadOthers = int(kMaxHeadWidth) / kLanes;     // likewise
inline constexpr int kHeadSlots = 2 * kHeadPairs + kHeadOthers;

// A lane's elements: firsts of pairs, seconds, others.  Those that a head does not have are 0.
struct HeadElements {
  float at[kHeadSlots] = {};
};

// Calls use(slot, i) for the lane's elements i of a head.
template <typename Shape, typename Use>
ASHLAR_DEVICE void for_elements(const Shape& s, Use use) {
  const int lane = thread_index() % kLanes, half = int(s.rotary_dim) / 2;
#pragma unroll
  for (int k = 0; k < kHeadPairs; ++k) {
    const int i = lane + k * kLanes;
    if (i >= half) continue;
    use(k, i);
    use(kHeadPairs + k, half + i);
  }
#pragma unroll
  for (int k = 0; k < kHeadOthers; ++k) {
    const int i = int(s.rotary_dim) + lane + k * kLanes;
    if (i < s.head_dim) use(2 * kHeadPairs + k, i);
  }
}

template <typename Shape>
ASHLAR_DEVICE HeadElements load_head(const Shape& s, const Elements& from, int64_t at) {
  HeadElements x;
  for_elements(s, [&](int slot, int i) { x.at[slot] = load_element(from, at + i); });
  return x;
}
template <typename Shape>
ASHLAR_DEVICE void store_head(const Shape& s, const HeadElements& x, const Elements& to,
                              int64_t at) {
  for_elements(s, [&](int slot, int i) { store_element(x.at[slot], to, at + i); });
}

// Turns a head by the angles of its token, or back by them.
template <typename Shape>
ASHLAR_DEVICE void rotate(const Shape& s, HeadElements& x, int64_t token, float direction) {
  const int lane = thread_index() % kLanes, half = int(s.rotary_dim) / 2;
  if (half == 0) return;
  const float* angles = s.table + s.positions[token] * s.rotary_dim;
#pragma unroll
  for (int k = 0; k < kHeadPairs; ++k) {
    const int i = lane + k * kLanes;
    if (i >= half) continue;
    const float first = x.at[k], second = x.at[kHeadPairs + k];
    const float cosine = angles[i], sine = mul(direction, angles[half + i]);
    x.at[k] = fma(-second, sine, mul(first, cosine));
    x.at[kHeadPairs + k] = fma(first, sine, mul(second, cosine));
  }
}

}  // namespace ashlar::device
