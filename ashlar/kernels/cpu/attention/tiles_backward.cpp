// How it works.  As in backward.cpp a task owns a span and a kv head, and adds to their gradients
// in a fixed order.  It takes 256 keys and 128 queries of a head at a time, in units of 32 by 32
// with a row per key, so that four of the five products find their left operand as vectors leave
// it:
//
//   tiles     S^T = K q^T, dP^T = V dout^T           unit by unit
//   vectors   P = exp(scale S - lse), dS = scale P (dP - delta), as bf16: both as rows of keys, and
//             dS once more as pairs of keys, the right operand of dq^T
//   tiles     dv += P^T dout, dk += dS^T q           over the 128 queries
//             dq^T += K^T dS                         over the 256 keys, added to the gradient
//
// Vectors work on a unit while tiles work on the next one.  Queries are packed once a call, in the
// two forms that products over channels and over queries read.
#include <array>
#include <cstring>

#include "ashlar/kernels/cpu/attention/rows_args.h"
#include "ashlar/kernels/cpu/attention/spans.h"
#include "ashlar/kernels/cpu/attention/tile_gradients.h"
#include "ashlar/kernels/cpu/attention/tile_keys.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu {
namespace {

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
  alignas(64) std::array<std::byte, kKeys * kMaxHeadDim * 2> key, value;  // rows
  alignas(64) std::array<std::byte, kKeys * kMaxHeadDim * 2> key_t;       // per 32 keys, K^T
  alignas(64) std::array<float, kKeys * kMaxHeadDim> dkey, dvalue;
  int64_t row = -1;                       // the first
  std::array<bool, kKeyUnits> have_sums;  // of gradients
};

struct UnitRange {
  int64_t begin, end;
};
// The units of a block to compute: for each unit of keys a range of queries, and the reverse.
struct Meetings {
  UnitRange queries_of[kKeyUnits], keys_of[kQueryUnits];
  // From the units in which a query sees a key; gaps between them are filled.  False if none does.
  bool fill(bool (&sees)[kKeyUnits][kQueryUnits]);
};

struct BackwardTiles {
  KeyBlock keys;
  std::array<Strip, kQueryUnits> strips;  // of queries
  std::array<Columns, kQueryUnits> columns;
  std::array<GradientUnit, 2> units;
  // Per 32 keys and 32 queries: rows of keys, and dS once more as pairs of keys.
  alignas(64) std::array<std::byte, kKeys * kQueries * 2> p, ds, ds_pairs;
  alignas(64) std::array<float, kHalfStrip * kHalfStrip> dq;
  Meetings meets;
  int64_t meets_key = -1, meets_row = -1;  // the block of `meets`
  bool met;                                // any query sees a key
};

struct TileTask {
  const gemm::Engine& e;
  const AttentionArgs& call;
  const AttentionGradients& gradients;
  const TileQueries& queries;
  Span span;
  int64_t j;    // kv head
  float* sums;  // of dq^T of a head
  bool* begun;  // per 32 queries, whether there are sums
  // [channels, columns] of 32 queries.
  float* dq_t(int64_t panel) const {
    return sums + (panel - span.query_begin / kStrip) * queries.depth * kStrip;
  }
  bool* started(int64_t panel) const { return begun + panel - span.query_begin / kStrip; }
};

// The scores and dP of units, and the vector work that follows once both are stored.
class Gradients {
 public:
  Gradients(const TileTask& t, BackwardTiles& s)
      : t_(t),
        s_(s),
        rate_(round_up(ceil_div(kStrip, (t.queries.depth + t.queries.width) / kStrip), 2)) {}

