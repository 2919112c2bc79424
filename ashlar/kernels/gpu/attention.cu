// attention.h, forward: tiles of queries, and the merge of the parts of a long row of keys.
#include "ashlar/kernels/gpu/attention_tiles.h"
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/math.h"
#include "ashlar/kernels/gpu/rows.h"
#include "ashlar/kernels/gpu/scores.h"

namespace ashlar::device {
namespace {

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
  const AttentionWork<kTiles> work(c, c.num_heads, c.value_size);
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
        const Sight<AttentionSide::kQueries> sight(tile.position + lines, columns, c.window);
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
    const BlockShape shape = forward_shape<Element>(c.head_size, c.value_size);
    return run(
        attention_forward_kernel<Element, tiles()>,
        {num_blocks<tiles()>(c, c.num_heads, c.value_size), shape.warps * kWarp, shape.bytes}, x);
  });
}

std::string launch(const AttentionJoin& x) {
  const int64_t blocks = (x.rows * x.width + kJoinThreads - 1) / kJoinThreads;
  return run(attention_join_kernel, {blocks, kJoinThreads, 0}, x);
}

}  // namespace ashlar::device
