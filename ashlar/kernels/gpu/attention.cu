// attention.h, written on scores.h: a warp has 32 lines of a tile, and the block goes over the
// other side in steps of 32 columns, which of bf16 it keeps in shared memory.  The passes forward
// and for queries have tiles of queries, those for keys and values tiles of keys, so that every sum
// is final in the registers of one warp and has one order.  Each backward pass computes the
// probabilities again: 8 products where sums over blocks would need 5, but no partial sums.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/math.h"
#include "ashlar/kernels/gpu/rows.h"
#include "ashlar/kernels/gpu/scores.h"
#include "ashlar/kernels/gpu/tile.h"

namespace ashlar::device {
namespace {

constexpr int kStep = 32, kMaxWarps = 4, kMaxThreads = kMaxWarps * kWarp;
constexpr int kSharedLimit = kWarp == 64 ? 64 << 10 : 163 << 10;  // of sm_80; sm_90 has more

// Where copies to shared memory are asynchronous, those of the next columns run during a step.
template <typename Element>
inline constexpr int kStages = 1;
template <>
inline constexpr int kStages<Bf16> = kWarp == 64 ? 1 : 2;

// Operands in shared memory are filled up with zeros to this width, a whole number of slices.  The
// sums of a block are those of a slice, 32 kTiles columns.
ASHLAR_BOTH constexpr int padded_width(int width) {
  return width <= 32 ? 32 : width <= 64 ? 64 : (width + 127) / 128 * 128;
}
// Lines begin in different banks, except where they would not fit.
ASHLAR_BOTH constexpr int stride_of(int padded) {
  return padded + (kWarp == 64 && padded > 128 ? 0 : 8);
}

ASHLAR_DEVICE float infinity() {
  return bits_to_float(0x7f800000u);
}

template <typename Element>
ASHLAR_DEVICE float power_of_e(float x);
template <>
ASHLAR_DEVICE float power_of_e<float>(float x) {
  return exp(x);
}
template <>
ASHLAR_DEVICE float power_of_e<Bf16>(float x) {
  return fast_exp2(mul(x, 1.44269504f));
}

// Lines [row, row + count) of one side, up to kStep of them, for a query head.
struct Columns {
  int head, row, count, position;
};

// The columns that a tile meets, one query head after the other.
class Walk {
 public:
  ASHLAR_DEVICE Walk(const AttentionCall& call, const AttentionTile& tile, int head, int end_head)
      : call_(call), tile_(tile), head_(head), end_head_(end_head), segment_(tile.first) {}
  ASHLAR_DEVICE bool next(Columns& columns) {
    for (; head_ < end_head_; ++head_, segment_ = tile_.first) {
      for (; segment_ < tile_.end; ++segment_, at_ = 0) {
        const AttentionSegment s = call_.segments[segment_];
        const int begin = tile_.low - s.position, end = tile_.high - s.position;
        if (at_ < begin) at_ = begin;
        const int count = (end < s.length ? end : s.length) - at_;
        if (count <= 0) continue;
        columns = {head_, s.row + at_, count < kStep ? count : kStep, s.position + at_};
        at_ += kStep;
        return true;
      }
    }
    return false;
  }

 private:
  const AttentionCall& call_;
  const AttentionTile& tile_;
  int head_, end_head_, segment_, at_ = 0;
};

// One operand: a head of a tensor [rows, heads * size], from its column first_column on.
struct Source {
  const void* data;
  int heads, size, first_column;
  template <typename Element>
  ASHLAR_DEVICE const Element* at(int row, int head) const {
    return (const Element*)data + (int64_t(row) * heads + head) * size + first_column;
  }
  ASHLAR_DEVICE int width() const { return size - first_column; }
};

template <typename Element>
class Operand;

// Takes `stages` times `lines` lines of shared memory.
template <>
class Operand<Bf16> {
 public:
  ASHLAR_DEVICE Operand(std::byte*& room, const Source& source, int padded, int lines, int stages,
                        bool by_vectors)
      : room_((Bf16*)room),
        source_(source),
        padded_(padded),
        lines_(lines),
        by_vectors_(by_vectors) {
    room += size_t(stages * lines * stride_of(padded)) * sizeof(Bf16);
  }
  // Copies lines [row, row + count), and zeros after them.
  ASHLAR_DEVICE void load(int stage, int row, int count, int head) {
    const int packs = padded_ / kPack, width = source_.width();
    for (int i = thread_index(); i < lines_ * packs; i += block_size()) {
      const int line = i / packs, column = i % packs * kPack;
      Bf16* to = room_ + (stage * lines_ + line) * stride_of(padded_) + column;
      const Bf16* from = source_.at<Bf16>(row + line, head) + column;
      if (line >= count || column >= width)
        store_vector(to, {});
      else if (by_vectors_)
        copy_async(to, from);
      else
        for (int e = 0; e < kPack; ++e) to[e] = column + e < width ? from[e] : Bf16{0};
    }
  }
  ASHLAR_DEVICE Lines<Bf16> lines(int stage) const {
    const int width = source_.width() < padded_ ? source_.width() : padded_;
    return {room_ + stage * lines_ * stride_of(padded_), stride_of(padded_),
            (width + WarpTile::kDepth - 1) / WarpTile::kDepth * WarpTile::kDepth};
  }

