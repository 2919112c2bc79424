// output_gate.h: each element by itself.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/math.h"
#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {
namespace {

ASHLAR_KERNEL(kEachThreads) output_gate_forward_kernel(OutputGateForward x) {
  for_each_of_block(x.rows * packs_of(x.width), [&](int64_t i) {
    const PackPlace p = pack_place(i, x.rows, x.width, x.by_vectors);
    const int64_t at = p.row * x.width + p.column;
    const Pack att = load_pack(x.att, at, p.extent);
    const Pack gate = load_pack(x.gate, p.row * x.gate_stride + p.column, p.extent);
    Pack y;
#pragma unroll
    for (int j = 0; j < kPack; ++j) y.at[j] = mul(att.at[j], sigmoid(gate.at[j]));
    store_pack(y, x.y, at, p.extent);
  });
}

ASHLAR_KERNEL(kEachThreads) output_gate_backward_kernel(OutputGateBackward x) {
  for_each_of_block(x.rows * packs_of(x.width), [&](int64_t i) {
    const PackPlace p = pack_place(i, x.rows, x.width, x.by_vectors);
    const int64_t at = p.row * x.width + p.column;
    const Pack dy = load_pack(x.dy, at, p.extent), att = load_pack(x.att, at, p.extent);
    const Pack gate = load_pack(x.gate, p.row * x.gate_stride + p.column, p.extent);
    Pack datt, dgate;
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      const float s = sigmoid(gate.at[j]);
      datt.at[j] = mul(dy.at[j], s);
      dgate.at[j] = mul(mul(datt.at[j], att.at[j]), add(1.0f, -s));
    }
    store_pack(datt, x.datt, at, p.extent);
    store_pack(dgate, x.dgate, p.row * x.dgate_stride + p.column, p.extent);
  });
}

}  // namespace

std::string launch(const OutputGateForward& x) {
  return run(output_gate_forward_kernel,
             {blocks_for_each(x.rows * packs_of(x.width)), kEachThreads, 0}, x);
}
std::string launch(const OutputGateBackward& x) {
  return run(output_gate_backward_kernel,
             {blocks_for_each(x.rows * packs_of(x.width)), kEachThreads, 0}, x);
}

}  // namespace ashlar::device
