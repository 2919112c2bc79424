#include "ashlar/kernels/peak.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace ashlar::kernels {
namespace {

// Twelve independent chains cover the latency of a multiply-add; the empty asm keeps each round.
constexpr int kChains = 12;
constexpr int64_t kRounds = 200'000;

// One function an instruction set, because a target attribute belongs to a function.
__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) void spin_bf16() {
  const __m512 x = _mm512_setzero_ps();
  __m512 c[kChains] = {x, x, x, x, x, x, x, x, x, x, x, x};
  for (int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      c[i] = _mm512_dpbf16_ps(c[i], (__m512bh)x, (__m512bh)x);
      asm volatile("" : "+v"(c[i]));
    }
  }
}

__attribute__((target("avx512f"))) void spin_avx512() {
  const __m512 x = _mm512_setzero_ps();
  __m512 c[kChains] = {x, x, x, x, x, x, x, x, x, x, x, x};
  for (int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      c[i] = _mm512_fmadd_ps(x, x, c[i]);
      asm volatile("" : "+v"(c[i]));
    }
  }
}

__attribute__((target("avx2,fma"))) void spin_avx2() {
  const __m256 x = _mm256_setzero_ps();
  __m256 c[kChains] = {x, x, x, x, x, x, x, x, x, x, x, x};
  for (int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      c[i] = _mm256_fmadd_ps(x, x, c[i]);
      asm volatile("" : "+x"(c[i]));
    }
  }
}

// Multiply and add apart: plain x86-64 has no fused form.
__attribute__((target("sse2"))) void spin_sse2() {
  const __m128 x = _mm_setzero_ps();
  __m128 c[kChains] = {x, x, x, x, x, x, x, x, x, x, x, x};
  for (int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      c[i] = _mm_add_ps(_mm_mul_ps(c[i], x), x);
      asm volatile("" : "+x"(c[i]));
    }
  }
}

struct Loop {
  void (*run)();
  int64_t flop_per_update;
};

Loop loop_for(DType compute) {
  const Isa best = isa();
  // AMX tiles multiply four times what a bf16 vector does on the cores that have them, but need a
  // tile configuration of their own; their peak is stated in units of the vector path.
  if (compute == DType::kBF16 && best >= Isa::kAvx512Bf16) return {spin_bf16, 64};
  if (best >= Isa::kAvx512) return {spin_avx512, 32};
  if (best >= Isa::kAvx2) return {spin_avx2, 16};
  return {spin_sse2, 8};
}

}  // namespace

double measure_peak_flops(const Context& ctx, DType compute) {
  const Loop loop = loop_for(compute);
  double best = 0.0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    ctx.threads->run(ctx.threads->size(), [&](int64_t, int) { loop.run(); });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, double(ctx.threads->size()) *
                              double(kChains * kRounds * loop.flop_per_update) / seconds);
  }
  return best;
}

}  // namespace ashlar::kernels