 private:
  Bf16* room_;
  Source source_;
  int padded_, lines_;
  bool by_vectors_;
};

// Stays where it is.
template <>
class Operand<float> {
 public:
  ASHLAR_DEVICE Operand(std::byte*&, const Source& source, int, int, int, bool) : source_(source) {}
  ASHLAR_DEVICE void load(int, int row, int count, int head) {
    lines_ = {source_.at<float>(row, head), int64_t(source_.heads) * source_.size, count,
              source_.width()};
  }
  ASHLAR_DEVICE const Lines<float>& lines(int) const { return lines_; }

 private:
  Source source_;
  Lines<float> lines_ = {};
};

// Calls load(stage, columns) and use(stage, columns) for all columns of a walk.  Copies that were
// issued before the call are there in use.
template <int stages, typename Load, typename Use>
ASHLAR_DEVICE void for_each_columns(Walk walk, Load load, Use use) {
  Columns now, then = {};
  bool some = walk.next(now);
  if (stages == 2 && some) load(0, now);
  copy_commit();
  for (int stage = 0; some; stage = (stage + 1) % stages) {
    const bool more = walk.next(then);
    if (stages == 1)
      load(0, now);
    else if (more)
      load(1 - stage, then);
    copy_commit();
    copy_wait<stages - 1>();
    sync_block();
    use(stage, now);
    sync_block();  // before these columns are overwritten
    now = then;
    some = more;
  }
}

// Queries see keys at their own position and up to window - 1 before it.
enum class Side { kQueries, kKeys };
template <Side rows>
class Sight {
 public:
  // Rows [position, + 32) against columns.
  ASHLAR_DEVICE Sight(int position, const Columns& columns, int window)
      : distance_(rows == Side::kQueries ? position - columns.position
                                         : columns.position - position),
        count_(columns.count),
        window_(window) {}
  ASHLAR_DEVICE bool sees(int row, int column) const {
    const int distance = distance_ + (rows == Side::kQueries ? row - column : column - row);
    return column < count_ && distance >= 0 && distance < window_;
  }
  ASHLAR_DEVICE bool none() const { return most() < 0 || least() >= window_; }
  ASHLAR_DEVICE bool all() const { return least() >= 0 && most() < window_ && count_ == kStep; }

