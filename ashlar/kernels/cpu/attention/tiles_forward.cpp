// How it works.  Keys and values are packed once.  Then a task takes a block of 64 queries, which
// is two strips, in up to four heads that share keys.  Each head walks chunks of 256 keys:
//
//   tiles     scores = q K^T, unit by unit, into a ring of units
//   vectors   P = exp(scale scores), as bf16, one tile after the other
//   tiles     out += P V and sums += P 1, of the chunk before
//
// Tiles and vectors work at the same time: some rows of exponentials stand between any two steps of
// tiles, a unit behind them, so that neither waits for the other (Pipeline).
//
// Exponentials have no maximum, which saves scaling `out`.  If the sum of a row leaves the range in
// which nothing was lost, or an exponential or a score could leave its own (tile_exp.h), the head
// runs again, first for the maximum of each row, then for exponentials relative to it.  Queries and
// keys alone decide, so bits do not depend on threads.  P is rounded to bf16, and its sum adds up
// what it was rounded to: the weights of a query sum up to 1.
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "ashlar/kernels/cpu/attention/tile_exp.h"
#include "ashlar/kernels/cpu/attention/tile_keys.h"
#include "ashlar/kernels/cpu/simd/intrinsics.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu {
namespace {

constexpr int64_t kChunk = 8;               // units of keys between two visits of `out`
constexpr int64_t kPanelsOfP = kChunk + 1;  // of P, of a strip
constexpr int64_t kRing = 2;                // units of scores in flight, at most
constexpr int64_t kHeads = 4;               // of a task, at most
constexpr int64_t kChunkKeys = kChunk * kStrip;
constexpr int64_t kTurn = 1024;    // keys that a head meets before the next one does
constexpr int64_t kVisitRate = 4;  // rows of exponentials beside a step of P V
constexpr int64_t kPRowBytes = 64, kUnitPBytes = kStrip * kPRowBytes;

// Scores of 32 queries and 32 keys that wait for their exponentials.
struct Unit {
  const float* scores;
  std::byte* p;
  void* all;         // the bits of all exponentials
  const float* max;  // of each row
  float* lanes;      // of each row, 16 maxima
  const Strip* strip;
  int32_t key;
  bool masked;
};

// The keys from `key` on that lie in [begin, end).
uint32_t seen_bits(const Unit& u, int64_t r) {
  return first_bits(u.strip->end[r] - u.key) & ~first_bits(u.strip->begin[r] - u.key);
}

// Returns what may have the sign bit of a word set: then an exponential is too large.
template <bool kMasked, bool kShifted>
ASHLAR_TILES_INLINE void exp_rows(const Unit& u, int64_t begin, int64_t end, float factor) {
  const ExpConstants constants = exp_constants();
  const __m512 factors = _mm512_set1_ps(factor), offset = _mm512_set1_ps(kExpOffset);
  const __m512 lowest = _mm512_set1_ps(-kExpLimit);
  __m512i all = _mm512_load_si512(u.all);
  const float* s = u.scores + begin * kStrip;
  std::byte* to = u.p + begin * kPRowBytes;
  for (int64_t r = begin; r < end; ++r, s += kStrip, to += kPRowBytes) {
    __m512 a = _mm512_load_ps(s), b = _mm512_load_ps(s + kHalfStrip);
    if (kShifted) {
      const __m512 max = _mm512_set1_ps(u.max[r]);
      a = _mm512_add_ps(_mm512_max_ps(_mm512_mul_ps(_mm512_sub_ps(a, max), factors), lowest),
                        offset);
      b = _mm512_add_ps(_mm512_max_ps(_mm512_mul_ps(_mm512_sub_ps(b, max), factors), lowest),
                        offset);
    } else {
      a = _mm512_fmadd_ps(a, factors, offset);
      b = _mm512_fmadd_ps(b, factors, offset);
    }
    __m512i p = exponentials(a, b, constants);
    if (kMasked) p = _mm512_maskz_mov_epi16(seen_bits(u, r), p);
    all = _mm512_or_si512(all, p);
    _mm512_store_si512(to, p);
  }
  _mm512_store_si512(u.all, all);
}

template <bool kMasked, bool kShifted>
ASHLAR_TILES [[gnu::noinline]] void exp_rows_apart(const Unit& u, int64_t begin, int64_t end,
                                                   float factor) {
  exp_rows<kMasked, kShifted>(u, begin, end, factor);
}

// A score that is not a number becomes an infinite maximum.
ASHLAR_TILES [[gnu::noinline]] void max_rows(Unit u, int64_t begin, int64_t end) {
  const __m512 infinite = _mm512_set1_ps(std::numeric_limits<float>::infinity());
  for (int64_t r = begin; r < end; ++r) {
    const uint32_t seen = seen_bits(u, r);
    const __mmask16 masks[2] = {__mmask16(_pext_u32(seen, 0x0f0f0f0f)),
                                __mmask16(_pext_u32(seen, 0xf0f0f0f0))};
    float* to = u.lanes + r * kHalfStrip;
    __m512 max = _mm512_load_ps(to);
    for (int64_t half = 0; half < 2; ++half) {
      const __m512 s = _mm512_load_ps(u.scores + r * kStrip + half * kHalfStrip);
      max = _mm512_mask_max_ps(max, masks[half], max, s);
      max = _mm512_mask_mov_ps(max, _mm512_mask_cmp_ps_mask(masks[half], s, s, _CMP_UNORD_Q),
                               infinite);
    }
    _mm512_store_ps(to, max);
  }
}

// One head's block of 64 queries.
struct HeadScratch {
  alignas(64) std::array<uint16_t, kStrip> all;
  alignas(64) std::array<float, kBlock * kMaxHeadDim> out;
  alignas(64) std::array<std::byte, kBlock * kMaxHeadDim * 2> q;
  alignas(64) std::array<float, kBlock * kHalfStrip> lanes;  // of each row, 16 sums or maxima
  alignas(64) std::array<float, kBlock> max;
  std::array<bool, 2> started;  // out of a strip is set
  bool summed;                  // `lanes` are sums
};
struct ForwardTiles {
  alignas(64) std::array<float, kRing * kStrip * kStrip> scores;
  alignas(64) std::array<std::byte, 2 * kPanelsOfP * kUnitPBytes> p;
  alignas(64) std::array<uint16_t, kHalfStrip * kStrip> ones;
  std::array<HeadScratch, kHeads> heads;
};

enum class Pass { kMax, kPlain, kShifted };

// A block of one head against a chunk of panels.
struct Job {
  HeadScratch* head;
  const Strip* strips;
  int64_t begin[2], end[2];  // panels that a strip meets
  int64_t slot;              // panels of P begin here, after that many
};

class Pipeline {
 public:
  Pipeline(const TileKeys& keys, int64_t j, float factor, Pass pass, ForwardTiles& s)
      : keys_(keys), s_(s), j_(j), factor_(factor), pass_(pass) {}

