// How it works, but for bf16 on tiles (newton_schulz_tiles.cpp).  X [M, N] has the short side m and
// the long side n.  Every product reads a left operand in rows and a right one in panels; the shape
// of X decides which operand is which:
//
//                                  wide, M <= N             tall, M > N
//                                  left       panels        left       panels
//   gram         A =               X          X^T           X^T        X
//   polynomial   S = b A + c A^2   A          A             A          A
//   update       X = a X + ..      S          X             X          S
//
// A step packs X (pack_x), then runs the three.  polynomial is computed as c (A A + b/c A), so that
// its sums start with A.  Through the Gram matrix the steps run on A and on the product Q of all
// factors P = a I + S so far (iterate_gram); X is used only at the beginning and at the end.
//
// A product is cut into tasks of 128 rows by one panel, whose sums are on the stack.  Symmetric
// results are computed where a block touches the upper triangle; the lower one is then copied.
// Either every worker has a slot of operands and runs whole matrices, or all workers share the
// tasks of one matrix (Loop).  The sums are the same in both cases.
#include <emmintrin.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "ashlar/core/error.h"
#include "ashlar/core/rounding.h"
#include "ashlar/kernels/cpu/gemm/engine.h"
#include "ashlar/kernels/cpu/ops.h"
#include "ashlar/kernels/cpu/optim/newton_schulz_reference.h"
#include "ashlar/kernels/cpu/optim/newton_schulz_stacks.h"
#include "ashlar/kernels/cpu/optim/newton_schulz_tiles.h"
#include "ashlar/kernels/isa.h"

namespace ashlar::kernels::cpu {
namespace {

using gemm::Engine;
using gemm::Left;
using gemm::Source;
using newton_schulz::kA;
using newton_schulz::kB;
using newton_schulz::kC;
using newton_schulz::kTiny;

constexpr int64_t kTaskRows = 128;  // rows of a task of a product, by one panel

// Runs body(i) for i in [0, count): on this thread, or on all where one matrix has them to itself.
struct Loop {
  Threads* threads;  // null: this thread
  void operator()(int64_t count, function_ref<void(int64_t)> body) const {
    if (threads) return threads->run(count, [&](int64_t i, int) { body(i); });
    for (int64_t i = 0; i < count; ++i) body(i);
  }
};

// A matrix of the engine's elements in padded rows: columns beyond its own are zero, up to a whole
// panel, so that products may read the padded K of an engine.
struct Rows {
  std::byte* data = nullptr;
  int64_t rows = 0, cols = 0, stride = 0;
  DType dtype = DType::kBF16;
  int64_t row_bytes() const { return stride * size_of(dtype); }
  Source source() const { return {data, dtype, stride}; }
  std::byte* at(int64_t row, int64_t col) const {
    return data + (row * stride + col) * size_of(dtype);
  }
};

int64_t stride_of(const Engine& engine, int64_t cols) {
  const int64_t stride = round_up(cols, engine.width);
  constexpr int64_t kPage = 4096;  // rows a page apart fall into few sets of the first-level cache
  return stride * size_of(engine.element) % kPage == 0 ? stride + engine.width : stride;
}

// Operands of one matrix X [M, N] and its square side m.
struct Operands {
  Rows x, next, gram, poly;   // X, its successor; A; S
  Rows product, spare, half;  // through the Gram matrix: Q, its successor, P A
  // Where X is tall, its panels are also the left operand of gram.
  std::byte *x_panels, *gram_panels, *update_panels;
};

// Q = a I + poly, of fp32 elements.
void start_product(const Loop& loop, const Rows& poly, const Rows& product) {
  loop(poly.rows, [&](int64_t row) {
    std::memcpy(product.at(row, 0), poly.at(row, 0), size_t(poly.row_bytes()));
    *reinterpret_cast<float*>(product.at(row, row)) += float(kA);
  });
}

// Rows of one panel's columns, in tiles of even height, into rows of `width` floats.
void run_rows(const Engine& engine, int64_t rows, int64_t padded_k, const Left& a,
              const std::byte* panel, float* c, bool accumulate) {
  const int64_t num_tiles = ceil_div(rows, engine.max_rows);
  if (engine.enter) engine.enter();
  for (int64_t t = 0; t < num_tiles; ++t) {
    const int64_t row = rows * t / num_tiles, next = rows * (t + 1) / num_tiles;
    engine.tile(next - row, padded_k, {a.data + row * a.row_bytes, a.row_bytes, a.step_bytes},
                panel, c + row * engine.width, engine.width, accumulate);
  }
  if (engine.leave) engine.leave();
}

class Matrices {
 public:
  Matrices(const Context& ctx, const Engine& engine, int64_t M, int64_t N, int64_t slots,
           bool through_gram)
      : engine_(engine), M_(M), N_(N), tall_(M > N), through_gram_(through_gram) {
    slot_bytes_ = lay_out(nullptr).second;
    memory_ = ctx.workspace->take(DType::kU8, {slots * slot_bytes_}).data;
  }