  // Keys `unit` and queries `query` of the block, whose first key is key_row.
  ASHLAR_TILES_INLINE void run(int64_t unit, int64_t query, int64_t key_row, int64_t h,
                               int64_t panel) {
    const int64_t depth = t_.queries.depth, width = t_.queries.width;
    GradientUnit& to = s_.units[size_t(turn_)];
    turn_ ^= 1;
    product(s_.keys.key.data() + unit * kStrip * depth * 2, t_.queries.q_t(h, panel), depth,
            to.s.data());
    product(s_.keys.value.data() + unit * kStrip * width * 2, t_.queries.dout_t(h, panel), width,
            to.dp.data());
    const int64_t at = (unit * kQueryUnits + query) * kPanelBytes;
    const auto key = int32_t(key_row + unit * kStrip);
    next_ = {&to,
             &s_.columns[size_t(query)],
             s_.p.data() + at,
             s_.ds.data() + at,
             s_.ds_pairs.data() + at,
             float(t_.call.shape.scale),
             key,
             !s_.strips[size_t(query)].sees_all(key),
             0};
  }
  ASHLAR_TILES_INLINE void finish() {
    sums_.flush();
    take_next();
    advance(work_, kStrip);
  }

 private:
  ASHLAR_TILES_INLINE void take_next() {
    if (next_.row == kStrip) return;
    advance(work_, kStrip);
    work_ = next_;
    next_.row = kStrip;
  }
  ASHLAR_TILES_INLINE void product(const std::byte* left, const std::byte* panel, int64_t depth,
                                   float* to) {
    const int64_t row_bytes = depth * 2;
    sums_.start(left, row_bytes, panel, nullptr, 0);
    take_next();
    advance(work_, rate_);
    for (int64_t k = kStrip; k < depth; k += kStrip) {
      left += kUnitBytes, panel += kPanelBytes;
      add_products(left, row_bytes, panel);
      advance(work_, rate_);
    }
    sums_.leave(to, kStrip);
  }

  const TileTask& t_;
  BackwardTiles& s_;
  const int64_t rate_;
  UnitSums sums_;
  VectorWork work_, next_;
  int64_t turn_ = 0;
};

// P and dS of the block for a head.
ASHLAR_TILES void block_gradients(const TileTask& t, int64_t key_row, int64_t panel, int64_t h,
                                  BackwardTiles& s) {
  Gradients gradients(t, s);
  for (int64_t query = 0; query < kQueryUnits; ++query) {
    const auto [begin, end] = s.meets.keys_of[query];
    for (int64_t unit = begin; unit < end; ++unit)
      gradients.run(unit, query, key_row, h, panel + query);
  }
  gradients.finish();
}

// gradient [keys, size] += left^T right, over the queries that each 32 keys meet.
ASHLAR_TILES void key_gradient(const BackwardTiles& s, const std::byte* left,
                               const std::byte* right, int64_t right_bytes, int64_t size,
                               float* gradient) {
  UnitSums sums;
  for (int64_t unit = 0; unit < kKeyUnits; ++unit) {
    const auto [begin, end] = s.meets.queries_of[unit];
    if (begin == end) continue;
    for (int64_t c = 0; c < size; c += kStrip) {
      float* to = gradient + unit * kStrip * size + c;
      const std::byte* rows = left + (unit * kQueryUnits + begin) * kPanelBytes;
      const std::byte* panel = right + begin * right_bytes + c * kStrip * 2;
      sums.start(rows, kUnitBytes, panel, s.keys.have_sums[size_t(unit)] ? to : nullptr, size);
      for (int64_t query = begin + 1; query < end; ++query) {
        rows += kPanelBytes, panel += right_bytes;
        add_products(rows, kUnitBytes, panel);
      }
      sums.leave(to, size);
    }
  }
  sums.flush();
}

