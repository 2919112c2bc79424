// How it works.  Keys and values are packed once; then a task is a block of 64 queries, two strips,
// of up to four heads that share them.  It walks chunks of 128 keys, and in a chunk its heads:
//
//   tiles     scores = q K^T, unit by unit, into a ring of units
//   vectors   P = exp(scale scores), as bf16 into rows of 128 keys; sums of each row
//   tiles     out += P V, of the chunk before
//
// Tiles and vectors work at the same time: a few rows of exponentials stand between any two steps
// of tiles, a unit behind them, so that neither waits for the other (Pipeline).
//
// Exponentials have no maximum, which saves scaling `out`.  If the sum of a row leaves the range in
// which nothing was lost, the head runs again, first for the maximum of each row, then for
// exponentials relative to it.  The scores alone decide, so bits do not depend on threads.  P is
// rounded to bf16, and its sum adds up what it was rounded to: the weights of a query sum up to 1.
#include <array>
#include <cmath>
#include <limits>

#include "ashlar/kernels/cpu/attention/tile_keys.h"
#include "ashlar/kernels/cpu/simd/intrinsics.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu {
namespace {

constexpr int64_t kChunk = 4;  // units of keys between two visits of `out`
constexpr int64_t kRing = 8;   // units of scores in flight, at most
constexpr int64_t kHeads = 4;  // of a task, at most
constexpr int64_t kPRowBytes = kChunk * kStrip * 2;
constexpr float kLog2e = 1.44269504f;

// Scores of 32 queries and 32 keys that wait for their exponentials.
struct Unit {
  const float* scores;
  std::byte* p;
  float* lanes;  // of each row: 16 sums, or maxima
  const float* max;
  const Strip* strip;
  int32_t key;
  bool masked;
};

// The even and the odd keys from `key` on that lie in [begin, end).
struct Seen {
  __mmask16 even, odd;
  Seen(int32_t begin, int32_t end) {
    begin = std::clamp(begin, 0, 32), end = std::clamp(end, 0, 32);
    even = __mmask16(first_bits((end + 1) / 2) & ~first_bits((begin + 1) / 2));
    odd = __mmask16(first_bits(end / 2) & ~first_bits(begin / 2));
  }
};

// 2^t, up to half a unit in the last place of bf16: to be cut to bf16, which rounds 2^t to nearest.
template <bool kShifted>
ASHLAR_TILES [[gnu::always_inline]] inline __m512 exp2_to_cut(__m512 t) {
  __m512 r;
  if (kShifted) {
    r = _mm512_reduce_ps(t, 0x08 | 1);  // t - floor(t), however large t is
  } else {
    const __m512 shifter = _mm512_set1_ps(12582912.0f);
    constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    r = _mm512_sub_ps(t, _mm512_sub_ps(_mm512_add_round_ps(t, shifter, kDown), shifter));
  }
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.07802449f), r, _mm512_set1_ps(0.22606727f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69583346f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.99992523f + 0x1p-8f));
  return _mm512_scalef_ps(p, t);
}

template <bool kMasked, bool kShifted>
ASHLAR_TILES [[gnu::noinline]] void exp_rows(Unit u, int64_t begin, int64_t end, float factor) {
  const __m512 factors = _mm512_set1_ps(factor);
  const __m512i cut = _mm512_set1_epi32(int32_t(0xffff0000));
  // The upper halves of 16 floats, moved to the lower ones.
  const __m512i halves = _mm512_set4_epi32(0x80800f0e, 0x80800b0a, 0x80800706, 0x80800302);
  for (int64_t r = begin; r < end; ++r) {
    const float* s = u.scores + r * kStrip;
    __m512 even = _mm512_load_ps(s), odd = _mm512_load_ps(s + kHalfStrip);
    if (kShifted) {
      const __m512 max = _mm512_set1_ps(u.max[r]);
      even = _mm512_sub_ps(even, max);
      odd = _mm512_sub_ps(odd, max);
    }
    __m512i low = _mm512_castps_si512(exp2_to_cut<kShifted>(_mm512_mul_ps(even, factors)));
    __m512i high = _mm512_castps_si512(exp2_to_cut<kShifted>(_mm512_mul_ps(odd, factors)));
    high = _mm512_and_si512(high, cut);
    if (kMasked) {
      const Seen seen(u.strip->begin[r] - u.key, u.strip->end[r] - u.key);
      low = _mm512_maskz_mov_epi32(seen.even, low);
      high = _mm512_maskz_mov_epi32(seen.odd, high);
    }
    _mm512_store_si512(u.p + r * kPRowBytes,
                       _mm512_mask_shuffle_epi8(high, 0x3333333333333333, low, halves));
    const __m512 both =
        _mm512_add_ps(_mm512_castsi512_ps(_mm512_and_si512(low, cut)), _mm512_castsi512_ps(high));
    float* sum = u.lanes + r * kHalfStrip;
    _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), both));
  }
}

