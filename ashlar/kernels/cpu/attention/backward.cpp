// How it works.  Scores are recomputed, tile by tile of 64 queries and 64 keys:
//
//   once          delta = <dout, out>; q and dout packed to reduce over queries (PackedQueries)
//   for each pass of BlockRanges, in parallel over spans and kv heads j, in a task:
//     for each block of keys        packs K^T, V^T and K; dk and dv of the block start at 0
//       for each block of queries   that sees one of the keys
//         for each query head of j  S = q K^T, dP = dout V^T
//                                   P = exp(scale S - lse), dS = scale P (dP - delta)
//                                   dv += P^T dout, dk += dS^T q;  dq of the gradients += dS K
//       adds dk and dv of the block to the gradients
//
// A span consists of whole documents, so its queries see only its keys.  One task owns the
// gradients of a span and a kv head, adds to them in a fixed order and needs no lock.  Since blocks
// are cut on a grid of rows, a block may belong to two spans: each masks the rows of the other, and
// touches only its own rows of the gradients.
#include <array>
#include <cstring>

#include "ashlar/kernels/cpu/attention/spans.h"

namespace ashlar::kernels::cpu {
namespace {

using gemm::Engine;

// The data of queries that all key blocks read, prepared once: delta = <dout, out> and, per (head,
// block), q packed as [64, D] and dout as [64, V] to reduce over tokens.
struct PackedQueries {
  int64_t q_bytes, dout_bytes, blocks;
  std::byte* data = nullptr;
  float* delta_TN = nullptr;

  PackedQueries(const Engine& e, const AttentionArgs& call)
      : q_bytes(packed_bytes(e, kBlock, call.shape.D)),
        dout_bytes(packed_bytes(e, kBlock, call.shape.V)),
        blocks(num_blocks(call.queries.num_tokens())) {
    const Tensor memory =
        call.ctx.workspace->take(DType::kU8, {call.shape.N * blocks * (q_bytes + dout_bytes)});
    const Tensor delta =
        call.ctx.workspace->take(DType::kF32, {call.queries.num_tokens(), call.shape.N});
    if (call.ctx.meta()) return;
    data = memory.data;
    delta_TN = delta.as<float>();
  }
  std::byte* q(int64_t h, int64_t block) const {
    return data + (h * blocks + block) * (q_bytes + dout_bytes);
  }
  std::byte* dout(int64_t h, int64_t block) const { return q(h, block) + q_bytes; }

