// How it works.  As in backward.cpp a task owns a span and a kv head, and adds to their gradients
// in a fixed order.  It takes 128 keys and 128 queries of a head at a time, in units of 32 by 32
// with a row per key, so that four of the five products find their left operand as vectors leave
// it:
//
//   tiles     S^T = K q^T, dP^T = V dout^T           unit by unit
//   vectors   P = exp(scale S - lse), dS = scale P (dP - delta), as bf16: both as rows of keys, and
//             dS once more as rows of queries
//   tiles     dv += P^T dout, dk += dS^T q           over the 128 queries
//             dq += dS K                             over the 128 keys, added to the gradient
//
// Vectors work on a unit while tiles work on the next one.  Queries are packed once a call, in the
// two forms that products over channels and over queries read.
#include <array>
#include <cstring>

#include "ashlar/kernels/cpu/attention/spans.h"
#include "ashlar/kernels/cpu/attention/tile_keys.h"
#include "ashlar/kernels/cpu/gemm/bf16.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own header trips over both (PR 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

namespace ashlar::kernels::cpu {
namespace {

constexpr int64_t kUnits = 4;  // of a block, each way
constexpr int64_t kSide = kUnits * kStrip, kSideBytes = kSide * 2;
constexpr int64_t kUnitBytes = kStrip * 2;  // of a row of a unit
constexpr float kLog2OfE = 1.44269504f;

// Per head and 32 queries, packed once: q^T and dout^T, their columns the even queries, then the
// odd ones; q and dout as pairs of queries.  And delta = <dout, out>.
struct TileQueries {
  int64_t depth, width, panels;  // D and V padded
  std::byte* data = nullptr;
  float* delta_TN = nullptr;

  explicit TileQueries(const AttentionArgs& call)
      : depth(round_up(call.shape.D, kStrip)),
        width(round_up(call.shape.V, kStrip)),
        panels(ceil_div(call.queries.num_tokens(), kStrip)) {
    const int64_t bytes = call.shape.N * panels * kStrip * (depth + width) * 4;
    data = call.ctx.workspace->take(DType::kU8, {bytes}).data;
    const Tensor delta =
        call.ctx.workspace->take(DType::kF32, {call.queries.num_tokens(), call.shape.N});
    if (!call.ctx.meta()) delta_TN = delta.as<float>();
  }
  std::byte* q_t(int64_t h, int64_t panel) const {
    return data + (h * panels + panel) * kStrip * (depth + width) * 4;
  }
  std::byte* dout_t(int64_t h, int64_t panel) const { return q_t(h, panel) + kStrip * depth * 2; }
  std::byte* q(int64_t h, int64_t panel) const { return dout_t(h, panel) + kStrip * width * 2; }
  std::byte* dout(int64_t h, int64_t panel) const { return q(h, panel) + kStrip * depth * 2; }