  void run(const Loop& loop, int64_t slot, float* x_MN, int steps) const {
    Operands o = lay_out(memory_ + slot * slot_bytes_).first;
    load(loop, x_MN, o.x);
    if (through_gram_)
      iterate_gram(loop, o, steps);
    else
      iterate(loop, o, steps);
    store(loop, o.x, x_MN);
  }

 private:
  using Tile = std::array<float, 32 * 32>;

  std::pair<Operands, int64_t> lay_out(std::byte* base) const;
  void load(const Loop& loop, const float* x_MN, const Rows& x) const;
  void store(const Loop& loop, const Rows& x, float* x_MN) const;
  void pack(const Loop& loop, const Rows& from, bool transposed, std::byte* panels) const;
  void pack_x(const Loop& loop, const Operands& o) const;
  void iterate(const Loop& loop, Operands& o, int steps) const;
  void iterate_gram(const Loop& loop, Operands& o, int steps) const;
  void gram(const Loop& loop, const Operands& o) const;
  void polynomial(const Loop& loop, const Operands& o) const;
  void update(const Loop& loop, Operands& o, const Rows& square, double add_factor) const;
  void advance(const Loop& loop, const Operands& o, const Rows& from, const Rows& to) const;
  void multiply(const Loop& loop, int64_t K, const Left& left, const std::byte* panels,
                const Rows& to, const Rows* add, double add_factor, double factor,
                bool symmetric) const;
  void mirror(const Loop& loop, const Rows& s) const;
  int64_t m() const { return std::min(M_, N_); }
  int64_t n() const { return std::max(M_, N_); }
  Left rows_left(const Rows& rows) const {
    return {rows.data, rows.row_bytes(), engine_.unit * size_of(engine_.element)};
  }

