// How it works.  The iteration runs on X with its short side m as rows; a tall X is transposed as
// it is read and written.  X, A and P are kept as blocks of `rows` (newton_schulz_blocks.h), from
// which left operands are read; panels of `pairs`, 32 columns of a right operand, are made on the
// way:
//
//                                        left       panel
//   gram         A = X X^T               X          32 rows of X, turned
//   polynomial   P = c A A + b A + a I   A          32 rows of A, turned (A is symmetric)
//   update       X = P X                 P          32 columns of X, interleaved
//
// X changes in place.  A panel (16 KiB for m = 256) stays in the first-level cache while the left
// operand passes.  Each update permutes the columns of X within blocks (see interleaving); `load`
// puts them where `steps` updates bring all of them home.  The diagonal a I is part of P, and so is
// rounded with it.
//
// On one thread, each kChunk blocks of columns are added to A right after their update.
#include "ashlar/kernels/cpu/optim/newton_schulz_tiles.h"

#include <array>
#include <cmath>

#include "ashlar/core/rounding.h"
#include "ashlar/kernels/cpu/optim/newton_schulz_pipeline.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu::newton_schulz {
namespace {

constexpr int64_t kChunk = 16;

struct Scratch {
  alignas(64) std::byte at[2][kBlockBytes];
};

// Runs body(begin, end, worker) over [0, count): at once on this thread, or item by item on all.
struct TileRanges {
  Threads* threads;
  void operator()(int64_t count, function_ref<void(int64_t, int64_t, int)> body) const {
    if (!threads) return body(0, count, 0);
    threads->run(count, [&](int64_t i, int worker) { body(i, i + 1, worker); });
  }
};

// The operands of one matrix.
struct TileOperands {
  std::byte *x, *a, *p;  // blocks of rows
  float* sums;           // of A, blocks above the diagonal, while chunks are added
  double* squares;       // sums of 32 rows of X
  std::byte* panels;     // two for each worker
};

// A left operand: blocks, row by row.
struct BlockRows {
  std::byte* data;
  int64_t stride;  // blocks
  std::byte* at(int64_t i, int64_t k) const { return data + (i * stride + k) * kBlockBytes; }
};

// Walks over the blocks (i, j), i <= j, begin <= j < end, of rows rows^T, from the last j on: it
// has most blocks, beside which the next panel is filled.
class UpperBlocks {
 public:
  // `panels` has room for two of panel_bytes.  Makes the first.
  ASHLAR_TILES UpperBlocks(const BlockRows& rows, int64_t steps, int64_t begin, int64_t end,
                           std::byte* panels, int64_t panel_bytes)
      : rows_(rows),
        steps_(steps),
        begin_(begin),
        j_(end - 1),
        panels_(panels),
        panel_bytes_(panel_bytes) {
    for (int64_t q = 0; q < steps_ * kSlices; ++q) turn(rows_.at(j_, 0), panel(j_), q);
  }
  bool next() {
    if (++i_ <= j_) return true;
    if (--j_ < begin_) return false;
    i_ = 0;
    return true;
  }
  int64_t i() const { return i_; }
  int64_t j() const { return j_; }
  const std::byte* left() const { return rows_.at(i_, 0); }
  std::byte* panel() const { return panel(j_); }
  // This block's part of the next panel.
  TurnedPart part() const {
    if (j_ == begin_) return {nullptr, nullptr, 0, 0, 0};
    const int64_t per_slice = ceil_div(steps_, j_ + 1);
    return {rows_.at(j_ - 1, 0), panel(j_ - 1), i_ * kSlices * per_slice, per_slice,
            steps_ * kSlices};
  }

 private:
  std::byte* panel(int64_t j) const { return panels_ + j % 2 * panel_bytes_; }
  BlockRows rows_;
  int64_t steps_, begin_, i_ = -1, j_;
  std::byte* panels_;
  int64_t panel_bytes_;
};

class TileMatrices {
 public:
  TileMatrices(const Context& ctx, int64_t M, int64_t N, int steps, int64_t slots, int64_t workers)
      : M_(M),
        N_(N),
        steps_(steps),
        tall_(M > N),
        m_blocks_(ceil_div(std::min(M, N), kSide)),
        n_blocks_(ceil_div(std::max(M, N), kSide)),
        workers_(workers) {
    slot_bytes_ = lay_out(nullptr).second;
    memory_ = ctx.workspace->take(DType::kU8, {slots * slot_bytes_}).data;
  }

  void run(const TileRanges& ranges, int64_t slot, float* x_MN) const;