  void fill(const Engine& e, const AttentionArgs& call, const Tensor& dout_tensor) const {
    const int64_t N = call.shape.N, D = call.shape.D, V = call.shape.V;
    call.ctx.threads->run(N * blocks, [&](int64_t task, int) {
      const int64_t h = task / blocks, block = task % blocks, row = block * kBlock;
      const int64_t rows = std::min(kBlock, call.queries.num_tokens() - row);
      pack_block(e, source_of(call.q, row, h * D, N * D), rows, D, false, q(h, block));
      pack_block(e, source_of(dout_tensor, row, h * V, N * V), rows, V, false, dout(h, block));
      for (int64_t t = row; t < row + rows; ++t) {
        const int64_t th = t * N + h;
        delta_TN[th] =
            call.q.dtype == DType::kBF16
                ? dot(dout_tensor.as<bf16>() + th * V, call.out.as<bf16>() + th * V, V)
                : dot(dout_tensor.as<float>() + th * V, call.out.as<float>() + th * V, V);
      }
    });
  }
};

// D and V columns are padded to whole panels, which are at most kBlock wide.
constexpr size_t kTileElements = kBlock * kBlock, kWide = kBlock * (kMaxHeadDim + kBlock);

// One task's packed key block, its sums of gradients and the tiles of one head: 720 KiB of stack.
struct BackwardScratch {
  alignas(64) std::array<std::byte, kWide * sizeof(float)> key_t, value_t, key, q, dout;
  alignas(64) std::array<float, kWide> dkey, dvalue, dq;
  alignas(64) std::array<float, kTileElements> p, ds;
  alignas(64) std::array<std::byte, kTileElements * sizeof(float)> p_packed, ds_packed, ds_rows;
  BlockMask mask;
};

struct Task {
  const Engine& e;
  const AttentionArgs& call;
  const AttentionGradients& gradients;
  const PackedQueries& packed;
  Span span;
  int64_t j;  // kv head
};

// P and dS of a tile, packed to reduce over queries, and the rows of dS.
gemm::Source softmax_gradient(const Task& task, int64_t row, int64_t rows, int64_t h,
                              BackwardScratch& s) {
  const AttentionArgs& call = task.call;
  const Engine& e = task.e;
  const int64_t N = call.shape.N;
  const float scale = float(call.shape.scale), *lse = call.lse_TN.as<float>() + row * N + h,
              *delta = task.packed.delta_TN + row * N + h;
  if (e.element == DType::kBF16) {
    const auto bf16s = [](auto& bytes) { return reinterpret_cast<bf16*>(bytes.data()); };
    softmax_gradient_block(s.mask, rows, scale, lse, delta, N, s.p.data(), s.ds.data(),
                           {bf16s(s.p_packed), bf16s(s.ds_packed), bf16s(s.ds_rows)});
    return {s.ds_rows.data(), DType::kBF16, kBlock};
  }
  softmax_gradient_block(s.mask, rows, scale, lse, delta, N, s.p.data(), s.ds.data());
  const gemm::Source p{reinterpret_cast<std::byte*>(s.p.data()), DType::kF32, kBlock};
  const gemm::Source ds{reinterpret_cast<std::byte*>(s.ds.data()), DType::kF32, kBlock};
  pack_block(e, p, rows, kBlock, false, s.p_packed.data());
  pack_block(e, ds, rows, kBlock, false, s.ds_packed.data());
  return ds;
}

// dq of the span's rows += dS K.  Not in place if the block has rows of another span: a product
// writes all rows, if only by adding zeros, while the other span's task may be adding to its own.
void query_gradient(const Task& task, int64_t row, int64_t rows, int64_t h, const gemm::Source& ds,
                    BackwardScratch& s) {
  const Engine& e = task.e;
  const Span& span = task.span;
  const int64_t N = task.call.shape.N, D = task.call.shape.D, stride = e.num_panels(D) * e.width;
  float* dq = task.gradients.dq.as<float>() + (row * N + h) * D;
  const bool in_place = stride == D && row >= span.query_begin && row + rows <= span.query_end;
  for_each_row_run(s.mask, rows, [&](int64_t begin, int64_t end, int64_t columns) {
    const gemm::Left left = left_rows(e, ds.at(begin, 0), end - begin, columns, s.ds_rows.data());
    const Packed key{s.key.data(), kBlock};
    if (in_place)
      return multiply(e, end - begin, D, columns, left, key, dq + begin * N * D, N * D, true);
    multiply(e, end - begin, D, columns, left, key, &s.dq[begin * stride], stride, false);
    for (int64_t r = begin; r < end; ++r)
      if (row + r >= span.query_begin && row + r < span.query_end)
        add_to(&s.dq[r * stride], D, dq + r * N * D);
  });
}

// Adds the part of head h of query block `block` to dq and to the key block's gradients.
void backward_tile(const Task& task, int64_t block, int64_t h, BackwardScratch& s) {
  const auto& [e, call, gradients, packed, span, j] = task;
  const int64_t N = call.shape.N, D = call.shape.D, V = call.shape.V, row = block * kBlock;
  const int64_t rows = std::min(kBlock, call.queries.num_tokens() - row);
  const gemm::Left q = left_rows(e, source_of(call.q, row, h * D, N * D), rows, D, s.q.data());
  const gemm::Left dout =
      left_rows(e, source_of(gradients.dout, row, h * V, N * V), rows, V, s.dout.data());
  const auto at = [](const gemm::Left& a, int64_t r) {
    return gemm::Left{a.data + r * a.row_bytes, a.row_bytes, a.step_bytes};
  };
  for_each_row_run(s.mask, rows, [&, &e = e](int64_t begin, int64_t end, int64_t columns) {
    multiply(e, end - begin, columns, D, at(q, begin), {s.key_t.data(), D}, &s.p[begin * kBlock],
             kBlock, false);
    multiply(e, end - begin, columns, V, at(dout, begin), {s.value_t.data(), V},
             &s.ds[begin * kBlock], kBlock, false);
  });
  const gemm::Source ds = softmax_gradient(task, row, rows, h, s);
  for (int64_t c = 0; c < kBlock; c += e.width) {
    int64_t first = 0;  // row that begins the first group to see the panel's keys
    while (first < rows && s.mask.columns[first / kRowGroup] <= c) first += kRowGroup;
    if (first >= rows) continue;
    const auto reduce = [&](const std::byte* a, const std::byte* b, int64_t columns,
                            float* gradient) {
      const int64_t stride = task.e.num_panels(columns) * task.e.width;
      multiply_transposed(task.e, task.e.width, columns, rows - first,
                          Packed{a, rows}.from(task.e, first, c),
                          Packed{b, rows}.from(task.e, first, 0), gradient + c * stride, stride);
    };
    reduce(s.p_packed.data(), packed.dout(h, block), V, s.dvalue.data());
    reduce(s.ds_packed.data(), packed.q(h, block), D, s.dkey.data());
  }
  query_gradient(task, row, rows, h, ds, s);
}

// gradient[s] += from[s] for the rows s of the span, `size` elements of a head.
void add_rows(const Task& task, int64_t key_row, const float* from, int64_t size, float* gradient) {
  const int64_t stride = task.e.num_panels(size) * task.e.width;
  const int64_t begin = std::max<int64_t>(key_row, task.span.key_begin);
  const int64_t end = std::min<int64_t>(key_row + kBlock, task.span.key_end);
  for (int64_t s = begin; s < end; ++s)
    add_to(from + (s - key_row) * stride, size, gradient + (s * task.call.shape.K + task.j) * size);
}

void pack_keys(const Task& task, int64_t key_row, BackwardScratch& s) {
  const auto& [e, call, gradients, packed, span, j] = task;
  const int64_t K = call.shape.K, D = call.shape.D, V = call.shape.V;
  const int64_t rows = std::min(kBlock, num_key_rows(call) - key_row);
  const gemm::Source k = source_of(call.k, key_row, j * D, K * D),
                     v = source_of(call.v, key_row, j * V, K * V);
  if (rows < kBlock) {  // missing keys are zeros
    s.key_t.fill(std::byte{0});
    s.value_t.fill(std::byte{0});
    s.key.fill(std::byte{0});
  }
  pack_block(e, k, D, rows, true, s.key_t.data());
  pack_block(e, v, V, rows, true, s.value_t.data());
  for (int64_t c = 0; c < D; c += e.width)
    e.pack_panel(k.at(0, c), rows, std::min(e.width, D - c), e.round,
                 s.key.data() + c / e.width * e.panel_bytes(kBlock));
}

void backward_span(const Task& task, const BlockRanges* ranges, BackwardScratch& s) {
  const AttentionArgs& call = task.call;
  const Span& span = task.span;
  const int64_t group = call.shape.N / call.shape.K, D = call.shape.D, V = call.shape.V;
  const auto zero = [&](auto& gradient, int64_t size) {
    std::fill_n(gradient.data(), kBlock * task.e.num_panels(size) * task.e.width, 0.0f);
  };
  for (int64_t b = span.key_begin / kBlock; b * kBlock < span.key_end; ++b) {
    pack_keys(task, b * kBlock, s);
    zero(s.dkey, D), zero(s.dvalue, V);
    for (int64_t block = span.query_begin / kBlock; block * kBlock < span.query_end; ++block) {
      const int64_t row = block * kBlock;
      if (!ranges[block].meets(b) ||
          !ranges[block].mask_for(b, span.query_begin - row, span.query_end - row, s.mask))
        continue;
      for (int64_t h = task.j * group; h < (task.j + 1) * group; ++h)
        backward_tile(task, block, h, s);
    }
    add_rows(task, b * kBlock, s.dkey.data(), D, task.gradients.dk.as<float>());
    add_rows(task, b * kBlock, s.dvalue.data(), V, task.gradients.dv.as<float>());
  }
}

}  // namespace

void attention_backward_blocked(const Engine& e, const AttentionArgs& call,
                                const AttentionGradients& gradients) {
  const Context& ctx = call.ctx;
  const Arena::Scope scope(*ctx.workspace);
  const KeyLinks links(call);
  const Spans spans(call);
  const PackedQueries packed(e, call);
  const Tensor memory =
      ctx.workspace->take(DType::kU8, {packed.blocks * int64_t(sizeof(BlockRanges))});
  if (ctx.meta()) return;
  auto* ranges = reinterpret_cast<BlockRanges*>(memory.data);
  packed.fill(e, call, gradients.dout);
  zero_gradients(ctx, gradients);
  for (int64_t pass = 0;; ++pass) {
    bool any = false;
    for (int64_t block = 0; block < packed.blocks; ++block)
      any = ranges[block].fill(call, links, pass, block) || any;
    if (!any) return;
    const int64_t K = call.shape.K;
    ctx.threads->run(spans.count() * K, [&](int64_t task, int) {
      BackwardScratch scratch;
      backward_span({e, call, gradients, packed, spans[task / K], task % K}, ranges, scratch);
    });
  }
}

}  // namespace ashlar::kernels::cpu