// dq^T of 32 queries += K^T dS.
ASHLAR_TILES_INLINE void query_gradient(const TileTask& t, int64_t query, float* dq_t, bool started,
                                        UnitSums& sums, const BackwardTiles& s) {
  const int64_t depth = t.queries.depth;
  const auto [begin, end] = s.meets.keys_of[query];
  for (int64_t c = 0; c < depth; c += kStrip) {
    const std::byte* rows = s.keys.key_t.data() + (begin * depth + c) * kUnitBytes;
    const std::byte* pairs = s.ds_pairs.data() + (begin * kQueryUnits + query) * kPanelBytes;
    float* to = dq_t + c * kStrip;
    sums.start(rows, kUnitBytes, pairs, started ? to : nullptr, kStrip);
    for (int64_t unit = begin + 1; unit < end; ++unit) {
      rows += depth * kUnitBytes, pairs += kQueryUnits * kPanelBytes;
      add_products(rows, kUnitBytes, pairs);
    }
    sums.leave(to, kStrip);
  }
}

// dq of 32 queries of head h += the transpose of their sums, if there are any; these end.
ASHLAR_TILES void add_query_rows(const TileTask& t, int64_t h, int64_t panel, BackwardTiles& s) {
  const int64_t N = t.call.shape.N, D = t.call.shape.D;
  if (!*t.started(panel)) return;
  *t.started(panel) = false;
  for (int64_t c = 0; c < D; c += kHalfStrip) {
    const auto mask = __mmask16(first_bits(int32_t(D - c)));
    for (int64_t half = 0; half < 2; ++half) {
      const float* from = t.dq_t(panel) + c * kStrip + half * kHalfStrip;
      gemm::transpose_bf16_pairs(reinterpret_cast<const std::byte*>(from), kStrip * 4,
                                 reinterpret_cast<std::byte*>(s.dq.data()), kHalfStrip * 4);
      for (int64_t i = 0; i < kHalfStrip; ++i) {
        const int64_t row = panel * kStrip + 2 * i + half;
        if (row < t.span.query_begin || row >= t.span.query_end) continue;
        float* to = t.gradients.dq.as<float>() + (row * N + h) * D + c;
        _mm512_mask_storeu_ps(to, mask,
                              _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to),
                                            _mm512_load_ps(&s.dq[size_t(i * kHalfStrip)])));
      }
    }
  }
}

// The sums and means of the queries of head h.
void fill_columns(const TileTask& t, int64_t row, int64_t h, BackwardTiles& s) {
  const AttentionShape& shape = t.call.shape;
  const int64_t T = t.call.queries.num_tokens();
  const float scale = float(shape.scale), *lse = t.call.lse_TN.as<float>();
  for (int64_t query = 0; query < kQueryUnits; ++query) {
    Columns& to = s.columns[size_t(query)];
    for (int64_t i = 0; i < kStrip; ++i) {
      const auto column = size_t(i / 2 + i % 2 * kHalfStrip);
      const int64_t at = row + query * kStrip + i, th = at * shape.N + h;
      to.log_sum[column] = at < T ? lse[th] * kLog2OfE : 0;
      to.mean[column] = at < T ? t.queries.delta_TN[th] * scale : 0;
    }
  }
}

bool Meetings::fill(bool (&sees)[kKeyUnits][kQueryUnits]) {
  bool any = false;
  for (bool changed = true; changed;) {
    changed = false;
    const auto hull = [&](int64_t count, auto at) {
      UnitRange range{0, 0};
      for (int64_t i = 0; i < count; ++i)
        if (at(i)) range = {range.end == 0 ? i : range.begin, i + 1};
      for (int64_t i = range.begin; i < range.end; ++i) {
        changed = changed || !at(i);
        at(i) = true;
      }
      any = any || range.begin < range.end;
      return range;
    };
    for (int64_t unit = 0; unit < kKeyUnits; ++unit)
      queries_of[unit] = hull(kQueryUnits, [&](int64_t i) -> bool& { return sees[unit][i]; });
    for (int64_t query = 0; query < kQueryUnits; ++query)
      keys_of[query] = hull(kKeyUnits, [&](int64_t i) -> bool& { return sees[i][query]; });
  }
  return any;
}