  void fill(const gemm::Engine& e, const AttentionArgs& call, const Tensor& dout_TNV) const {
    const int64_t N = call.shape.N, D = call.shape.D, V = call.shape.V;
    call.ctx.threads->run(panels, [&](int64_t panel, int) {
      const int64_t row = panel * kStrip, rows = std::min(kStrip, call.queries.num_tokens() - row);
      for (int64_t h = 0; h < N; ++h) {
        const gemm::Source from_q = source_of(call.q, row, h * D, N * D),
                           from_dout = source_of(dout_TNV, row, h * V, N * V);
        pack_even_odd(e, from_q, rows, D, q_t(h, panel));
        pack_even_odd(e, from_dout, rows, V, dout_t(h, panel));
        pack_pairs(e, from_q, rows, D, q(h, panel));
        pack_pairs(e, from_dout, rows, V, dout(h, panel));
        for (int64_t th = row * N + h; th < (row + rows) * N; th += N)
          delta_TN[th] = dot(dout_TNV.as<bf16>() + th * V, call.out.as<bf16>() + th * V, V);
      }
    });
  }
};

// A block of keys as operands, and its sums of gradients.
struct KeyBlock {
  alignas(64) std::array<std::byte, kSide * kMaxHeadDim * 2> key, value;  // rows
  alignas(64) std::array<std::byte, kSide * kMaxHeadDim * 2> key_pairs;   // per 32 keys
  alignas(64) std::array<float, kSide * kMaxHeadDim> dkey, dvalue;
};

// 32 queries of a head; columns are the even queries, then the odd ones.
struct Columns {
  alignas(64) std::array<int32_t, kStrip> begin, end;   // rows of k that each sees
  alignas(64) std::array<float, kStrip> log_sum, mean;  // log2 of the sum; scale times delta
};

// Scores and dP of a unit, in flight.
struct GradientUnit {
  alignas(64) std::array<float, kStrip * kStrip> s, dp;
};

struct BackwardTiles {
  KeyBlock keys;
  std::array<Strip, kUnits> strips;  // of queries
  std::array<Columns, kUnits> columns;
  std::array<GradientUnit, 2> units;
  alignas(64) std::array<std::byte, kSide * kSideBytes> p, ds;    // [keys, queries]
  alignas(64) std::array<std::byte, kSide * kSideBytes> ds_rows;  // [queries, keys]
  alignas(64) std::array<std::byte, kPanelBytes> pairs;
  alignas(64) std::array<float, kStrip * kMaxHeadDim> dq;
  bool meets[kUnits][kUnits];  // keys, queries
};

struct TileTask {
  const gemm::Engine& e;
  const AttentionArgs& call;
  const AttentionGradients& gradients;
  const TileQueries& queries;
  Span span;
  int64_t j;  // kv head
};

// Two vectors of floats as bf16, cut, in alternation.
ASHLAR_TILES [[gnu::always_inline]] inline __m512i cut_and_join(__m512i even, __m512i odd) {
  const __m512i halves = _mm512_set4_epi32(0x80800f0e, 0x80800b0a, 0x80800706, 0x80800302);
  return _mm512_mask_shuffle_epi8(odd, 0x3333333333333333, even, halves);
}

// P and dS of 16 queries and a key, as floats whose upper halves are those values rounded.
struct Gradient {
  __m512i p, ds;
};

template <bool kMasked>
ASHLAR_TILES [[gnu::always_inline]] inline Gradient gradient_of(const float* s, const float* dp,
                                                                const Columns& columns, int64_t c,
                                                                int32_t key, __m512 factor,
                                                                __m512 scale) {
  const __m512 t =
      _mm512_fmsub_ps(_mm512_load_ps(s + c), factor, _mm512_load_ps(&columns.log_sum[size_t(c)]));
  const __m512 r = _mm512_reduce_ps(t, 0x08 | 1);  // t - floor(t), however large t is
  __m512 e = _mm512_fmadd_ps(_mm512_set1_ps(0.07802449f), r, _mm512_set1_ps(0.22606727f));
  e = _mm512_fmadd_ps(e, r, _mm512_set1_ps(0.69583346f));
  e = _mm512_scalef_ps(_mm512_fmadd_ps(e, r, _mm512_set1_ps(0.99992523f)), t);
  const __m512 slope =
      _mm512_fmsub_ps(_mm512_load_ps(dp + c), scale, _mm512_load_ps(&columns.mean[size_t(c)]));
  const __m512i half = _mm512_set1_epi32(0x8000);  // rounds half away from zero when cut
  __m512i p = _mm512_add_epi32(_mm512_castps_si512(e), half);
  __m512i ds = _mm512_add_epi32(_mm512_castps_si512(_mm512_mul_ps(e, slope)), half);
  if (kMasked) {
    const __m512i keys = _mm512_set1_epi32(key);
    const __mmask16 begun =
        _mm512_cmple_epi32_mask(_mm512_load_si512(&columns.begin[size_t(c)]), keys);
    const __mmask16 seen =
        _mm512_mask_cmpgt_epi32_mask(begun, _mm512_load_si512(&columns.end[size_t(c)]), keys);
    p = _mm512_maskz_mov_epi32(seen, p);
    ds = _mm512_maskz_mov_epi32(seen, ds);
  }
  return {p, ds};
}

// The vector work of a unit, two keys at a time.
struct VectorWork {
  const GradientUnit* unit = nullptr;
  const Columns* columns;
  std::byte *p, *ds, *ds_rows, *pairs;
  float scale;
  int32_t key;
  bool masked;
  int64_t row = kStrip;
};

template <bool kMasked>
ASHLAR_TILES void gradient_rows(const VectorWork& w, int64_t begin, int64_t end) {
  const __m512 factor = _mm512_set1_ps(w.scale * kLog2OfE), scale = _mm512_set1_ps(w.scale);
  for (int64_t r = begin; r < end; r += 2) {
    __m512i ds[2][2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const int64_t at = (r + i) * kStrip;
      const float *s = &w.unit->s[size_t(at)], *dp = &w.unit->dp[size_t(at)];
      const auto key = int32_t(w.key + r + i);
      const Gradient even = gradient_of<kMasked>(s, dp, *w.columns, 0, key, factor, scale);
      const Gradient odd = gradient_of<kMasked>(s, dp, *w.columns, kHalfStrip, key, factor, scale);
      ds[i][0] = even.ds;
      ds[i][1] = odd.ds;
      _mm512_store_si512(w.p + (r + i) * kSideBytes, cut_and_join(even.p, odd.p));
      _mm512_store_si512(w.ds + (r + i) * kSideBytes, cut_and_join(even.ds, odd.ds));
    }
    std::byte* to = w.pairs + r / 2 * kPairRowBytes;
    _mm512_store_si512(to, cut_and_join(ds[0][0], ds[1][0]));
    _mm512_store_si512(to + 64, cut_and_join(ds[0][1], ds[1][1]));
  }
}

// Does up to `rows` rows of the work, and after the last one turns dS.
ASHLAR_TILES void advance(VectorWork& w, int64_t rows) {
  if (w.row == kStrip) return;
  const int64_t end = std::min(w.row + rows, kStrip);
  w.masked ? gradient_rows<true>(w, w.row, end) : gradient_rows<false>(w, w.row, end);
  w.row = end;
  if (end < kStrip) return;
  for (int64_t half = 0; half < 2; ++half)
    gemm::transpose_bf16_pairs(w.pairs + half * 64, kPairRowBytes,
                               w.ds_rows + half * kHalfStrip * kSideBytes, kSideBytes);
}

// A unit of left rows times a packed operand, while the vectors advance.
ASHLAR_TILES void unit_product(const std::byte* left, const std::byte* panel, int64_t depth,
                               float* to, VectorWork& work, int64_t rate) {
  const int64_t row_bytes = depth * 2;
  zero_sums();
  for (int64_t k = 0; k < depth; k += kStrip, left += kUnitBytes, panel += kPanelBytes) {
    add_products(left, row_bytes, panel);
    advance(work, rate);
  }
  store_sums(to, kStrip);
}

// P and dS of the block for a head.
ASHLAR_TILES void block_gradients(const TileTask& t, int64_t key_row, int64_t query_panel,
                                  int64_t h, BackwardTiles& s) {
  const int64_t depth = t.queries.depth, width = t.queries.width;
  const int64_t steps = (depth + width) / kStrip;
  const int64_t rate = round_up(ceil_div(kStrip, steps), 2);
  VectorWork work;
  int64_t turn = 0;
  for (int64_t query = 0; query < kUnits; ++query) {
    for (int64_t unit = 0; unit < kUnits; ++unit) {
      if (!s.meets[unit][query]) continue;
      GradientUnit& to = s.units[size_t(turn)];
      unit_product(s.keys.key.data() + unit * kStrip * depth * 2,
                   t.queries.q_t(h, query_panel + query), depth, to.s.data(), work, rate);
      unit_product(s.keys.value.data() + unit * kStrip * width * 2,
                   t.queries.dout_t(h, query_panel + query), width, to.dp.data(), work, rate);
      advance(work, kStrip);
      const int64_t at = unit * kStrip * kSideBytes + query * kUnitBytes;
      const auto key = int32_t(key_row + unit * kStrip);
      work = {&to,
              &s.columns[size_t(query)],
              s.p.data() + at,
              s.ds.data() + at,
              s.ds_rows.data() + query * kStrip * kSideBytes + unit * kUnitBytes,
              s.pairs.data(),
              float(t.call.shape.scale),
              key,
              !s.strips[size_t(query)].sees_all(key),
              0};
      turn ^= 1;
    }
  }
  advance(work, kStrip);
}

// gradient [keys, size] += left^T right, over the queries that each 32 keys meet.
ASHLAR_TILES void key_gradient(const BackwardTiles& s, const std::byte* left,
                               const std::byte* const (&right)[kUnits], int64_t size,
                               float* gradient) {
  for (int64_t unit = 0; unit < kUnits; ++unit) {
    const bool* meets = s.meets[unit];
    if (!meets[0] && !meets[1] && !meets[2] && !meets[3]) continue;
    for (int64_t c = 0; c < size; c += kStrip) {
      float* to = gradient + unit * kStrip * size + c;
      load_sums(to, size);
      for (int64_t query = 0; query < kUnits; ++query)
        if (meets[query])
          add_products(left + unit * kStrip * kSideBytes + query * kUnitBytes, kSideBytes,
                       right[query] + c * kStrip * 2);
      store_sums(to, size);
    }
  }
}

// dq of 32 queries += dS K.  Rows of `s.dq` are the even queries, then the odd ones.
ASHLAR_TILES void query_gradient(const TileTask& t, int64_t query, int64_t row, int64_t h,
                                 BackwardTiles& s) {
  const int64_t N = t.call.shape.N, D = t.call.shape.D, depth = t.queries.depth;
  for (int64_t c = 0; c < depth; c += kStrip) {
    zero_sums();
    for (int64_t unit = 0; unit < kUnits; ++unit)
      if (s.meets[unit][query])
        add_products(s.ds_rows.data() + query * kStrip * kSideBytes + unit * kUnitBytes, kSideBytes,
                     s.keys.key_pairs.data() + unit * kStrip * depth * 2 + c * kStrip * 2);
    store_sums(s.dq.data() + c, depth);
  }
  for (int64_t i = 0; i < kStrip; ++i) {
    const int64_t to_row = row + i % kHalfStrip * 2 + i / kHalfStrip;
    if (to_row < t.span.query_begin || to_row >= t.span.query_end) continue;
    float* to = t.gradients.dq.as<float>() + (to_row * N + h) * D;
    const float* from = s.dq.data() + i * depth;
    for (int64_t c = 0; c < D; c += kHalfStrip) {
      const auto mask = __mmask16(first_bits(int32_t(D - c)));
      _mm512_mask_storeu_ps(
          to + c, mask,
          _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to + c), _mm512_load_ps(from + c)));
    }
  }
}

