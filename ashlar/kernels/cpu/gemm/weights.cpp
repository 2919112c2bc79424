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

int64_t rows_packed_at_once(const Engine& engine, const Operand& w) {
  constexpr uintptr_t kLine = 64;
  const bool aligned = (uintptr_t(w.forward.data) | uintptr_t(w.backward.data)) % kLine == 0;
  const bool whole = w.n() % engine.width == 0 && w.k() % engine.width == 0;
  return w.backward && engine.pack_both && w.w.dtype == DType::kF32 && whole && aligned
             ? engine.width
             : 0;
}

void pack_row_block(const Engine& engine, const Operand& w, int64_t block) {
  const int64_t N = w.n(), K = w.k(), size = engine.width, blocks = N / size;
  const int64_t backward_bytes = engine.panel_bytes(N), group_bytes = K / size * backward_bytes;
  engine.pack_both(
      Source{w.w.data, w.w.dtype, K}.at(block * size, 0), K,
      w.forward.data + block * engine.panel_bytes(K),
      w.backward.data + block / blocks * group_bytes + block % blocks * engine.panel_bytes(size),
      backward_bytes);
}

void pack_operand(const Context& ctx, const Engine& engine, const Operand& w) {
  const int64_t G = w.groups(), N = w.n(), K = w.k();
  if (const int64_t size = rows_packed_at_once(engine, w))
    return ctx.threads->run(G * N / size,
                            [&](int64_t block, int) { pack_row_block(engine, w, block); });
  pack_weights(ctx, engine, G, K, N, w.w, true, w.forward.data);
  if (w.backward) pack_weights(ctx, engine, G, N, K, w.w, false, w.backward.data);
}

}  // namespace ashlar::kernels::cpu::gemm