 private:
  ASHLAR_DEVICE int least() const {
    return distance_ - (rows == Side::kQueries ? count_ - 1 : kStep - 1);
  }
  ASHLAR_DEVICE int most() const {
    return distance_ + (rows == Side::kQueries ? kStep - 1 : count_ - 1);
  }
  int distance_, count_, window_;
};

// This is what a block does.
template <int kTiles>
struct Work {
  ASHLAR_DEVICE Work(const AttentionCall& call, int num_heads, int width) {
    const int slices = (width + 32 * kTiles - 1) / (32 * kTiles);
    head = block_index() % num_heads;
    first_column = block_index() / num_heads % slices * 32 * kTiles;
    tile = call.tiles[block_index() / num_heads / slices];
    first_line = thread_index() / kWarp * kStep;
  }
  int head, first_column;
  AttentionTile tile;
  int first_line;  // of this warp
};

template <typename Element>
ASHLAR_DEVICE std::byte* room_of_warp() {
  return shared_memory() + thread_index() / kWarp * WarpScores<Element>::kRoomBytes;
}

// The largest scores of rows so far, and the sums of their powers: each thread has its share.
template <typename Element>
class Softmax {
 public:
  using S = WarpScores<Element>;
  ASHLAR_DEVICE Softmax() {
#pragma unroll
    for (int slot = 0; slot < S::kSlots; ++slot) most_[slot] = -infinity(), total_[slot] = 0;
  }
  // Turns scores into powers of e, and scales what was summed before.
  template <typename Sums>
  ASHLAR_DEVICE void update(S& s, Sums& sums) {
    float now[S::kSlots], base[S::kSlots], factor[S::kSlots];
#pragma unroll
    for (int slot = 0; slot < S::kSlots; ++slot) now[slot] = most_[slot];
    for_each_score(s,
                   [&](int slot, int, int, float x) { now[slot] = x > now[slot] ? x : now[slot]; });
    S::join(now, [](float a, float b) { return a > b ? a : b; });
    bool scales = false;
#pragma unroll
    for (int slot = 0; slot < S::kSlots; ++slot) {
      base[slot] = now[slot] == -infinity() ? 0.0f : now[slot];  // a row that saw nothing yet
      factor[slot] = power_of_e<Element>(add(most_[slot], -base[slot]));
      most_[slot] = now[slot];
      total_[slot] = mul(total_[slot], factor[slot]);
      scales |= factor[slot] != 1.0f;
    }
    for_each_score(s, [&](int slot, int, int, float& x) {
      x = power_of_e<Element>(add(x, -base[slot]));
      total_[slot] = add(total_[slot], x);
    });
    if (scales) scale(sums, factor);
  }
  ASHLAR_DEVICE void join() {
    S::join(total_, [](float a, float b) { return add(a, b); });
  }
  // After join.
  ASHLAR_DEVICE float inverse(int slot) const {
    return total_[slot] == 0.0f ? 0.0f : div(1.0f, total_[slot]);
  }
  ASHLAR_DEVICE float lse(int slot) const {
    return add(most_[slot], log(total_[slot]));
  }