  ASHLAR_TILES_INLINE void run(Job job) {
    const int64_t begin = std::min(job.begin[0], job.begin[1]),
                  end = std::max(job.end[0], job.end[1]);
    job.slot = slot_ + kPanelsOfP * (begin + 1) - begin;
    slot_ = (slot_ + end - begin) % kPanelsOfP;
    rate_ = round_up(ceil_div(kStrip * kStrip, keys_.depth), 4);
    const int64_t end_before = made_ + open_;
    for (int64_t panel = begin; panel < end; ++panel) {
      for (int64_t i = 0; i < 2; ++i)
        if (panel >= job.begin[i] && panel < job.end[i]) scores(job, i, panel);
      if (panel > begin || visit_ == num_visits_) continue;
      if (end_before > done_) exponentials((end_before - done_) * kStrip - row_);
      visit_all();
    }
    set_visits(job);
  }
  ASHLAR_TILES_INLINE void finish() {
    store_sums();
    exponentials(kRing * kStrip);
    visit_all();
    store_sums();
  }

 private:
  ASHLAR_TILES_INLINE void exponentials(int64_t rows, int64_t lag = 0) {
    while (rows > 0 && done_ < made_ - lag) {
      const Unit& u = units_[done_ % kRing];
      const int64_t begin = row_, end = std::min(kStrip, row_ + rows);
      if (pass_ == Pass::kPlain && !u.masked)
        exp_rows<false, false>(u, begin, end, factor_);
      else if (pass_ == Pass::kPlain)
        exp_rows_apart<true, false>(u, begin, end, factor_);
      else if (pass_ == Pass::kShifted)
        exp_rows_apart<true, true>(u, begin, end, factor_);
      else
        max_rows(u, begin, end);
      rows -= end - begin;
      row_ = end;
      if (row_ == kStrip) row_ = 0, ++done_;
    }
  }

  std::byte* p_of(const Job& job, int64_t half, int64_t panel) const {
    return s_.p.data() + ((job.slot + panel) % kPanelsOfP + half * kPanelsOfP) * kUnitPBytes;
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
    if (made_ - done_ == kRing) exponentials(kStrip - row_);
    const auto first_key = int32_t(panel * kStrip);
    const Strip& strip = job.strips[half];
    units_[made_ % kRing] = {to,
                             p_of(job, half, panel),
                             job.head->all.data(),
                             job.head->max.data() + half * kStrip,
                             job.head->lanes.data() + half * kStrip * kHalfStrip,
                             &strip,
                             first_key,
                             !strip.sees_all(first_key)};
  }

