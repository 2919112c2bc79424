// How it works.  Keys and values are packed once; then a task is a block of 64 queries of a head:
//
//   for each pass of BlockRanges       one, unless a document's keys come in pieces
//     for each block of 64 keys        that a query of the block sees
//       scores = q K^T                 without rows that see no key of the block
//       softmax                        scores become P; the row's sum and maximum are updated
//       out += P V
//   out / sum, and lse
//
// Softmax has two forms.  With bf16 products a task first runs `bounded`: exponentials without a
// maximum, which saves scaling `out`, with P written as bf16 at once.  If a score is too large for
// it, the task starts again with the online softmax, which products in fp32 always use.  The scores
// alone decide which form runs, so bits do not depend on threads.
#include <array>
#include <cmath>

#include "ashlar/kernels/cpu/attention/blocks.h"

namespace ashlar::kernels::cpu {
namespace {

using gemm::Engine;

// Keys and values of every block, packed once: K^T [D, 64] and V [64, V] per (kv head, block).
struct PackedKeys {
  int64_t key_bytes, value_bytes, blocks;
  std::byte* data = nullptr;

  PackedKeys(const Engine& e, const AttentionArgs& call)
      : key_bytes(packed_bytes(e, call.shape.D, kBlock)),
        value_bytes(packed_bytes(e, kBlock, call.shape.V)),
        blocks(num_blocks(num_key_rows(call))) {
    const int64_t bytes = call.shape.K * blocks * (key_bytes + value_bytes);
    const Tensor memory = call.ctx.workspace->take(DType::kU8, {bytes});
    data = memory.data;
  }
  std::byte* key(int64_t j, int64_t block) const {
    return data + (j * blocks + block) * (key_bytes + value_bytes);
  }
  std::byte* value(int64_t j, int64_t block) const { return key(j, block) + key_bytes; }

  void fill(const Engine& e, const AttentionArgs& call) const {
    const int64_t K = call.shape.K, D = call.shape.D, V = call.shape.V;
    call.ctx.threads->run(K * blocks, [&](int64_t task, int) {
      const int64_t j = task / blocks, block = task % blocks, row = block * kBlock;
      const int64_t rows = std::min(kBlock, num_key_rows(call) - row);
      // A block that is not full is packed as if it were: its last columns and rows are zeros.
      pack_block(e, source_of(call.k, row, j * D, K * D), D, rows, true, key(j, block));
      if (rows < kBlock) zero_columns(e, D, rows, key(j, block));
      for (int64_t c = 0; c < V; c += e.width)
        pack_values(e, source_of(call.v, row, j * V + c, K * V), rows, std::min(e.width, V - c),
                    value(j, block) + c / e.width * e.panel_bytes(kBlock));
    });
  }