  const Engine& engine_;
  int64_t M_, N_;
  bool tall_, through_gram_;
  int64_t slot_bytes_ = 0;
  std::byte* memory_ = nullptr;
};

// The operands of one slot from `base` on, and the bytes that they take.
std::pair<Operands, int64_t> Matrices::lay_out(std::byte* base) const {
  int64_t used = 0;
  const auto take = [&](int64_t bytes) {
    constexpr int64_t kLine = 64;
    std::byte* at = base ? base + used : nullptr;
    used += round_up(bytes, kLine);
    return at;
  };
  const auto rows = [&](int64_t num_rows, int64_t cols) {
    const int64_t stride = stride_of(engine_, cols);
    return Rows{take(num_rows * stride * size_of(engine_.element)), num_rows, cols, stride,
                engine_.element};
  };
  const auto panels = [&](int64_t depth, int64_t cols) {
    return take(engine_.num_panels(cols) * engine_.panel_bytes(depth));
  };
  Operands o;
  o.x = rows(M_, N_);
  o.next = rows(M_, N_);
  o.gram = rows(m(), m());
  o.poly = rows(m(), m());
  if (through_gram_) {
    o.product = rows(m(), m());
    o.spare = rows(m(), m());
    o.half = rows(m(), m());
  }
  o.x_panels = panels(n(), m());
  o.gram_panels = panels(m(), m());
  // Wide: S is the left operand of the update and X its panels; tall: the other way round.
  o.update_panels = panels(m(), tall_ ? m() : n());
  return {o, used};
}

// X / (||X||_F + tiny) in the engine's elements.
void Matrices::load(const Loop& loop, const float* x_MN, const Rows& x) const {
  const auto factor =
      float(1.0 / (std::sqrt(newton_schulz::sum_of_squares(x_MN, M_ * N_)) + kTiny));
  constexpr int64_t kRows = 16;
  loop(ceil_div(M_, kRows), [&](int64_t block) {
    const int64_t row = block * kRows, rows = std::min(kRows, M_ - row);
    for (int64_t col = 0; col < N_; col += engine_.width) {
      Tile tile;
      engine_.scale_rows(
          Source{reinterpret_cast<const std::byte*>(x_MN), DType::kF32, N_}.at(row, col), rows,
          std::min(engine_.width, N_ - col), factor, tile.data());
      const Source source{reinterpret_cast<const std::byte*>(tile.data()), DType::kF32,
                          engine_.width};
      engine_.pack_rows(source, rows, engine_.width, engine_.round, x.at(row, col), x.row_bytes());
    }
  });
}

void Matrices::store(const Loop& loop, const Rows& x, float* x_MN) const {
  constexpr int64_t kRows = 16;
  loop(ceil_div(M_, kRows), [&](int64_t block) {
    for (int64_t row = block * kRows; row < std::min((block + 1) * kRows, M_); ++row)
      for (int64_t col = 0; col < N_; col += engine_.width) {
        Tile tile;
        engine_.scale_rows(x.source().at(row, col), 1, engine_.width, 1.0f, tile.data());
        std::memcpy(x_MN + row * N_ + col, tile.data(),
                    size_t(std::min(engine_.width, N_ - col)) * sizeof(float));
      }
  });
}

// Panels of `from` (its columns, or its rows if transposed).
void Matrices::pack(const Loop& loop, const Rows& from, bool transposed, std::byte* panels) const {
  const int64_t depth = transposed ? from.cols : from.rows,
                cols = transposed ? from.rows : from.cols;
  loop(engine_.num_panels(cols), [&](int64_t p) {
    const int64_t col = p * engine_.width, count = std::min(engine_.width, cols - col);
    std::byte* panel = panels + p * engine_.panel_bytes(depth);
    if (transposed)
      engine_.pack_panel_transposed(from.source().at(col, 0), depth, count, engine_.round, panel);
    else
      engine_.pack_panel(from.source().at(0, col), depth, count, engine_.round, panel);
  });
}

void Matrices::pack_x(const Loop& loop, const Operands& o) const {
  pack(loop, o.x, !tall_, o.x_panels);
  if (!tall_) pack(loop, o.x, false, o.update_panels);
}

// to = factor * (left B + add_factor * add) in the engine's elements; symmetric: B and `to` are
// square, blocks below the diagonal are mirrored instead of computed.
void Matrices::multiply(const Loop& loop, int64_t K, const Left& left, const std::byte* panels,
                        const Rows& to, const Rows* add, double add_factor, double factor,
                        bool symmetric) const {
  // A left operand in panels has its rows in groups of `width`.  It is known by its rows, which are
  // one group of neighbours apart.
  const int64_t width = engine_.width, num_panels = engine_.num_panels(to.cols),
                panel_bytes = engine_.panel_bytes(K), bytes = size_of(engine_.element);
  const bool panel_left = left.row_bytes == engine_.unit * bytes;
  const int64_t group = panel_left ? width : kTaskRows,
                group_bytes = panel_left ? panel_bytes : group * left.row_bytes;
  const gemm::Parts parts(engine_, K);
  const int64_t task_blocks = ceil_div(to.rows, kTaskRows);
  loop(task_blocks * num_panels, [&](int64_t task) {
    // From the last panel on: of a symmetric result it has most rows.
    const int64_t p = num_panels - 1 - task / task_blocks, row = task % task_blocks * kTaskRows;
    const int64_t end = std::min(to.rows, symmetric ? (p + 1) * width : to.rows),
                  rows = std::min(kTaskRows, end - row);
    if (rows <= 0) return;
    alignas(64) std::array<float, kTaskRows * 32> sums;
    const Source source{reinterpret_cast<const std::byte*>(sums.data()), DType::kF32, width};
    if (add)
      engine_.scale_rows(add->source().at(row, p * width), rows, width, float(add_factor),
                         sums.data());
    for (int64_t part = 0; part < parts.count; ++part) {
      const int64_t k = parts.begin(part);
      const std::byte* panel = panels + p * panel_bytes + k * width * bytes;
      for (int64_t r = 0; r < rows; r += group) {
        const Left a{
            left.data + (row + r) / group * group_bytes + k / engine_.unit * left.step_bytes,
            left.row_bytes, left.step_bytes};
        run_rows(engine_, std::min(group, rows - r), parts.size(part), a, panel,
                 sums.data() + r * width, add || part > 0);
      }
    }
    if (factor != 1) engine_.scale_rows(source, rows, width, float(factor), sums.data());
    engine_.pack_rows(source, rows, width, engine_.round, to.at(row, p * width), to.row_bytes());
  });
  if (symmetric) mirror(loop, to);
}

// Writes the transpose of a square block of kSide rows, in the 128-bit registers that every x86-64
// has.
struct Block16 {  // elements of 16 bits
  static constexpr int64_t kSide = 8;
  static void transpose(const uint16_t* from, int64_t from_stride, uint16_t* to,
                        int64_t to_stride) {
    __m128i x[kSide], y[kSide];
    for (int64_t i = 0; i < kSide; ++i)
      x[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * from_stride));
    // Rows i and i + 4 are interleaved three times.
    for (int64_t i = 0; i < 4; ++i) {
      y[2 * i] = _mm_unpacklo_epi16(x[i], x[i + 4]);
      y[2 * i + 1] = _mm_unpackhi_epi16(x[i], x[i + 4]);
    }
    for (int64_t i = 0; i < 4; ++i) {
      x[2 * i] = _mm_unpacklo_epi16(y[i], y[i + 4]);
      x[2 * i + 1] = _mm_unpackhi_epi16(y[i], y[i + 4]);
    }
    for (int64_t i = 0; i < 4; ++i) {
      y[2 * i] = _mm_unpacklo_epi16(x[i], x[i + 4]);
      y[2 * i + 1] = _mm_unpackhi_epi16(x[i], x[i + 4]);
    }
    for (int64_t i = 0; i < kSide; ++i)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i * to_stride), y[i]);
  }
};
struct Block32 {  // elements of 32 bits
  static constexpr int64_t kSide = 4;
  static void transpose(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
    __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + from_stride),
           c = _mm_loadu_ps(from + 2 * from_stride), d = _mm_loadu_ps(from + 3 * from_stride);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a), _mm_storeu_ps(to + to_stride, b);
    _mm_storeu_ps(to + 2 * to_stride, c), _mm_storeu_ps(to + 3 * to_stride, d);
  }
};