  // The products of P and V that `job` leaves: those of a strip and 32 columns, and the row sums.
  ASHLAR_TILES_INLINE void set_visits(const Job& job) {
    before_ = job;
    visit_ = 0;
    num_visits_ = pass_ == Pass::kMax ? 0 : 2 * keys_.width / kStrip + 1;
  }
  ASHLAR_TILES_INLINE void visit_all() {
    for (; visit_ < num_visits_; ++visit_) {
      const int64_t per_strip = keys_.width / kStrip, half = visit_ / per_strip;
      if (half == 2)
        row_sums();
      else if (before_.begin[half] < before_.end[half])
        weighted_sum(half, visit_ % per_strip * kStrip);
    }
  }

  ASHLAR_TILES_INLINE void weighted_sum(int64_t half, int64_t v) {
    float* to = before_.head->out.data() + half * kStrip * keys_.width + v;
    const auto left = [&](int64_t panel) { return p_of(before_, half, panel); };
    const auto right = [&](int64_t panel) { return keys_.value(j_, panel) + v * kStrip * 2; };
    int64_t panel = before_.begin[half];
    sums_.start(left(panel), kPRowBytes, right(panel),
                before_.head->started[size_t(half)] ? to : nullptr, keys_.width);
    count_stored();
    exponentials(kVisitRate, 1);
    for (++panel; panel < before_.end[half]; ++panel) {
      add_products(left(panel), kPRowBytes, right(panel));
      exponentials(kVisitRate, 1);
    }
    sums_.leave(to, keys_.width);
  }

  // The sums of the rows of P, its products with ones, as row_sum_at has them.
  ASHLAR_TILES_INLINE void row_sums() {
    HeadScratch& head = *before_.head;
    amx::load<6>(s_.ones.data(), 64);
    sums_.turn_all(head.summed ? head.lanes.data() : nullptr, kStrip);
    count_stored();
    const int64_t begin = std::min(before_.begin[0], before_.begin[1]),
                  end = std::max(before_.end[0], before_.end[1]);
    for (int64_t panel = begin; panel < end; ++panel) {
      if (panel >= before_.begin[0] && panel < before_.end[0]) {
        const std::byte* p = p_of(before_, 0, panel);
        amx::load<4>(p, kPRowBytes);
        amx::load<5>(p + kHalfStrip * kPRowBytes, kPRowBytes);
        amx::multiply_add<0, 4, 6>();
        amx::multiply_add<1, 5, 6>();
      }
      if (panel >= before_.begin[1] && panel < before_.end[1]) {
        const std::byte* p = p_of(before_, 1, panel);
        amx::load<4>(p, kPRowBytes);
        amx::load<5>(p + kHalfStrip * kPRowBytes, kPRowBytes);
        amx::multiply_add<2, 4, 6>();
        amx::multiply_add<3, 5, 6>();
      }
      exponentials(kVisitRate, 1);
    }
    sums_.leave(head.lanes.data(), kStrip);
    head.summed = true;
    for (int64_t i = 0; i < 2; ++i)
      head.started[size_t(i)] = head.started[size_t(i)] || before_.begin[i] < before_.end[i];
  }

