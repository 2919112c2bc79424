// The packed forms of weights.
#include <algorithm>

#include "ashlar/kernels/cpu/gemm/drive.h"

namespace ashlar::kernels::cpu::gemm {

void pack_weights(const Context& ctx, const Engine& engine, int64_t num_groups, int64_t K,
                  int64_t N, const Tensor& w, bool transposed, std::byte* panels) {
  const int64_t num_panels = engine.num_panels(N), panel_bytes = engine.panel_bytes(K);
  parallel_for(*ctx.threads, num_groups * num_panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t g = i / num_panels, col = i % num_panels * engine.width;
      const int64_t cols = std::min(engine.width, N - col);
      const std::byte* group = w.data + g * N * K * size_of(w.dtype);
      if (transposed)
        engine.pack_panel_transposed(Source{group, w.dtype, K}.at(col, 0), K, cols, false,
                                     panels + i * panel_bytes);
      else
        engine.pack_panel(Source{group, w.dtype, N}.at(0, col), K, cols, false,
                          panels + i * panel_bytes);
    }
  });
}

void pack_operand(const Context& ctx, const Engine& engine, int64_t num_groups, int64_t N,
                  int64_t K, const Tensor& w, std::byte* forward, std::byte* backward) {
  constexpr int64_t kLine = 64;
  const int64_t block_size = engine.width;
  const bool aligned = (uintptr_t(forward) | uintptr_t(backward)) % kLine == 0;
  if (!backward || !engine.pack_both || w.dtype != DType::kF32 || N % block_size ||
      K % block_size || !aligned) {
    pack_weights(ctx, engine, num_groups, K, N, w, true, forward);
    if (backward) pack_weights(ctx, engine, num_groups, N, K, w, false, backward);
    return;
  }
  const int64_t blocks = N / block_size, forward_bytes = engine.panel_bytes(K),
                backward_bytes = engine.panel_bytes(N),
                group_bytes = K / block_size * backward_bytes;
  ctx.threads->run(num_groups * blocks, [&](int64_t i, int) {
    const int64_t g = i / blocks, block = i % blocks;
    engine.pack_both(
        Source{w.data, w.dtype, K}.at(i * block_size, 0), K, forward + i * forward_bytes,
        backward + g * group_bytes + block * engine.panel_bytes(block_size), backward_bytes);
  });
}

}  // namespace ashlar::kernels::cpu::gemm