// The ranges of the block's queries, inside the span; false if none sees a key of the block.
bool fill_meets(const TileTask& t, const BlockRanges* ranges, int64_t key_row, int64_t row,
                BackwardTiles& s) {
  if (s.meets_key == key_row && s.meets_row == row) return s.met;  // of the head before
  s.meets_key = key_row;
  s.meets_row = row;
  const int64_t T = t.call.queries.num_tokens();
  bool sees[kKeyUnits][kQueryUnits] = {};
  for (int64_t query = 0; query < kQueryUnits; ++query) {
    const int64_t at = row + query * kStrip, block = at / kBlock;
    if (at >= T || ranges[block].lowest >= key_row + kKeys || ranges[block].highest <= key_row)
      continue;
    Strip& strip = s.strips[size_t(query)];
    fill_strip(ranges[block], at % kBlock,
               std::max(t.span.query_begin - block * kBlock, int64_t{0}),
               std::min(t.span.query_end - block * kBlock, ranges[block].rows), strip);
    for (int64_t i = 0; i < kStrip; ++i) {
      const auto column = size_t(i / 2 + i % 2 * kHalfStrip);
      s.columns[size_t(query)].begin[column] = strip.begin[i];
      s.columns[size_t(query)].end[column] = strip.end[i];
    }
    for (int64_t unit = 0; unit < kKeyUnits; ++unit) {
      const int64_t key = key_row + unit * kStrip;
      sees[unit][query] = strip.lowest < key + kStrip && strip.highest > key;
    }
  }
  s.met = s.meets.fill(sees);
  return s.met;
}

ASHLAR_TILES void backward_block(const TileTask& t, int64_t key_row, int64_t row, int64_t h,
                                 BackwardTiles& s) {
  const int64_t panel = row / kStrip;
  fill_columns(t, row, h, s);
  block_gradients(t, key_row, panel, h, s);
  const int64_t panel_bytes = t.queries.q_t(h, 1) - t.queries.q_t(h, 0);
  key_gradient(s, s.p.data(), t.queries.dout(h, panel), panel_bytes, t.queries.width,
               s.keys.dvalue.data());
  key_gradient(s, s.ds.data(), t.queries.q(h, panel), panel_bytes, t.queries.depth,
               s.keys.dkey.data());
  for (int64_t unit = 0; unit < kKeyUnits; ++unit)
    if (s.meets.queries_of[unit].begin < s.meets.queries_of[unit].end)
      s.keys.have_sums[size_t(unit)] = true;
  UnitSums sums;
  for (int64_t query = 0; query < kQueryUnits; ++query) {
    if (s.meets.keys_of[query].begin == s.meets.keys_of[query].end) continue;
    query_gradient(t, query, t.dq_t(panel + query), *t.started(panel + query), sums, s);
    *t.started(panel + query) = true;
  }
  sums.flush();
}

void fill_keys(const TileTask& t, int64_t key_row, KeyBlock& s) {
  s.have_sums.fill(false);
  if (s.row == key_row) return;
  s.row = key_row;
  const int64_t K = t.call.shape.K, D = t.call.shape.D, V = t.call.shape.V;
  const int64_t depth = t.queries.depth, width = t.queries.width;
  const int64_t rows = std::min(kKeys, num_key_rows(t.call) - key_row);
  const gemm::Source key = source_of(t.call.k, key_row, t.j * D, K * D),
                     value = source_of(t.call.v, key_row, t.j * V, K * V);
  t.e.pack_rows(key, rows, D, false, s.key.data(), depth * 2);
  t.e.pack_rows(value, rows, V, false, s.value.data(), width * 2);
  std::memset(s.key.data() + rows * depth * 2, 0, size_t((kKeys - rows) * depth * 2));
  std::memset(s.value.data() + rows * width * 2, 0, size_t((kKeys - rows) * width * 2));
  for (int64_t unit = 0; unit * kStrip < rows; ++unit)
    for (int64_t c = 0; c < D; c += kStrip)
      gemm::transpose_bf16_block(key.at(unit * kStrip, c), std::min(kStrip, rows - unit * kStrip),
                                 std::min(kStrip, D - c),
                                 s.key_t.data() + (unit * depth + c) * kUnitBytes, kUnitBytes);
}