 private:
  static void zero_columns(const Engine& e, int64_t num_k, int64_t columns, std::byte* packed) {
    const int64_t used = e.num_panels(columns) * e.panel_bytes(num_k);
    std::fill(packed + used, packed + e.num_panels(kBlock) * e.panel_bytes(num_k), std::byte{0});
  }
  static void pack_values(const Engine& e, const gemm::Source& source, int64_t rows,
                          int64_t columns, std::byte* panel) {
    e.pack_panel(source, rows, columns, e.round, panel);
    std::fill(panel + e.panel_bytes(rows), panel + e.panel_bytes(kBlock), std::byte{0});
  }
};

// One task's tiles.  `sums` serves the bounded form, `max` and `sum` the online one.
struct ForwardScratch {
  alignas(64) std::array<float, kBlock * kBlock> scores;
  alignas(64) std::array<float, kBlock*(kMaxHeadDim + kBlock)> out;
  alignas(64) std::array<std::byte, kBlock * kMaxHeadDim * sizeof(float)> q;
  alignas(64) std::array<std::byte, kBlock * kBlock * sizeof(float)> p;
  alignas(64) std::array<RowSums, kBlock> sums;
  std::array<float, kBlock> max, sum;
};

// Runs one block of queries of one head against all keys that it sees.  `bounded` takes products of
// bf16 and scores that are not large: returns false, with nothing stored, if one was.
bool forward_block(const Engine& e, const AttentionArgs& call, const KeyLinks& links,
                   const PackedKeys& packed, int64_t block, int64_t h, bool bounded) {
  const int64_t N = call.shape.N, D = call.shape.D, V = call.shape.V, j = h / (N / call.shape.K);
  const int64_t out_stride = e.num_panels(V) * e.width, row = block * kBlock;
  const int64_t rows = std::min(kBlock, call.queries.num_tokens() - row);
  const float scale = float(call.shape.scale);
  ForwardScratch s;
  s.max.fill(bounded ? 0.0f : kNoScore);
  s.sum.fill(0.0f);
  if (bounded) s.sums.fill({});
  std::fill_n(s.out.data(), rows * out_stride, 0.0f);
  const gemm::Left q = left_rows(e, source_of(call.q, row, h * D, N * D), rows, D, s.q.data());

  BlockRanges ranges;
  BlockMask mask;
  for (int64_t pass = 0; ranges.fill(call, links, pass, block); ++pass) {
    for (int64_t b = ranges.lowest / kBlock; b * kBlock < ranges.highest; ++b) {
      if (!ranges.mask_for(b, 0, rows, mask)) continue;
      for_each_row_run(mask, rows, [&](int64_t begin, int64_t end, int64_t columns) {
        multiply(e, end - begin, columns, D,
                 {q.data + begin * q.row_bytes, q.row_bytes, q.step_bytes}, {packed.key(j, b), D},
                 &s.scores[begin * kBlock], kBlock, false);
      });
      gemm::Source p{reinterpret_cast<std::byte*>(s.scores.data()), DType::kF32, kBlock};
      if (bounded) {
        p = {s.p.data(), DType::kBF16, kBlock};
        if (!exp_block(mask, rows, scale, s.scores.data(), s.sums.data(),
                       reinterpret_cast<bf16*>(s.p.data())))
          return false;
      } else {
        softmax_block(mask, rows, scale, s.scores.data(), s.max.data(), s.sum.data(), s.out.data(),
                      out_stride);
      }
      for_each_row_run(mask, rows, [&](int64_t begin, int64_t end, int64_t columns) {
        multiply(e, end - begin, V, columns,
                 left_rows(e, p.at(begin, 0), end - begin, columns, s.p.data()),
                 {packed.value(j, b), kBlock}, &s.out[begin * out_stride], out_stride, true);
      });
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    if (bounded) s.sum[r] = sum_lanes(s.sums[r].exact);
    s.sum[r] = checked_sum(call, row + r, s.sum[r]);  // 0 only where the call is partial
    const int64_t th = (row + r) * N + h;
    // P was added up as bf16: its weights add up to 1 when divided by the sum of rounded values.
    const float *from = &s.out[r * out_stride],
                divisor = bounded ? sum_lanes(s.sums[r].rounded) : s.sum[r],
                factor = s.sum[r] == 0 ? 0.0f : 1.0f / divisor;
    if (call.out.dtype == DType::kBF16)
      scale_to(from, factor, V, call.out.as<bf16>() + th * V);
    else
      scale_to(from, factor, V, call.out.as<float>() + th * V);
    call.lse_TN.as<float>()[th] = s.max[r] + std::log(s.sum[r]);
  }
  return true;
}

}  // namespace

void attention_forward_blocked(const Engine& e, const AttentionArgs& call) {
  const Arena::Scope scope(*call.ctx.workspace);
  const KeyLinks links(call);
  const PackedKeys packed(e, call);
  if (call.ctx.meta()) return;
  packed.fill(e, call);
  const int64_t blocks = num_blocks(call.queries.num_tokens()), N = call.shape.N;
  call.ctx.threads->run(blocks * N, [&](int64_t task, int) {  // late blocks see most keys
    const int64_t block = blocks - 1 - task / N, h = task % N;
    if (e.element == DType::kBF16 && forward_block(e, call, links, packed, block, h, true)) return;
    forward_block(e, call, links, packed, block, h, false);
  });
}

}  // namespace ashlar::kernels::cpu