ASHLAR_TILES [[gnu::noinline]] void max_rows(Unit u, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* s = u.scores + r * kStrip;
    const Seen seen(u.strip->begin[r] - u.key, u.strip->end[r] - u.key);
    float* to = u.lanes + r * kHalfStrip;
    __m512 max = _mm512_load_ps(to);
    max = _mm512_mask_max_ps(max, seen.even, max, _mm512_load_ps(s));
    max = _mm512_mask_max_ps(max, seen.odd, max, _mm512_load_ps(s + kHalfStrip));
    _mm512_store_ps(to, max);
  }
}

// One head's block of 64 queries.
struct HeadScratch {
  alignas(64) std::array<float, kBlock * kMaxHeadDim> out;
  alignas(64) std::array<std::byte, kBlock * kMaxHeadDim * 2> q;
  alignas(64) std::array<float, kBlock * kHalfStrip> lanes;
  alignas(64) std::array<float, kBlock> max;
  std::array<bool, 2> started;  // out of a strip is set
};
struct ForwardTiles {
  alignas(64) std::array<float, kRing * kStrip * kStrip> scores;
  alignas(64) std::array<std::byte, 2 * kBlock * kPRowBytes> p;
  std::array<HeadScratch, kHeads> heads;
};

enum class Pass { kMax, kPlain, kShifted };

// A block of one head against a chunk of panels.
struct Job {
  HeadScratch* head;
  const Strip* strips;
  int64_t begin[2], end[2];  // panels that a strip meets
  std::byte* p;
};

class Pipeline {
 public:
  Pipeline(const TileKeys& keys, int64_t j, float factor, Pass pass, ForwardTiles& s)
      : keys_(keys),
        s_(s),
        j_(j),
        factor_(factor),
        pass_(pass),
        ahead_(keys.depth <= 2 * kStrip ? 2 : 1) {}

  ASHLAR_TILES_INLINE void run(Job job) {
    job.p = s_.p.data() + turn_ * (kBlock * kPRowBytes);
    turn_ ^= 1;
    const int64_t units = job.end[0] - job.begin[0] + (job.end[1] - job.begin[1]);
    const int64_t steps = units * keys_.depth / kStrip + pending_steps_;
    rate_ = ceil_div(units * kStrip, steps);
    const int64_t end_before = made_ + open_;
    const int64_t begin = std::min(job.begin[0], job.begin[1]),
                  end = std::max(job.end[0], job.end[1]);
    const int64_t split = std::min(begin + ahead_, end);
    for (int64_t panel = begin; panel < split; ++panel) both_scores(job, panel);
    exponentials((end_before - done_) * kStrip - row_);
    weighted_sums();
    for (int64_t panel = split; panel < end; ++panel) both_scores(job, panel);
    before_ = job;
    pending_steps_ = units * keys_.width / kStrip;
  }
  ASHLAR_TILES_INLINE void finish() {
    store_sums();
    exponentials(kRing * kStrip);
    weighted_sums();
    store_sums();
    pending_steps_ = 0;
  }