// gradient[s] += from[s] for the rows s of the span, `size` elements of a head.
void add_key_rows(const TileTask& t, const KeyBlock& keys, const float* from, int64_t size,
                  float* gradient) {
  const int64_t stride = round_up(size, kStrip);
  const int64_t begin = std::max<int64_t>(keys.row, t.span.key_begin);
  const int64_t end = std::min<int64_t>(keys.row + kKeys, t.span.key_end);
  for (int64_t s = begin; s < end; ++s)
    if (keys.have_sums[size_t((s - keys.row) / kStrip)])
      add_to(from + (s - keys.row) * stride, size, gradient + (s * t.call.shape.K + t.j) * size);
}

// The gradients of heads [first, last), block by block, a head inside.
void backward_heads(const TileTask& t, const BlockRanges* ranges, int64_t first, int64_t last,
                    BackwardTiles& s) {
  const AttentionShape& shape = t.call.shape;
  for (int64_t key = t.span.key_begin / kKeys * kKeys; key < t.span.key_end; key += kKeys) {
    bool filled = false;
    for (int64_t row = t.span.query_begin / kQueries * kQueries; row < t.span.query_end;
         row += kQueries) {
      if (!fill_meets(t, ranges, key, row, s)) continue;
      if (!filled) fill_keys(t, key, s.keys);
      filled = true;
      for (int64_t h = first; h < last; ++h) {
        backward_block(t, key, row, h, s);
        if (last - first > 1)
          for (int64_t query = 0; query < kQueryUnits; ++query)
            if (s.meets.keys_of[query].begin < s.meets.keys_of[query].end)
              add_query_rows(t, h, row / kStrip + query, s);
      }
    }
    if (!filled) continue;
    add_key_rows(t, s.keys, s.keys.dkey.data(), shape.D, t.gradients.dk.as<float>());
    add_key_rows(t, s.keys, s.keys.dvalue.data(), shape.V, t.gradients.dv.as<float>());
  }
}

void backward_span_tiles(const TileTask& t, const BlockRanges* ranges) {
  const int64_t group = t.call.shape.N / t.call.shape.K, first = t.j * group;
  const int64_t begin = t.span.query_begin / kStrip, end = ceil_div(t.span.query_end, kStrip);
  BackwardTiles s;
  std::fill(t.started(begin), t.started(end), false);
  t.e.enter();
  const int64_t heads = sees_many_keys(t.call) ? 1 : group;  // what one reads stays near
  for (int64_t h = first; h < first + group; h += heads) {
    backward_heads(t, ranges, h, h + heads, s);
    for (int64_t panel = begin; panel < end; ++panel) add_query_rows(t, h, panel, s);
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
  // Panels of spans, which share at most one with the next span: of each kv head.
  const int64_t panels = queries.panels + call.queries.num_tokens() / kSpanRows + 1;
  const Tensor dq_t =
      ctx.workspace->take(DType::kF32, {call.shape.K * panels, queries.depth * kStrip});
  const Tensor begun = ctx.workspace->take(DType::kU8, {call.shape.K * panels});
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
      const Span& span = spans[task / K];
      const int64_t at = task % K * panels + span.query_begin / kStrip + task / K;
      backward_span_tiles({e, call, gradients, queries, span, task % K,
                           dq_t.as<float>() + at * queries.depth * kStrip,
                           reinterpret_cast<bool*>(begun.data) + at},
                          ranges);
    });
  }
}

}  // namespace ashlar::kernels::cpu

#endif