 private:
  std::pair<TileOperands, int64_t> lay_out(std::byte* base) const;
  float factor_of(const TileRanges& ranges, const TileOperands& o, const float* x_MN) const;
  void scale(const TileRanges& ranges, float* x_MN, float factor) const;
  void load(const TileOperands& o, const float* x_MN, float factor, int64_t begin,
            int64_t end) const;
  UpperBlocks upper_blocks(const TileOperands& o, const BlockRows& rows, int64_t steps,
                           int64_t begin, int64_t end, int worker) const {
    return {rows, steps, begin, end, panel(o, worker, 0), panel_bytes()};
  }
  void add_gram(const TileOperands& o, int64_t chunk, int64_t chunk_end, int64_t begin, int64_t end,
                int worker) const;
  void end_gram(const TileOperands& o, int64_t chunk, int64_t begin, int64_t end, int worker) const;
  void polynomial(const TileOperands& o, int64_t begin, int64_t end, int worker) const;
  template <typename Block, typename Place, typename Part>
  void multiply_by_p(const TileOperands& o, int64_t begin, int64_t end, int worker,
                     const Block& idle, const Place& place, const Part& part) const;
  void update(const TileOperands& o, int64_t begin, int64_t end, int worker) const;
  void store(const TileOperands& o, float* x_MN, int64_t begin, int64_t end, int worker) const;
  BlockRows x_rows(const TileOperands& o) const { return {o.x, n_blocks_}; }
  BlockRows square(std::byte* data) const { return {data, m_blocks_}; }
  int64_t panel_bytes() const {
    return std::max(m_blocks_, std::min(kChunk, n_blocks_)) * kBlockBytes;
  }
  std::byte* panel(const TileOperands& o, int worker, int64_t index) const {
    return o.panels + (worker * 2 + index % 2) * panel_bytes();
  }
  float* sums(const TileOperands& o, int64_t i, int64_t j) const {
    return o.sums + (j * (j + 1) / 2 + i) * kSide * kSide;
  }

  int64_t M_, N_;
  int steps_;
  bool tall_;
  int64_t m_blocks_, n_blocks_, workers_;
  int64_t slot_bytes_ = 0;
  std::byte* memory_ = nullptr;
};

void TileMatrices::run(const TileRanges& ranges, int64_t slot, float* x_MN) const {
  const TileOperands o = lay_out(memory_ + slot * slot_bytes_).first;
  const float factor = factor_of(ranges, o, x_MN);
  if (steps_ == 0) return scale(ranges, x_MN, factor);
  const int64_t group = ranges.threads ? n_blocks_ : kChunk;
  for (int step = 0; step < steps_; ++step) {
    for (int64_t first = 0; first < n_blocks_; first += group) {
      const int64_t last = std::min(first + group, n_blocks_);
      ranges(last - first, [&](int64_t begin, int64_t end, int worker) {
        step == 0 ? load(o, x_MN, factor, first + begin, first + end)
                  : update(o, first + begin, first + end, worker);
      });
      ranges(m_blocks_, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t chunk = first; chunk < last; chunk += kChunk)
          chunk + kChunk < n_blocks_ ? add_gram(o, chunk, chunk + kChunk, begin, end, worker)
                                     : end_gram(o, chunk, begin, end, worker);
      });
    }
    ranges(m_blocks_,
           [&](int64_t begin, int64_t end, int worker) { polynomial(o, begin, end, worker); });
  }
  ranges(n_blocks_,
         [&](int64_t begin, int64_t end, int worker) { store(o, x_MN, begin, end, worker); });
}

// The operands of one slot from `base` on, and the bytes that they take.
std::pair<TileOperands, int64_t> TileMatrices::lay_out(std::byte* base) const {
  int64_t used = 0;
  const auto take = [&](int64_t bytes) {
    std::byte* at = base ? base + used : nullptr;
    used += round_up(bytes, 64);
    return at;
  };
  TileOperands o;
  o.x = take(m_blocks_ * n_blocks_ * kBlockBytes);
  o.a = take(m_blocks_ * m_blocks_ * kBlockBytes);
  o.p = take(m_blocks_ * m_blocks_ * kBlockBytes);
  const int64_t upper = kChunk < n_blocks_ ? m_blocks_ * (m_blocks_ + 1) / 2 : 0;
  o.sums = reinterpret_cast<float*>(take(upper * int64_t(sizeof(Sums))));
  o.squares = reinterpret_cast<double*>(take(ceil_div(M_, kSide) * int64_t(sizeof(double))));
  o.panels = take(workers_ * 2 * panel_bytes());
  return {o, used};
}