// The sums and means of the queries of head h.
void fill_columns(const TileTask& t, int64_t row, int64_t h, BackwardTiles& s) {
  const AttentionShape& shape = t.call.shape;
  const int64_t T = t.call.queries.num_tokens();
  const float scale = float(shape.scale), *lse = t.call.lse_TN.as<float>();
  for (int64_t query = 0; query < kUnits; ++query) {
    Columns& to = s.columns[size_t(query)];
    for (int64_t i = 0; i < kStrip; ++i) {
      const size_t column = size_t(i / 2 + i % 2 * kHalfStrip);
      const int64_t at = row + query * kStrip + i, th = at * shape.N + h;
      to.log_sum[column] = at < T ? lse[th] * kLog2OfE : 0;
      to.mean[column] = at < T ? t.queries.delta_TN[th] * scale : 0;
    }
  }
}

// The ranges of the block's queries, inside the span; false if none sees a key of the block.
bool fill_meets(const TileTask& t, const BlockRanges* ranges, int64_t key_row, int64_t row,
                BackwardTiles& s) {
  const int64_t T = t.call.queries.num_tokens();
  bool any = false;
  for (int64_t query = 0; query < kUnits; ++query) {
    const int64_t at = row + query * kStrip, block = at / kBlock;
    for (int64_t unit = 0; unit < kUnits; ++unit) s.meets[unit][query] = false;
    if (at >= T) continue;
    Strip& strip = s.strips[size_t(query)];
    fill_strip(ranges[block], at % kBlock,
               std::max(t.span.query_begin - block * kBlock, int64_t{0}),
               std::min(t.span.query_end - block * kBlock, ranges[block].rows), strip);
    for (int64_t i = 0; i < kStrip; ++i) {
      const size_t column = size_t(i / 2 + i % 2 * kHalfStrip);
      s.columns[size_t(query)].begin[column] = strip.begin[i];
      s.columns[size_t(query)].end[column] = strip.end[i];
    }
    for (int64_t unit = 0; unit < kUnits; ++unit) {
      const int64_t key = key_row + unit * kStrip;
      s.meets[unit][query] = strip.lowest < key + kStrip && strip.highest > key;
      any = any || s.meets[unit][query];
    }
  }
  return any;
}