 private:
  ASHLAR_TILES_INLINE void exponentials(int64_t rows, int64_t lag = 0) {
    while (rows > 0 && done_ < made_ - lag) {
      if (row_ == 0) now_ = units_[done_ % kRing];
      const Unit u = now_;
      const int64_t end = std::min(kStrip, row_ + rows);
      if (pass_ == Pass::kPlain)
        u.masked ? exp_rows<true, false>(u, row_, end, factor_)
                 : exp_rows<false, false>(u, row_, end, factor_);
      else if (pass_ == Pass::kShifted)
        exp_rows<true, true>(u, row_, end, factor_);
      else
        max_rows(u, row_, end);
      rows -= end - row_;
      row_ = end;
      if (row_ == kStrip) row_ = 0, ++done_;
    }
  }

  ASHLAR_TILES_INLINE void both_scores(const Job& job, int64_t panel) {
    for (int64_t i = 0; i < 2; ++i)
      if (panel >= job.begin[i] && panel < job.end[i]) scores(job, i, panel);
  }

  // Sums of the unit before are on their way.
  ASHLAR_TILES_INLINE void count_stored() {
    if (open_) ++made_;
    open_ = false;
  }
  ASHLAR_TILES_INLINE void store_sums() {
    sums_.flush();
    count_stored();
  }

  ASHLAR_TILES_INLINE void scores(const Job& job, int64_t half, int64_t panel) {
    const int64_t row_bytes = keys_.depth * 2;
    const std::byte* key = keys_.key(j_, panel);
    const std::byte* left = job.head->q.data() + half * kStrip * row_bytes;
    sums_.start(left, row_bytes, key, nullptr, 0);
    count_stored();
    exponentials(rate_, 1);
    for (int64_t k = kStrip; k < keys_.depth; k += kStrip) {
      left += 64, key += kPanelBytes;
      add_products(left, row_bytes, key);
      exponentials(rate_, 1);
    }
    float* to = s_.scores.data() + made_ % kRing * (kStrip * kStrip);
    sums_.leave(to, kStrip);
    open_ = true;
    if (made_ - done_ == 4 * ahead_) exponentials(kStrip - row_);
    const auto first_key = int32_t(panel * kStrip);
    const Strip& strip = job.strips[half];
    units_[made_ % kRing] = {to,
                             job.p + half * kStrip * kPRowBytes + panel % kChunk * 64,
                             job.head->lanes.data() + half * kStrip * kHalfStrip,
                             job.head->max.data() + half * kStrip,
                             &strip,
                             first_key,
                             !strip.sees_all(first_key)};
  }

  ASHLAR_TILES_INLINE void weighted_sums() {
    if (pending_steps_ == 0 || pass_ == Pass::kMax) return;
    for (int64_t v = 0; v < keys_.width; v += kStrip)
      for (int64_t i = 0; i < 2; ++i)
        if (before_.begin[i] < before_.end[i]) weighted_sum(i, v);
    for (int64_t i = 0; i < 2; ++i)
      if (before_.begin[i] < before_.end[i]) before_.head->started[size_t(i)] = true;
  }

  ASHLAR_TILES_INLINE void weighted_sum(int64_t half, int64_t v) {
    float* to = before_.head->out.data() + half * kStrip * keys_.width + v;
    const std::byte* p = before_.p + half * kStrip * kPRowBytes;
    const auto left = [&](int64_t panel) { return p + panel % kChunk * 64; };
    const auto right = [&](int64_t panel) { return keys_.value(j_, panel) + v * kStrip * 2; };
    int64_t panel = before_.begin[half];
    sums_.start(left(panel), kPRowBytes, right(panel),
                before_.head->started[size_t(half)] ? to : nullptr, keys_.width);
    count_stored();
    exponentials(rate_, 1);
    for (++panel; panel < before_.end[half]; ++panel) {
      add_products(left(panel), kPRowBytes, right(panel));
      exponentials(rate_, 1);
    }
    sums_.leave(to, keys_.width);
  }

