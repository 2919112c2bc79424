// attention.h, backward: gradients of queries take tiles of queries, those of keys and values take
// tiles of keys, so that every sum is final in the registers of one warp and has one order.  Each
// pass computes the probabilities again: 8 products where sums over blocks would need 5, but no
// partial sums.
#include "ashlar/kernels/gpu/attention_tiles.h"
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/rows.h"
#include "ashlar/kernels/gpu/scores.h"

namespace ashlar::device {
namespace {

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
ASHLAR_DEVICE void store_gradient(Sums& sums, const AttentionWork<kTiles>& work, float factor,
                                  float* to, int num_heads, int width) {
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
  const AttentionWork<kTiles> work(c, c.num_kv_heads, c.value_size);
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
        const Sight<AttentionSide::kKeys> sight(tile.position + lines, columns, c.window);
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
template <typename Element, int kTiles, AttentionSide side>
ASHLAR_KERNEL(kMaxThreads)
attention_scores_kernel(AttentionBackward x) {
  constexpr bool kQueries = side == AttentionSide::kQueries;
  const AttentionCall& c = x.call;
  const int num_heads = kQueries ? c.num_heads : c.num_kv_heads;
  const int num_others = kQueries ? c.num_kv_heads : c.num_heads;
  const AttentionWork<kTiles> work(c, num_heads, c.head_size);
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

template <typename Element, int tiles>
std::string run_backward(void (*kernel)(AttentionBackward), const AttentionBackward& x,
                         int num_heads, int width) {
  const BlockShape shape = backward_shape<Element>(x.call.head_size, x.call.value_size);
  return run(kernel,
             {num_blocks<tiles>(x.call, num_heads, width), shape.warps * kWarp, shape.bytes}, x);
}

}  // namespace

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
    const auto kernel = queries ? attention_scores_kernel<Element, tiles(), AttentionSide::kQueries>
                                : attention_scores_kernel<Element, tiles(), AttentionSide::kKeys>;
    return run_backward<Element, tiles()>(kernel, x, queries ? c.num_heads : c.num_kv_heads,
                                          c.head_size);
  });
}

}  // namespace ashlar::device