void backward_block(const TileTask& t, int64_t key_row, int64_t row, int64_t h, BackwardTiles& s) {
  const int64_t panel = row / kStrip;
  fill_columns(t, row, h, s);
  block_gradients(t, key_row, panel, h, s);
  const std::byte *dout[kUnits], *q[kUnits];
  for (int64_t query = 0; query < kUnits; ++query) {
    dout[query] = t.queries.dout(h, panel + query);
    q[query] = t.queries.q(h, panel + query);
  }
  key_gradient(s, s.p.data(), dout, t.queries.width, s.keys.dvalue.data());
  key_gradient(s, s.ds.data(), q, t.queries.depth, s.keys.dkey.data());
  for (int64_t query = 0; query < kUnits; ++query)
    if (s.meets[0][query] || s.meets[1][query] || s.meets[2][query] || s.meets[3][query])
      query_gradient(t, query, row + query * kStrip, h, s);
}

void fill_keys(const TileTask& t, int64_t key_row, KeyBlock& s) {
  const int64_t K = t.call.shape.K, D = t.call.shape.D, V = t.call.shape.V;
  const int64_t depth = t.queries.depth, width = t.queries.width;
  const int64_t rows = std::min(kSide, num_key_rows(t.call) - key_row);
  const gemm::Source key = source_of(t.call.k, key_row, t.j * D, K * D),
                     value = source_of(t.call.v, key_row, t.j * V, K * V);
  t.e.pack_rows(key, rows, D, false, s.key.data(), depth * 2);
  t.e.pack_rows(value, rows, V, false, s.value.data(), width * 2);
  std::memset(s.key.data() + rows * depth * 2, 0, size_t((kSide - rows) * depth * 2));
  std::memset(s.value.data() + rows * width * 2, 0, size_t((kSide - rows) * width * 2));
  for (int64_t unit = 0; unit * kStrip < rows; ++unit)
    pack_pairs(t.e, key.at(unit * kStrip, 0), std::min(kStrip, rows - unit * kStrip), D,
               s.key_pairs.data() + unit * kStrip * depth * 2);
  std::fill_n(s.dkey.data(), kSide * depth, 0.0f);
  std::fill_n(s.dvalue.data(), kSide * width, 0.0f);
}