  const TileKeys& keys_;
  ForwardTiles& s_;
  const int64_t j_;
  const float factor_;
  const Pass pass_;
  // Panels of keys whose scores come before the products of the chunk before with its values, where
  // their exponentials overlap these.  More of them leave less of the first-level cache.
  const int64_t ahead_;
  std::array<Unit, kRing> units_;
  Unit now_;
  int64_t made_ = 0, done_ = 0, row_ = 0, rate_ = 8, pending_steps_ = 0;
  int turn_ = 0;
  UnitSums sums_;
  bool open_ = false;  // they are of scores
  Job before_ = {};
};

// A task: some heads of a kv head, a block of 64 queries.
struct Task {
  const gemm::Engine& e;
  const AttentionArgs& call;
  const KeyLinks& links;
  const TileKeys& keys;
  int64_t block, row, rows, head, num_heads;
};

// Runs heads [first, last) of the task against all keys that their queries see.
ASHLAR_TILES void run_pass(const Task& t, Pass pass, int64_t first, int64_t last, ForwardTiles& s,
                           bool* seen) {
  const AttentionShape& shape = t.call.shape;
  BlockRanges ranges;
  std::array<Strip, 2> strips;
  Pipeline pipeline(t.keys, t.head / (shape.N / shape.K), float(shape.scale) * kLog2e, pass, s);
  for (int64_t turn = 0; ranges.fill(t.call, t.links, turn, t.block); ++turn) {
    for (int64_t i = 0; i < 2; ++i) fill_strip(ranges, i * kStrip, 0, t.rows, strips[size_t(i)]);
    for (int64_t r = 0; r < t.rows; ++r) seen[r] = seen[r] || ranges.begin[r] < ranges.end[r];
    constexpr int64_t kKeys = kChunk * kStrip;
    for (int64_t key = ranges.lowest / kKeys * kKeys; key < ranges.highest; key += kKeys) {
      Job job = {nullptr, strips.data(), {}, {}, nullptr};
      for (int64_t i = 0; i < 2; ++i) {
        const Strip& strip = strips[size_t(i)];
        job.begin[i] = std::max<int64_t>(strip.lowest, key) / kStrip;
        job.end[i] = ceil_div(std::min<int64_t>(strip.highest, key + kKeys), kStrip);
      }
      for (int64_t i = 0; i < 2; ++i)
        if (job.begin[i] >= job.end[i]) job.begin[i] = job.end[i] = job.begin[1 - i];
      if (job.begin[0] >= job.end[0] && job.begin[1] >= job.end[1]) continue;
      for (int64_t h = first; h < last; ++h) {
        job.head = &s.heads[size_t(h)];
        pipeline.run(job);
      }
    }
    pipeline.finish();
  }
}

ASHLAR_TILES void prepare(const Task& t, int64_t h, HeadScratch& s) {
  const int64_t N = t.call.shape.N, D = t.call.shape.D, row_bytes = t.keys.depth * 2;
  t.e.pack_rows(source_of(t.call.q, t.row, (t.head + h) * D, N * D), t.rows, D, false, s.q.data(),
                row_bytes);
  std::memset(s.q.data() + t.rows * row_bytes, 0, size_t((kBlock - t.rows) * row_bytes));
  s.lanes.fill(0.0f);
  s.max.fill(0.0f);
  s.started.fill(false);
}

// Sums of the head's rows; false if one left the range in which nothing that matters was lost.
ASHLAR_TILES bool row_sums(const Task& t, const bool* seen, const HeadScratch& s, float* sums) {
  bool good = true;
  for (int64_t r = 0; r < t.rows; ++r) {
    sums[r] = _mm512_reduce_add_ps(_mm512_load_ps(&s.lanes[size_t(r * kHalfStrip)]));
    good = good && (!seen[r] || (sums[r] > 0x1p-64f && sums[r] < 0x1p100f));
  }
  return good;
}