  const TileKeys& keys_;
  ForwardTiles& s_;
  const int64_t j_;
  const float factor_;
  const Pass pass_;
  std::array<Unit, kRing> units_;
  int64_t made_ = 0, done_ = 0, row_ = 0, rate_ = 8;
  int64_t visit_ = 0, num_visits_ = 0;  // of the job before
  int64_t slot_ = 0;
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

// Runs the chunk of keys from `key` on for a head.
ASHLAR_TILES_INLINE void run_chunk(Pipeline& pipeline, HeadScratch& head,
                                   const std::array<Strip, 2>& strips, int64_t key) {
  Job job = {&head, strips.data(), {}, {}, 0};
  for (int64_t i = 0; i < 2; ++i) {
    const Strip& strip = strips[size_t(i)];
    job.begin[i] = std::max<int64_t>(strip.lowest, key) / kStrip;
    job.end[i] = ceil_div(std::min<int64_t>(strip.highest, key + kChunkKeys), kStrip);
  }
  for (int64_t i = 0; i < 2; ++i)
    if (job.begin[i] >= job.end[i]) job.begin[i] = job.end[i] = job.begin[1 - i];
  if (job.begin[0] < job.end[0] || job.begin[1] < job.end[1]) pipeline.run(job);
}

// Runs heads [first, last) of the task against all keys that their queries see.
ASHLAR_TILES void run_pass(const Task& t, Pass pass, int64_t first, int64_t last, ForwardTiles& s,
                           bool* seen) {
  const AttentionShape& shape = t.call.shape;
  BlockRanges ranges;
  std::array<Strip, 2> strips;
  Pipeline pipeline(t.keys, t.head / (shape.N / shape.K), float(shape.scale) * kLog2OfE * kExpUnits,
                    pass, s);
  for (int64_t turn = 0; ranges.fill(t.call, t.links, turn, t.block); ++turn) {
    for (int64_t i = 0; i < 2; ++i) fill_strip(ranges, i * kStrip, 0, t.rows, strips[size_t(i)]);
    for (int64_t r = 0; r < t.rows; ++r) seen[r] = seen[r] || ranges.begin[r] < ranges.end[r];
    for (int64_t key = ranges.lowest / kTurn * kTurn; key < ranges.highest; key += kTurn)
      for (int64_t h = first; h < last; ++h)
        for (int64_t chunk = std::max<int64_t>(key, ranges.lowest / kChunkKeys * kChunkKeys);
             chunk < std::min<int64_t>(key + kTurn, ranges.highest); chunk += kChunkKeys)
          run_chunk(pipeline, s.heads[size_t(h)], strips, chunk);
    pipeline.finish();
  }
}

ASHLAR_TILES void prepare(const Task& t, int64_t h, HeadScratch& s) {
  const int64_t N = t.call.shape.N, D = t.call.shape.D, row_bytes = t.keys.depth * 2;
  t.e.pack_rows(source_of(t.call.q, t.row, (t.head + h) * D, N * D), t.rows, D, false, s.q.data(),
                row_bytes);
  std::memset(s.q.data() + t.rows * row_bytes, 0, size_t((kBlock - t.rows) * row_bytes));
  s.all.fill(0);
  s.max.fill(0.0f);
  s.started.fill(false);
  s.summed = false;
}

// Sums of the head's rows; false if one left the range in which nothing that matters was lost.
ASHLAR_TILES bool row_sums(const Task& t, const bool* seen, const HeadScratch& s, float* sums) {
  bool good = std::all_of(s.all.begin(), s.all.end(), [](uint16_t p) { return p < 0x8000; });
  for (int64_t r = 0; r < t.rows; ++r) {
    const int64_t tile = r / kHalfStrip;
    const int64_t at = (tile / 2 * kHalfStrip + r % kHalfStrip) * kStrip + tile % 2 * kHalfStrip;
    sums[r] = s.summed ? s.lanes[size_t(at)] : 0;
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
  s.started.fill(false);
  s.summed = false;
  run_pass(t, Pass::kShifted, h, h + 1, tiles, seen);
  row_sums(t, seen, s, sums);
  for (int64_t r = 0; r < t.rows; ++r)
    if (!(std::abs(s.max[size_t(r)] * float(t.call.shape.scale)) < -kNoScore))
      sums[r] = std::numeric_limits<float>::quiet_NaN();
}

// Whether sizes of q and k show that all scores are what `exponentials` takes; NaN never is.
bool scores_fit(const Task& t, int64_t h) {
  const AttentionShape& shape = t.call.shape;
  const uint16_t* k = t.keys.largest + t.head / (shape.N / shape.K) * t.keys.panels;
  const auto value = [](uint32_t bits) { return std::bit_cast<float>(bits << 16); };
  const float largest_q = value(largest_size(
      source_of(t.call.q, t.row, (t.head + h) * shape.D, shape.N * shape.D), t.rows, shape.D));
  return std::abs(float(shape.scale) * kLog2OfE * kExpUnits) * float(shape.D) * largest_q *
             value(*std::max_element(k, k + t.keys.panels)) <
         kExpLimit;
}

ASHLAR_TILES void forward_heads(const Task& t) {
  ForwardTiles tiles;
  bool seen[kBlock] = {};
  float sums[kBlock];
  tiles.ones.fill(0x3f80);
  for (int64_t h = 0; h < t.num_heads; ++h) prepare(t, h, tiles.heads[size_t(h)]);
  t.e.enter();
  run_pass(t, Pass::kPlain, 0, t.num_heads, tiles, seen);
  for (int64_t h = 0; h < t.num_heads; ++h) {
    HeadScratch& s = tiles.heads[size_t(h)];
    if (!scores_fit(t, h) || !row_sums(t, seen, s, sums)) run_shifted(t, h, tiles, seen, sums);
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
  const int64_t parts = ceil_div(group, heads), K = call.shape.K;
  const bool head_by_head = sees_many_keys(call);  // those of one stay in the second-level cache
  call.ctx.threads->run(blocks * K * parts, [&](int64_t task, int) {  // late blocks see most keys
    const int64_t late = head_by_head ? task / parts % blocks : task / parts / K;
    const int64_t j = head_by_head ? task / parts / blocks : task / parts % K;
    const int64_t row = (blocks - 1 - late) * kBlock, first = task % parts * heads;
    forward_heads({e, call, links, keys, blocks - 1 - late, row,
                   std::min(kBlock, call.queries.num_tokens() - row), j * group + first,
                   std::min(heads, group - first)});
  });
}

}  // namespace ashlar::kernels::cpu

#endif
