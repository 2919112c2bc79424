// moe.h: SwiGLU, each element by itself.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/math.h"
#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {
namespace {

// One pack of a row of act, if the row is in use.
struct SwigluPack {
  bool in_use;
  int64_t gate, up, act;  // numbers of first elements
  Extent extent;
};
template <typename Args>
ASHLAR_DEVICE SwigluPack swiglu_pack(const Args& x, int64_t i) {
  const Place p = place_of(i, x.rows, (x.width + kPack - 1) / kPack);
  const int64_t column = p.column * kPack, gate = p.row * 2 * x.width + column;
  return {.in_use = !x.row_of_expert || p.row < x.row_of_expert[x.num_experts],
          .gate = gate,
          .up = gate + x.width,
          .act = p.row * x.width + column,
          .extent = {x.width - column, x.by_vectors}};
}
template <typename Args>
ASHLAR_DEVICE int64_t num_packs(const Args& x) {
  return x.rows * ((x.width + kPack - 1) / kPack);
}

ASHLAR_KERNEL(kEachThreads) swiglu_forward_kernel(SwigluForward x) {
  for_each_of_block(num_packs(x), [&](int64_t i) {
    const SwigluPack p = swiglu_pack(x, i);
    if (!p.in_use) return;
    const Pack gate = load_pack(x.gate_up, p.gate, p.extent);
    const Pack up = load_pack(x.gate_up, p.up, p.extent);
    Pack act;
#pragma unroll
    for (int j = 0; j < kPack; ++j) act.at[j] = mul(mul(gate.at[j], sigmoid(gate.at[j])), up.at[j]);
    store_pack(act, x.act, p.act, p.extent);
  });
}

ASHLAR_KERNEL(kEachThreads) swiglu_backward_kernel(SwigluBackward x) {
  for_each_of_block(num_packs(x), [&](int64_t i) {
    const SwigluPack p = swiglu_pack(x, i);
    if (!p.in_use) return;
    const Pack gate = load_pack(x.gate_up, p.gate, p.extent);
    const Pack up = load_pack(x.gate_up, p.up, p.extent);
    const Pack dact = load_pack(x.dact, p.act, p.extent);
    Pack dgate, dup;
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      // silu(g) = g s, whose slope is s (1 + g (1 - s)), with s = sigmoid(g).
      const float g = gate.at[j], s = sigmoid(g);
      const float slope = mul(s, fma(g, add(1.0f, -s), 1.0f));
      dgate.at[j] = mul(mul(dact.at[j], up.at[j]), slope);
      dup.at[j] = mul(dact.at[j], mul(g, s));
    }
    store_pack(dgate, x.dgate_up, p.gate, p.extent);
    store_pack(dup, x.dgate_up, p.up, p.extent);
  });
}

}  // namespace

std::string launch(const SwigluForward& x) {
  const int64_t packs = x.rows * ((x.width + kPack - 1) / kPack);
  return run(swiglu_forward_kernel, {blocks_for_each(packs), kEachThreads, 0}, x);
}
std::string launch(const SwigluBackward& x) {
  const int64_t packs = x.rows * ((x.width + kPack - 1) / kPack);
  return run(swiglu_backward_kernel, {blocks_for_each(packs), kEachThreads, 0}, x);
}

}  // namespace ashlar::device