 private:
  float most_[S::kSlots], total_[S::kSlots];
};

template <typename Element, int kTiles>
ASHLAR_KERNEL(kMaxThreads)
attention_forward_kernel(AttentionForward x) {
  const AttentionCall& c = x.call;
  const Work<kTiles> work(c, c.num_heads, c.value_size);
  const AttentionTile& tile = work.tile;
  const int group = c.num_heads / c.num_kv_heads, head = work.head, lines = work.first_line;
  const int warps = block_size() / kWarp, width = padded_width(c.head_size);
  std::byte* room = shared_memory();
  Operand<Element> q(room, {c.q.data, c.num_heads, c.head_size, 0}, width, warps * kStep, 1,
                     c.by_vectors);
  Operand<Element> k(room, {c.k.data, c.num_kv_heads, c.head_size, 0}, width, kStep,
                     kStages<Element>, c.by_vectors);
  Operand<Element> v(room, {c.v.data, c.num_kv_heads, c.value_size, work.first_column}, 32 * kTiles,
                     kStep, kStages<Element>, c.by_vectors);
  Softmax<Element> softmax;
  ScoreSums<Element, kTiles> sums;
  q.load(0, tile.row, tile.length, head);
  for_each_columns<kStages<Element>>(
      Walk(c, tile, head, head + 1),
      [&](int stage, const Columns& columns) {
        k.load(stage, columns.row, columns.count, head / group);
        v.load(stage, columns.row, columns.count, head / group);
      },
      [&](int stage, const Columns& columns) {
        const Sight<Side::kQueries> sight(tile.position + lines, columns, c.window);
        if (lines >= tile.length || sight.none()) return;
        WarpScores<Element> s(room_of_warp<Element>());
        s.multiply(q.lines(0).from(lines), k.lines(stage));
        const bool all = sight.all();
        for_each_score(s, [&](int, int row, int column, float& score) {
          score = all || sight.sees(row, column) ? mul(score, c.scale) : -infinity();
        });
        softmax.update(s, sums);
        sums.add(s, v.lines(stage), 0);
      });
  softmax.join();
  const auto at = [&](int row) { return int64_t(tile.out_row + lines + row) * c.num_heads + head; };
  for_each_sum(sums, [&](int slot, int row, int column, float sum) {
    column += work.first_column;
    if (lines + row < tile.length && column < c.value_size)
      store_element(mul(sum, softmax.inverse(slot)), x.out, at(row) * c.value_size + column);
  });
  if (!WarpScores<Element>::is_first() || work.first_column > 0) return;
#pragma unroll
  for (int slot = 0; slot < WarpScores<Element>::kSlots; ++slot) {
    const int row = WarpScores<Element>::row(slot);
    if (lines + row < tile.length) c.lse[at(row)] = softmax.lse(slot);
  }
}

// A thread has an element of out.
constexpr int kJoinThreads = 128;

ASHLAR_KERNEL(kJoinThreads) attention_join_kernel(AttentionJoin x) {
  const int64_t at = int64_t(block_index()) * block_size() + thread_index();
  if (at >= x.rows * x.width) return;
  const int64_t row = at / x.width;
  float most = -infinity();
  for (int64_t part = 0; part < x.parts; ++part) {
    const float lse = x.lses[part * x.rows + row];
    most = lse > most || lse != lse ? lse : most;
  }
  float sum = 0, total = 0;
  for (int64_t part = 0; part < x.parts; ++part) {
    const float lse = x.lses[part * x.rows + row];
    if (lse == -infinity()) continue;  // it saw nothing
    const float weight = exp(add(lse, -most));
    total = add(total, weight);
    sum = fma(weight, x.outs[part * x.rows * x.width + at], sum);
  }
  store_element(total == 0.0f ? 0.0f : div(sum, total), x.out, at);
  if (at % x.width == 0) x.lse[row] = total == 0.0f ? -infinity() : add(most, log(total));
}

constexpr int kDotThreads = 256, kDotRows = kDotThreads / kLanes;

ASHLAR_KERNEL(kDotThreads) attention_dots_kernel(AttentionDots x) {
  const int64_t row = int64_t(block_index()) * kDotRows + thread_index() / kLanes;
  float dot = 0;
  if (row < x.rows)
    for (int64_t c = thread_index() % kLanes; c < x.width; c += kLanes)
      dot =
          fma(load_element(x.out, row * x.width + c), load_element(x.dout, row * x.width + c), dot);
  dot = lane_sum(dot);
  if (row < x.rows && thread_index() % kLanes == 0) x.dots[row] = dot;
}

// Stores the sums of the warp's lines, times factor, to a gradient [lines, heads * width].
template <int kTiles, typename Sums>
ASHLAR_DEVICE void store_gradient(Sums& sums, const Work<kTiles>& work, float factor, float* to,
                                  int num_heads, int width) {
  for_each_sum(sums, [&](int, int row, int column, float sum) {
    row += work.first_line;
    column += work.first_column;
    if (row < work.tile.length && column < width)
      to[(int64_t(work.tile.row + row) * num_heads + work.head) * width + column] =
          mul(sum, factor);
  });
}

// dv += P^T dout, over the query heads of a kv head.
template <typename Element, int kTiles>
ASHLAR_KERNEL(kMaxThreads)
attention_values_kernel(AttentionBackward x) {
  const AttentionCall& c = x.call;
  const Work<kTiles> work(c, c.num_kv_heads, c.value_size);
  const AttentionTile& tile = work.tile;
  const int group = c.num_heads / c.num_kv_heads, lines = work.first_line;
  const int warps = block_size() / kWarp, width = padded_width(c.head_size);
  std::byte* room = shared_memory();
  Operand<Element> k(room, {c.k.data, c.num_kv_heads, c.head_size, 0}, width, warps * kStep, 1,
                     c.by_vectors);
  Operand<Element> q(room, {c.q.data, c.num_heads, c.head_size, 0}, width, kStep, kStages<Element>,
                     c.by_vectors);
  Operand<Element> dout(room, {x.dout.data, c.num_heads, c.value_size, work.first_column},
                        32 * kTiles, kStep, kStages<Element>, c.by_vectors);
  ScoreSums<Element, kTiles> sums;
  k.load(0, tile.row, tile.length, work.head);
  for_each_columns<kStages<Element>>(
      Walk(c, tile, work.head * group, (work.head + 1) * group),
      [&](int stage, const Columns& columns) {
        q.load(stage, columns.row, columns.count, columns.head);
        dout.load(stage, columns.row, columns.count, columns.head);
      },
      [&](int stage, const Columns& columns) {
        const Sight<Side::kKeys> sight(tile.position + lines, columns, c.window);
        if (lines >= tile.length || sight.none()) return;
        WarpScores<Element> s(room_of_warp<Element>());
        s.multiply(k.lines(0).from(lines), q.lines(stage));
        for_each_score(s, [&](int, int row, int column, float& score) {
          if (!sight.sees(row, column)) return void(score = 0);
          const float lse = c.lse[int64_t(columns.row + column) * c.num_heads + columns.head];
          score = power_of_e<Element>(fma(score, c.scale, -lse));
        });
        sums.add(s, dout.lines(stage), 0);
      });
  store_gradient(sums, work, 1.0f, x.gradient, c.num_kv_heads, c.value_size);
}

// dS = P (dout v^T - dots) scale;  dq += dS k,  dk += dS^T q.
template <typename Element, int kTiles, Side side>
ASHLAR_KERNEL(kMaxThreads)
attention_scores_kernel(AttentionBackward x) {
  constexpr bool kQueries = side == Side::kQueries;
  const AttentionCall& c = x.call;
  const int num_heads = kQueries ? c.num_heads : c.num_kv_heads;
  const int num_others = kQueries ? c.num_kv_heads : c.num_heads;
  const Work<kTiles> work(c, num_heads, c.head_size);
  const AttentionTile& tile = work.tile;
  const int group = c.num_heads / c.num_kv_heads, lines = work.first_line;
  const int of_tile = block_size() / kWarp * kStep;
  const int width = padded_width(c.head_size), value_width = padded_width(c.value_size);
  std::byte* room = shared_memory();
  const auto operand = [&](const Elements& of, int heads, int size, int padded, int count,
                           int stages) {
    return Operand<Element>(room, {of.data, heads, size, 0}, padded, count, stages, c.by_vectors);
  };
  auto mine = operand(kQueries ? c.q : c.k, num_heads, c.head_size, width, of_tile, 1);
  auto my_values =
      operand(kQueries ? x.dout : c.v, num_heads, c.value_size, value_width, of_tile, 1);
  auto others =
      operand(kQueries ? c.k : c.q, num_others, c.head_size, width, kStep, kStages<Element>);
  auto others_values = operand(kQueries ? c.v : x.dout, num_others, c.value_size, value_width,
                               kStep, kStages<Element>);
  ScoreSums<Element, kTiles> sums;
  mine.load(0, tile.row, tile.length, work.head);
  my_values.load(0, tile.row, tile.length, work.head);
  for_each_columns<kStages<Element>>(
      kQueries ? Walk(c, tile, work.head, work.head + 1)
               : Walk(c, tile, work.head * group, (work.head + 1) * group),
      [&](int stage, const Columns& columns) {
        const int head = kQueries ? columns.head / group : columns.head;
        others.load(stage, columns.row, columns.count, head);
        others_values.load(stage, columns.row, columns.count, head);
      },
      [&](int stage, const Columns& columns) {
        const Sight<side> sight(tile.position + lines, columns, c.window);
        if (lines >= tile.length || sight.none()) return;
        const auto there = [&](int row, int column) {
          return lines + row < tile.length && sight.sees(row, column);
        };
        const auto at = [&](int row, int column) {
          const int query = kQueries ? tile.row + lines + row : columns.row + column;
          return int64_t(query) * c.num_heads + columns.head;
        };
        WarpScores<Element> s(room_of_warp<Element>()), dp(room_of_warp<Element>());
        s.multiply(mine.lines(0).from(lines), others.lines(stage));
        dp.multiply(my_values.lines(0).from(lines), others_values.lines(stage));
        for_each_score(s, dp, [&](int, int row, int column, float& score, float of_power) {
          if (!there(row, column)) return void(score = 0);
          const int64_t i = at(row, column);
          const float power = power_of_e<Element>(fma(score, c.scale, -c.lse[i]));
          score = mul(power, add(of_power, -x.dots[i]));
        });
        sums.add(s, others.lines(stage), work.first_column);
      });
  store_gradient(sums, work, c.scale, x.gradient, num_heads, c.head_size);
}

// A block holds lines of the tile, of widths a and b, and columns of widths c and d.
struct Shape {
  int warps, bytes;
};
template <typename Element>
Shape shape_of(int a, int b, int c, int d) {
  if (sizeof(Element) == sizeof(float))
    return {kMaxWarps, kMaxWarps * WarpScores<Element>::kRoomBytes};
  const auto stride = [](int width) { return width == 0 ? 0 : stride_of(padded_width(width)); };
  Shape shape{kMaxWarps, 0};
  for (;; shape.warps /= 2) {
    shape.bytes =
        kStep * int(sizeof(Bf16)) *
        (shape.warps * (stride(a) + stride(b)) + kStages<Element> * (stride(c) + stride(d)));
    if (shape.bytes <= kSharedLimit || shape.warps == 1) return shape;
  }
}
static_assert(2 * kStep * 2 * stride_of(256) * sizeof(Bf16) <= kSharedLimit,
              "the widest operands of a warp fit");

template <typename Element>
Shape forward_shape(int head_size, int value_size) {
  const int slice = value_size < 128 ? value_size : 128;
  return shape_of<Element>(head_size, 0, head_size, slice);
}
template <typename Element>
Shape backward_shape(int head_size, int value_size) {
  return shape_of<Element>(head_size, value_size, head_size, value_size);
}

// Calls use(an Element, number of tiles of a slice), of at most kMost tiles.
template <int kMost, typename Use>
std::string with_slices(ElementType type, int width, Use use) {
  if (type == ElementType::kF32) return use(float(), std::integral_constant<int, 1>());
  if (width <= 32) return use(Bf16(), std::integral_constant<int, 1>());
  if constexpr (kMost == 4)
    if (width > 64) return use(Bf16(), std::integral_constant<int, 4>());
  return use(Bf16(), std::integral_constant<int, 2>());
}

template <int tiles>
int64_t num_blocks(const AttentionCall& c, int num_heads, int width) {
  return int64_t(c.num_tiles) * num_heads * ((width + 32 * tiles - 1) / (32 * tiles));
}

template <typename Element, int tiles>
std::string run_backward(void (*kernel)(AttentionBackward), const AttentionBackward& x,
                         int num_heads, int width) {
  const Shape shape = backward_shape<Element>(x.call.head_size, x.call.value_size);
  return run(kernel,
             {num_blocks<tiles>(x.call, num_heads, width), shape.warps * kWarp, shape.bytes}, x);
}

}  // namespace

int attention_tile_rows(AttentionPass pass, ElementType type, int head_size, int value_size) {
  const auto of = [&](auto element) {
    using Element = decltype(element);
    return pass == AttentionPass::kForward ? forward_shape<Element>(head_size, value_size)
                                           : backward_shape<Element>(head_size, value_size);
  };
  return kStep * (type == ElementType::kF32 ? of(float()) : of(Bf16())).warps;
}

std::string launch(const AttentionForward& x) {
  const AttentionCall& c = x.call;
  return with_slices<4>(c.q.type, c.value_size, [&](auto element, auto tiles) {
    using Element = decltype(element);
    const Shape shape = forward_shape<Element>(c.head_size, c.value_size);
    return run(
        attention_forward_kernel<Element, tiles()>,
        {num_blocks<tiles()>(c, c.num_heads, c.value_size), shape.warps * kWarp, shape.bytes}, x);
  });
}

std::string launch(const AttentionJoin& x) {
  const int64_t blocks = (x.rows * x.width + kJoinThreads - 1) / kJoinThreads;
  return run(attention_join_kernel, {blocks, kJoinThreads, 0}, x);
}

std::string launch(const AttentionDots& x) {
  return run(attention_dots_kernel, {(x.rows + kDotRows - 1) / kDotRows, kDotThreads, 0}, x);
}

std::string launch(const AttentionBackward& x) {
  const AttentionCall& c = x.call;
  if (x.of == AttentionOperand::kValues)
    return with_slices<4>(c.q.type, c.value_size, [&](auto element, auto tiles) {
      using Element = decltype(element);
      return run_backward<Element, tiles()>(attention_values_kernel<Element, tiles()>, x,
                                            c.num_kv_heads, c.value_size);
    });
  const bool queries = x.of == AttentionOperand::kQueries;
  // Two scores and a slice of four tiles would spill registers.
  return with_slices<2>(c.q.type, c.head_size, [&](auto element, auto tiles) {
    using Element = decltype(element);
    const auto kernel = queries ? attention_scores_kernel<Element, tiles(), Side::kQueries>
                                : attention_scores_kernel<Element, tiles(), Side::kKeys>;
    return run_backward<Element, tiles()>(kernel, x, queries ? c.num_heads : c.num_kv_heads,
                                          c.head_size);
  });
}

}  // namespace ashlar::device