// gradient[s] += from[s] for the rows s of the span, `size` elements of a head.
void add_key_rows(const TileTask& t, int64_t key_row, const float* from, int64_t size,
                  float* gradient) {
  const int64_t stride = round_up(size, kStrip);
  const int64_t begin = std::max<int64_t>(key_row, t.span.key_begin);
  const int64_t end = std::min<int64_t>(key_row + kSide, t.span.key_end);
  for (int64_t s = begin; s < end; ++s)
    add_to(from + (s - key_row) * stride, size, gradient + (s * t.call.shape.K + t.j) * size);
}

void backward_span_tiles(const TileTask& t, const BlockRanges* ranges) {
  const AttentionShape& shape = t.call.shape;
  const int64_t group = shape.N / shape.K;
  BackwardTiles s;
  t.e.enter();
  for (int64_t key = t.span.key_begin / kSide * kSide; key < t.span.key_end; key += kSide) {
    bool filled = false;
    for (int64_t row = t.span.query_begin / kSide * kSide; row < t.span.query_end; row += kSide) {
      if (!fill_meets(t, ranges, key, row, s)) continue;
      if (!filled) fill_keys(t, key, s.keys);
      filled = true;
      for (int64_t h = t.j * group; h < (t.j + 1) * group; ++h) backward_block(t, key, row, h, s);
    }
    if (!filled) continue;
    add_key_rows(t, key, s.keys.dkey.data(), shape.D, t.gradients.dk.as<float>());
    add_key_rows(t, key, s.keys.dvalue.data(), shape.V, t.gradients.dv.as<float>());
  }
  t.e.leave();
}

}  // namespace

void attention_backward_tiles(const AttentionArgs& call, const AttentionGradients& gradients) {
  const gemm::Engine& e = gemm::amx_engine();
  const Context& ctx = call.ctx;
  const Arena::Scope scope(*ctx.workspace);
  const KeyLinks links(call);
  const Spans spans(call);
  const TileQueries queries(call);
  const int64_t blocks = num_blocks(call.queries.num_tokens());
  const Tensor memory = ctx.workspace->take(DType::kU8, {blocks * int64_t(sizeof(BlockRanges))});
  if (ctx.meta()) return;
  auto* ranges = reinterpret_cast<BlockRanges*>(memory.data);
  queries.fill(e, call, gradients.dout);
  zero_gradients(ctx, gradients);
  for (int64_t pass = 0;; ++pass) {
    bool any = false;
    for (int64_t block = 0; block < blocks; ++block)
      any = ranges[block].fill(call, links, pass, block) || any;
    if (!any) return;
    const int64_t K = call.shape.K;
    ctx.threads->run(spans.count() * K, [&](int64_t task, int) {
      backward_span_tiles({e, call, gradients, queries, spans[task / K], task % K}, ranges);
    });
  }
}

}  // namespace ashlar::kernels::cpu

#endif
