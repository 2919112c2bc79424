#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>

#include "ashlar/core/clock.h"
#include "ashlar/kernels/cpu/gemm/amx_tiles.h"
#include "ashlar/kernels/cpu/ops.h"
#include "ashlar/kernels/isa.h"

namespace ashlar::kernels::cpu {
namespace {

// Twelve independent chains cover the latency of a multiply-add, two a cycle; that of the bf16
// product is six cycles on some processors, where twelve would only just do.  The empty asm keeps
// each round.
constexpr int kChains = 12, kBf16Chains = 20;

// One function an instruction set, because a target attribute belongs to a function.
__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) void spin_bf16(int64_t rounds) {
  const __m512 x = _mm512_setzero_ps();
  __m512 c[kBf16Chains] = {x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 20
    for (int i = 0; i < kBf16Chains; ++i) {
      c[i] = _mm512_dpbf16_ps(c[i], (__m512bh)x, (__m512bh)x);
      asm volatile("" : "+v"(c[i]));
    }
  }
}

__attribute__((target("avx512f"))) void spin_avx512(int64_t rounds) {
  const __m512 x = _mm512_setzero_ps();
  __m512 c[kChains] = {x, x, x, x, x, x, x, x, x, x, x, x};
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      c[i] = _mm512_fmadd_ps(x, x, c[i]);
      asm volatile("" : "+v"(c[i]));
    }
  }
}

__attribute__((target("avx2,fma"))) void spin_avx2(int64_t rounds) {
  const __m256 x = _mm256_setzero_ps();
  __m256 c[kChains] = {x, x, x, x, x, x, x, x, x, x, x, x};
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      c[i] = _mm256_fmadd_ps(x, x, c[i]);
      asm volatile("" : "+x"(c[i]));
    }
  }
}

// Multiply and add apart: plain x86-64 has no fused form.
__attribute__((target("sse2"))) void spin_sse2(int64_t rounds) {
  const __m128 x = _mm_setzero_ps();
  __m128 c[kChains] = {x, x, x, x, x, x, x, x, x, x, x, x};
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      c[i] = _mm_add_ps(_mm_mul_ps(c[i], x), x);
      asm volatile("" : "+x"(c[i]));
    }
  }
}

// Rounds that take about a millisecond, and the flop of one.
struct SpinLoop {
  void (*run)(int64_t rounds);
  int64_t rounds, flop_per_round;
};

SpinLoop spin_loop_for(DType compute) {
  constexpr int64_t kRounds = 200'000;
  const Isa best = isa();
  if (compute == DType::kBF16 && best == Isa::kAmx)
    return {amx::spin, kRounds / 10, amx::kPeakChains * amx::kFlopPerMultiply};
  if (compute == DType::kBF16 && best >= Isa::kAvx512Bf16)
    return {spin_bf16, kRounds, kBf16Chains * 64};
  if (best >= Isa::kAvx512) return {spin_avx512, kRounds, kChains * 32};
  if (best >= Isa::kAvx2) return {spin_avx2, kRounds, kChains * 16};
  return {spin_sse2, kRounds, kChains * 8};
}

double best_seconds(int repeats, const std::function<void()>& body) {
  using Clock = std::chrono::steady_clock;
  double best = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto start = Clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

}  // namespace

double measure_peak_flops(const Context& ctx, DType compute) {
  const SpinLoop loop = spin_loop_for(compute);
  const int64_t num_threads = ctx.threads->size();
  return double(num_threads * loop.rounds * loop.flop_per_round) / best_seconds(3, [&] {
           ctx.threads->run(num_threads, [&](int64_t, int) { loop.run(loop.rounds); });
         });
}

int64_t flop_within(const Context& ctx, DType compute, double seconds) {
  const SpinLoop loop = spin_loop_for(compute);
  const int64_t rounds = loop.rounds / 20, num_threads = ctx.threads->size();
  std::atomic<int64_t> done{0};
  const auto start = Clock::now();
  ctx.threads->run(num_threads, [&](int64_t, int) {
    for (; seconds_since(start) < seconds; done += rounds) loop.run(rounds);
  });
  return done * loop.flop_per_round;
}

bool bf16_is_faster(const Context&) {
  if (isa() == Isa::kAmx) return true;
  if (isa() != Isa::kAvx512Bf16) return false;
  // Taken in turns, so that a load that halves the rate of one for a while is there for the other
  // too.
  static const bool faster = [] {
    constexpr int64_t kRounds = 5'000, kBf16Rounds = kRounds * kChains / kBf16Chains;
    double bf16 = std::numeric_limits<double>::infinity(), fp32 = bf16;
    for (int turn = 0; turn < 20; ++turn) {
      bf16 = std::min(bf16, best_seconds(1, [] { spin_bf16(kBf16Rounds); }));
      fp32 = std::min(fp32, best_seconds(1, [] { spin_avx512(kRounds); }));
    }
    return bf16 < 2 * fp32;  // an instruction multiplies twice as many bf16 numbers
  }();
  return faster;
}

}  // namespace ashlar::kernels::cpu