ASHLAR_TILES void store_head(const Task& t, int64_t h, const HeadScratch& s, const float* sums) {
  const int64_t N = t.call.shape.N, V = t.call.shape.V;
  for (int64_t r = 0; r < t.rows; ++r) {
    const int64_t th = (t.row + r) * N + t.head + h;
    const float total = checked_sum(t.call, t.row + r, sums[r]);
    const __m512 factor = _mm512_set1_ps(total == 0 ? 0.0f : 1.0f / total);
    bf16* to = t.call.out.as<bf16>() + th * V;
    const float* from = &s.out[size_t(r * t.keys.width)];
    for (int64_t c = 0; c < V; c += kStrip) {
      const __m512i line =
          (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_load_ps(from + c + kHalfStrip), factor),
                                       _mm512_mul_ps(_mm512_load_ps(from + c), factor));
      _mm512_mask_storeu_epi16(to + c, first_bits(int32_t(std::min(V - c, kStrip))), line);
    }
    t.call.lse_TN.as<float>()[th] = s.max[size_t(r)] * float(t.call.shape.scale) + std::log(total);
  }
}

// Again, with the largest score of each row known.
ASHLAR_TILES void run_shifted(const Task& t, int64_t h, ForwardTiles& tiles, bool* seen,
                              float* sums) {
  HeadScratch& s = tiles.heads[size_t(h)];
  s.lanes.fill(-std::numeric_limits<float>::infinity());
  run_pass(t, Pass::kMax, h, h + 1, tiles, seen);
  for (int64_t r = 0; r < t.rows; ++r)
    s.max[size_t(r)] =
        seen[r] ? _mm512_reduce_max_ps(_mm512_load_ps(&s.lanes[size_t(r * kHalfStrip)])) : 0;
  s.lanes.fill(0.0f);
  s.started.fill(false);
  run_pass(t, Pass::kShifted, h, h + 1, tiles, seen);
  row_sums(t, seen, s, sums);
  for (int64_t r = 0; r < t.rows; ++r)
    if (!(std::abs(s.max[size_t(r)] * float(t.call.shape.scale)) < -kNoScore))
      sums[r] = std::numeric_limits<float>::quiet_NaN();
}

ASHLAR_TILES void forward_heads(const Task& t) {
  ForwardTiles tiles;
  bool seen[kBlock] = {};
  float sums[kBlock];
  for (int64_t h = 0; h < t.num_heads; ++h) prepare(t, h, tiles.heads[size_t(h)]);
  t.e.enter();
  run_pass(t, Pass::kPlain, 0, t.num_heads, tiles, seen);
  for (int64_t h = 0; h < t.num_heads; ++h) {
    HeadScratch& s = tiles.heads[size_t(h)];
    if (!row_sums(t, seen, s, sums)) run_shifted(t, h, tiles, seen, sums);
    for (int64_t i = 0; i < 2; ++i)
      if (!s.started[size_t(i)])
        std::fill_n(s.out.data() + i * kStrip * t.keys.width, kStrip * t.keys.width, 0.0f);
    store_head(t, h, s, sums);
  }
  t.e.leave();
}

}  // namespace

void attention_forward_tiles(const AttentionArgs& call) {
  const gemm::Engine& e = gemm::amx_engine();
  const Arena::Scope scope(*call.ctx.workspace);
  const KeyLinks links(call);
  const TileKeys keys(call);
  if (call.ctx.meta()) return;
  keys.fill(e, call);
  const int64_t blocks = num_blocks(call.queries.num_tokens());
  const int64_t group = call.shape.N / call.shape.K;
  // Heads of a task share their keys; each is computed alone, so this number changes no bits.
  int64_t heads = std::min(group, kHeads);
  if (blocks * call.shape.K * ceil_div(group, heads) < 8 * call.ctx.threads->size()) heads = 1;
  const int64_t parts = ceil_div(group, heads), per_block = call.shape.K * parts;
  call.ctx.threads->run(blocks * per_block, [&](int64_t task, int) {  // late blocks see most keys
    const int64_t block = blocks - 1 - task / per_block, row = block * kBlock;
    const int64_t j = task % per_block / parts, first = task % parts * heads;
    forward_heads({e, call, links, keys, block, row,
                   std::min(kBlock, call.queries.num_tokens() - row), j * group + first,
                   std::min(heads, group - first)});
  });
}

}  // namespace ashlar::kernels::cpu

#endif