ASHLAR_TILES double squares_of(const float* x, int64_t count) {
  constexpr int64_t kLanes = 32;
  __m512d sums[4] = {};
  for (int64_t at = 0; at < count; at += kLanes) {
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t left = std::clamp<int64_t>(count - at - i * 8, 0, 8);
      const __m512d v =
          _mm512_cvtps_pd(_mm256_maskz_loadu_ps(__mmask8((1 << left) - 1), x + at + i * 8));
      sums[i] = _mm512_fmadd_pd(v, v, sums[i]);
    }
  }
  return _mm512_reduce_add_pd(
      _mm512_add_pd(_mm512_add_pd(sums[0], sums[1]), _mm512_add_pd(sums[2], sums[3])));
}

float TileMatrices::factor_of(const TileRanges& ranges, const TileOperands& o,
                              const float* x_MN) const {
  const int64_t blocks = ceil_div(M_, kSide);
  ranges(blocks, [&](int64_t begin, int64_t end, int) {
    for (int64_t b = begin; b < end; ++b)
      o.squares[b] = squares_of(x_MN + b * kSide * N_, std::min(kSide, M_ - b * kSide) * N_);
  });
  double sum = 0;
  for (int64_t b = 0; b < blocks; ++b) sum += o.squares[b];
  return float(1.0 / (std::sqrt(sum) + kTiny));
}

void TileMatrices::scale(const TileRanges& ranges, float* x_MN, float factor) const {
  ranges(M_, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin * N_; i < end * N_; ++i) x_MN[i] *= factor;
  });
}

// Where a group of four columns comes from, so that `times` rotations of its number bring it home.
int8_t rotated(int64_t group, int64_t times) {
  for (; times > 0; --times) group = group >> 1 | (group & 1) << 2;
  return int8_t(group);
}

ASHLAR_TILES void TileMatrices::load(const TileOperands& o, const float* x_MN, float factor,
                                     int64_t begin, int64_t end) const {
  Scratch scratch;
  std::array<int8_t, 8> groups;
  alignas(64) std::array<int32_t, 32> places;
  for (int64_t g = 0; g < 8; ++g) groups[size_t(g)] = rotated(g, steps_ % 3);
  for (int64_t i = 0; i < 32; ++i) places[size_t(i)] = int32_t(groups[size_t(i / 4)] * 4 + i % 4);
  const __m512i halves[2] = {_mm512_load_si512(places.data()),
                             _mm512_load_si512(places.data() + 16)};
  for (int64_t c = begin; c < end; ++c)
    for (int64_t i = 0; i < m_blocks_; ++i) {
      const int64_t row = (tall_ ? c : i) * kSide, col = (tall_ ? i : c) * kSide;
      const float* x = x_MN + row * N_ + col;
      std::byte* to = x_rows(o).at(i, c);
      if (tall_) {
        const TallValues values{x, N_, M_ - row, N_ - col, factor, groups};
        for (int64_t s = 0; s < kSlices; ++s) convert(values, scratch.at[0], scratch.at[1], s);
        for (int64_t s = 0; s < kSlices; ++s) turn_back(scratch.at[1], to, s);
      } else {
        const WideValues values{x, N_, M_ - row, N_ - col, factor, {halves[0], halves[1]}};
        for (int64_t s = 0; s < kSlices; ++s) convert(values, to, s);
      }
    }
}

// Adds the columns of a chunk but the last to the sums of A.
ASHLAR_TILES void TileMatrices::add_gram(const TileOperands& o, int64_t chunk, int64_t chunk_end,
                                         int64_t begin, int64_t end, int worker) const {
  const TileScope tiles;
  Pipeline<KeptBlock> pipeline({});
  const int64_t steps = chunk_end - chunk;
  const BlockRows x{x_rows(o).at(0, chunk), n_blocks_};
  for (UpperBlocks at = upper_blocks(o, x, steps, begin, end, worker); at.next();) {
    float* to = sums(o, at.i(), at.j());
    pipeline.multiply(at.left(), at.panel(), steps, chunk > 0 ? to : nullptr, to, {}, at.part());
  }
}

