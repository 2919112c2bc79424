// The language of kernels: one source for CUDA, HIP and the emulator (docs/gpu.md).  It is defined
// by one of three halves with the same names: cuda.h, hip.h, emulator.h.  A kernel uses the other
// headers of this folder, and nothing of a vendor.
//
//   ASHLAR_KERNEL(n)    a kernel, launched with at most n threads a block
//   ASHLAR_KERNEL(n, b) the same, with registers for b blocks at a time, where nvcc would rather
//                       spill registers than have room for fewer blocks
//   ASHLAR_DEVICE       a function that kernels call
//   ASHLAR_BOTH         a function that kernels and their launches call
//   thread_index(), block_index(), block_size()
//   shared_memory()     of the block, as many bytes as its launch states; undefined at the start
//   sync_block()        waits for all threads of the block, which then see each other's writes
//   sync_lanes()        the same for the 32 threads of a group of lanes
//   lane_xor(x, mask)   x of the lane whose number differs from this one's in the bits of mask
//   lane_reduce(x, f)   f over all lanes, as a butterfly: the same order on every device
//   warp_xor(x, mask)   the same over kWarp threads: for the lane maps of matrix units only
//   add, mul, fma, div, sqrt   rounded to nearest; kernels have no arithmetic of float besides
//                       (strict.h), so that no compiler decides what is fused; all but fma are
//                       also there for double
//   fast_exp2(x)        2^x within 2 ulp, denormals may be 0; its bits are the device's own: for
//                       kernels on matrix units only
//   load_vector, store_vector  16 bytes at an address that is a multiple of 16
//   copy_async(shared, global) 16 bytes, likewise; copy_commit() ends a group of copies.  After
//                       copy_wait<n>() the bytes are there for the thread that issued the copies,
//                       except those of the last n groups; other threads need a barrier too.
//   kWarp               threads that execute together, 32 or 64: for tile.h and sizes of blocks
//   run(kernel, {grid, block, shared_bytes}, args)   launches it, on the host
//
// Rules, which the tests `gpu.sources` and `gpu.races` check: no block waits for another one of its
// launch and there are no atomics, so a sum over blocks is a second launch; sums go over groups of
// 32 lanes whatever kWarp is; every thread of a block reaches every barrier, and no thread ends
// before it.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(ASHLAR_STRICT)
#include "ashlar/kernels/gpu/strict.h"
#elif defined(__CUDACC__)
#include "ashlar/kernels/gpu/cuda.h"
#elif defined(__HIP__)
#include "ashlar/kernels/gpu/hip.h"
#else
#include "ashlar/kernels/gpu/emulator.h"
#endif

namespace ashlar::device {

inline constexpr int kLanes = 32;

// The upper half of a float; converted to nearest even, NaN stays NaN.
struct Bf16 {
  uint16_t bits;
};
ASHLAR_DEVICE float to_float(Bf16 x) {
  return bits_to_float(uint32_t(x.bits) << 16);
}
ASHLAR_DEVICE Bf16 to_bf16(float x) {
  const uint32_t u = float_to_bits(x);
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  return {uint16_t(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

ASHLAR_DEVICE float lane_sum(float x) {
  return lane_reduce(x, [](float a, float b) { return add(a, b); });
}
ASHLAR_DEVICE float lane_max(float x) {
  return lane_reduce(x, [](float a, float b) { return a > b ? a : b; });
}

// The sum over the block: over lanes, then over their groups in order.  room: a float per group,
// which may be written again after the next barrier.
ASHLAR_DEVICE float block_sum(float x, float* room) {
  x = lane_sum(x);
  if (thread_index() % kLanes == 0) room[thread_index() / kLanes] = x;
  sync_block();
  float sum = 0;
  for (int i = 0; i < block_size() / kLanes; ++i) sum = add(sum, room[i]);
  return sum;
}

}  // namespace ashlar::device