// Copies what stands above the diagonal to its mirror image in rows [row, row + rows).
template <typename T, typename Block>
void mirror_rows(const Rows& s, int64_t row, int64_t rows) {
  constexpr int64_t kSide = Block::kSide;
  T* data = reinterpret_cast<T*>(s.data);
  const int64_t end = row + rows, whole = row + rows / kSide * kSide;
  for (int64_t j = 0; j < row; j += kSide)  // row is a multiple of kSide
    for (int64_t i = row; i < whole; i += kSide)
      Block::transpose(data + j * s.stride + i, s.stride, data + i * s.stride + j, s.stride);
  for (int64_t i = row; i < end; ++i)
    for (int64_t j = i < whole ? row : 0; j < i; ++j)
      data[i * s.stride + j] = data[j * s.stride + i];
}

// Tasks read above the diagonal and write below it, so that they do not meet.
void Matrices::mirror(const Loop& loop, const Rows& s) const {
  constexpr int64_t kRows = 32;  // of bf16 a cache line
  loop(ceil_div(s.rows, kRows), [&](int64_t block) {
    const int64_t row = block * kRows, rows = std::min(kRows, s.rows - row);
    if (s.dtype == DType::kBF16)
      mirror_rows<uint16_t, Block16>(s, row, rows);
    else
      mirror_rows<float, Block32>(s, row, rows);
  });
}