// The last chunk: A itself.
ASHLAR_TILES void TileMatrices::end_gram(const TileOperands& o, int64_t chunk, int64_t begin,
                                         int64_t end, int worker) const {
  const TileScope tiles;
  Scratch scratch, pairs;
  Pipeline<BlockOfA> pipeline({scratch.at[0], scratch.at[0], scratch.at[1]});
  const int64_t steps = n_blocks_ - chunk;
  const BlockRows x{x_rows(o).at(0, chunk), n_blocks_}, a = square(o.a);
  int64_t count = 0;  // pairs are turned one block later: every second block has its own
  for (UpperBlocks at = upper_blocks(o, x, steps, begin, end, worker); at.next();)
    pipeline.multiply(at.left(), at.panel(), steps, chunk > 0 ? sums(o, at.i(), at.j()) : nullptr,
                      nullptr, {a.at(at.i(), at.j()), pairs.at[count++ % 2], a.at(at.j(), at.i())},
                      at.part());
  pipeline.finish();
}

ASHLAR_TILES void TileMatrices::polynomial(const TileOperands& o, int64_t begin, int64_t end,
                                           int worker) const {
  const TileScope tiles;
  Scratch scratch, pairs;
  Sums diagonal = {};
  for (int64_t r = 0; r < kSide; ++r) diagonal.row(r)[r / 16 * 256 + r % 16] = float(kA / kC);
  Pipeline<BlockOfP> pipeline({scratch.at[0], scratch.at[0], scratch.at[1], scratch.at[0]});
  const BlockRows a = square(o.a), p = square(o.p);
  int64_t count = 0;
  for (UpperBlocks at = upper_blocks(o, a, m_blocks_, begin, end, worker); at.next();) {
    const int64_t i = at.i(), j = at.j();
    pipeline.multiply(at.left(), at.panel(), m_blocks_, i == j ? diagonal.at : nullptr, nullptr,
                      {p.at(i, j), pairs.at[count++ % 2], p.at(j, i), a.at(i, j)}, at.part());
  }
  pipeline.finish();
}

// Columns of P X; place(i, c) says what becomes of a block, part(block, next) what is done beside.
template <typename Block, typename Place, typename Part>
ASHLAR_TILES_INLINE void TileMatrices::multiply_by_p(const TileOperands& o, int64_t begin,
                                                     int64_t end, int worker, const Block& idle,
                                                     const Place& place, const Part& part) const {
  const TileScope tiles;
  Pipeline<Block> pipeline(idle);
  const BlockRows x = x_rows(o);
  for (int64_t i = 0; i < m_blocks_; ++i)
    for (int64_t q = 0; q < kSlices; ++q)
      interleave(x.at(i, begin), panel(o, worker, begin) + i * kBlockBytes, q);
  for (int64_t c = begin; c < end; ++c)
    for (int64_t i = 0; i < m_blocks_; ++i) {
      const Block block = place(i, c);
      const InterleavedPart next{c + 1 < end ? x.at(i, c + 1) : nullptr,
                                 panel(o, worker, c + 1) + i * kBlockBytes};
      pipeline.multiply(square(o.p).at(i, 0), panel(o, worker, c), m_blocks_, nullptr, nullptr,
                        block, part(block, next));
    }
  pipeline.finish();
}

ASHLAR_TILES void TileMatrices::update(const TileOperands& o, int64_t begin, int64_t end,
                                       int worker) const {
  Scratch scratch;
  const BlockRows x = x_rows(o);
  multiply_by_p(
      o, begin, end, worker, BlockOfX{scratch.at[0]},
      [&](int64_t i, int64_t c) { return BlockOfX{x.at(i, c)}; },
      [](const BlockOfX&, const InterleavedPart& next) { return next; });
}

ASHLAR_TILES void TileMatrices::store(const TileOperands& o, float* x_MN, int64_t begin,
                                      int64_t end, int worker) const {
  multiply_by_p(
      o, begin, end, worker, BlockOfResult{nullptr, 0, 0, 0, false},
      [&](int64_t i, int64_t c) {
        const int64_t row = (tall_ ? c : i) * kSide, col = (tall_ ? i : c) * kSide;
        return BlockOfResult{x_MN + row * N_ + col, N_, M_ - row, N_ - col, tall_};
      },
      [](const BlockOfResult& block, const InterleavedPart& next) {
        return StoredPart{next, block.x, block.stride};
      });
}

}  // namespace

void orthogonalize_tiles(const Context& ctx, const Stacks& stacks, int steps) {
  const TileMatrices matrices(ctx, stacks.M(), stacks.N(), steps, stacks.slots(), stacks.workers());
  if (ctx.meta()) return;
  stacks.run(
      [&](Threads* threads, int64_t slot, float* x_MN) { matrices.run({threads}, slot, x_MN); });
}

}  // namespace ashlar::kernels::cpu::newton_schulz

#endif