void Matrices::gram(const Loop& loop, const Operands& o) const {
  const int64_t pair_bytes = engine_.unit * size_of(engine_.element);
  const Left left =
      tall_ ? Left{o.x_panels, pair_bytes, pair_bytes * engine_.width} : rows_left(o.x);
  multiply(loop, n(), left, o.x_panels, o.gram, nullptr, 0, 1, true);
}

void Matrices::polynomial(const Loop& loop, const Operands& o) const {
  pack(loop, o.gram, false, o.gram_panels);
  multiply(loop, m(), rows_left(o.gram), o.gram_panels, o.poly, &o.gram, kB / kC, kC, true);
}

// X <- square X + add_factor X, or X square + add_factor X where X is tall.
void Matrices::update(const Loop& loop, Operands& o, const Rows& square, double add_factor) const {
  if (tall_) pack(loop, square, false, o.update_panels);
  multiply(loop, m(), rows_left(tall_ ? o.x : square), o.update_panels, o.next,
           add_factor != 0 ? &o.x : nullptr, add_factor, 1, false);
  std::swap(o.x, o.next);
}

void Matrices::iterate(const Loop& loop, Operands& o, int steps) const {
  for (int step = 0; step < steps; ++step) {
    pack_x(loop, o);
    gram(loop, o);
    polynomial(loop, o);
    update(loop, o, o.poly, kA);
  }
}

// to = P from = a from + S from.  Polynomials of A commute, so the product is symmetric.
void Matrices::advance(const Loop& loop, const Operands& o, const Rows& from,
                       const Rows& to) const {
  pack(loop, from, false, o.gram_panels);
  multiply(loop, m(), rows_left(o.poly), o.gram_panels, to, &from, kA, 1, true);
}

void Matrices::iterate_gram(const Loop& loop, Operands& o, int steps) const {
  pack_x(loop, o);
  gram(loop, o);
  for (int step = 0; step < steps; ++step) {
    polynomial(loop, o);
    if (step == 0) {
      start_product(loop, o.poly, o.product);
    } else {
      advance(loop, o, o.product, o.spare);
      std::swap(o.product, o.spare);
    }
    if (step + 1 == steps) break;
    // A of the next X is P A P.
    advance(loop, o, o.gram, o.half);
    advance(loop, o, o.half, o.gram);
  }
  update(loop, o, o.product, 0);  // a is in Q already
}

}  // namespace

void orthogonalize(const Context& ctx, DType compute, std::span<const Tensor> stacks_GMN,
                   int steps) {
  ASHLAR_ASSERT(ctx.threads);
  const newton_schulz::Stacks stacks(ctx, stacks_GMN);
  if (stacks.empty()) return;
  const Arena::Scope scope(*ctx.workspace);
  const Engine* engine = gemm::engine_for(ctx, compute);
  if (!engine) {
    for (const Tensor& x_GMN : stacks_GMN)
      newton_schulz::orthogonalize_reference(ctx, compute, x_GMN, steps);
    return;
  }
#if defined(__x86_64__)
  if (compute == DType::kBF16 && isa() == Isa::kAmx)
    return newton_schulz::orthogonalize_tiles(ctx, stacks, steps);
#endif
  const int64_t M = stacks.M(), N = stacks.N();
  const bool uses_gram = newton_schulz_uses_gram(ctx, compute, M, N, steps);
  const Matrices matrices(ctx, *engine, M, N, stacks.slots(), uses_gram);
  if (ctx.meta()) return;
  stacks.run([&](Threads* threads, int64_t slot, float* x_MN) {
    matrices.run({threads}, slot, x_MN, steps);
  });
}

}  // namespace ashlar::kernels::cpu
