// The host's half of attention.h: lists of tiles, and of the segments that they meet.
#include "ashlar/kernels/attention.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "ashlar/kernels/gpu.h"
#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {
namespace {

enum class TilesOf { kQueries, kKeys };

struct TileLists {
  std::vector<device::AttentionTile> tiles;
  std::vector<device::AttentionSegment> segments;
};

// Sets the positions of the other side that some line of the tile may see or be seen from.
void set_reach(TilesOf side, int64_t window, device::AttentionTile& tile) {
  constexpr int64_t kFar = std::numeric_limits<int32_t>::max();
  const int64_t first = tile.position, end = first + tile.length;
  const int64_t low = side == TilesOf::kKeys ? first : window > 0 ? first - window + 1 : 0;
  const int64_t high = side == TilesOf::kQueries ? end : window > 0 ? end - 1 + window : kFar;
  tile.low = int32_t(std::max<int64_t>(low, 0));
  tile.high = int32_t(std::min(high, kFar));
}

int64_t work_of(const device::AttentionTile& tile,
                const std::vector<device::AttentionSegment>& segments) {
  int64_t work = 0;
  for (int32_t s = tile.first; s < tile.end; ++s) {
    const int32_t end = segments[s].position + segments[s].length;
    work += std::max(0, std::min(end, tile.high) - std::max(segments[s].position, tile.low));
  }
  return work;
}

TileLists make_lists(TilesOf side, std::span<const Segment> own, std::span<const Segment> others,
                     int tile_rows, int64_t window) {
  const auto by_document = [](const Segment& a, const Segment& b) {
    return a.document < b.document;
  };
  std::vector<Segment> sorted(others.begin(), others.end());
  std::erase_if(sorted, [](const Segment& s) { return s.length == 0; });
  std::stable_sort(sorted.begin(), sorted.end(), by_document);
  TileLists lists;
  for (const Segment& s : sorted)
    lists.segments.push_back({int32_t(s.row), int32_t(s.length), int32_t(s.position)});
  for (const Segment& s : own) {
    const auto [first, end] = std::equal_range(sorted.begin(), sorted.end(), s, by_document);
    for (int64_t at = 0; at < s.length; at += tile_rows) {
      device::AttentionTile tile{.row = int32_t(s.row + at),
                                 .length = int32_t(std::min<int64_t>(tile_rows, s.length - at)),
                                 .position = int32_t(s.position + at),
                                 .first = int32_t(first - sorted.begin()),
                                 .end = int32_t(end - sorted.begin()),
                                 .low = 0,
                                 .high = 0,
                                 .out_row = int32_t(s.row + at)};
      set_reach(side, window, tile);
      lists.tiles.push_back(tile);
    }
  }
  return lists;
}

void put_most_work_first(TileLists& lists) {
  std::stable_sort(lists.tiles.begin(), lists.tiles.end(), [&](const auto& a, const auto& b) {
    return work_of(a, lists.segments) > work_of(b, lists.segments);
  });
}

// A few queries, as in decoding, make too few tiles to fill a device.  Several blocks then share
// the keys of a tile, and a second launch merges their results.
constexpr int64_t kKeysOfPart = 256, kMostParts = 32;

int64_t num_parts(int64_t num_queries, int64_t key_rows) {
  if (num_queries > kFewQueries) return 1;
  return std::clamp(key_rows / kKeysOfPart, int64_t(1), kMostParts);
}

// Makes `parts` tiles of each, for equal ranges of positions.
void split_keys(TileLists& lists, int64_t parts, int64_t num_queries) {
  std::vector<device::AttentionTile> split;
  for (const device::AttentionTile& tile : lists.tiles) {
    const int64_t keys = tile.high - tile.low;
    for (int64_t part = 0; part < parts; ++part) {
      device::AttentionTile piece = tile;
      piece.low = int32_t(tile.low + keys * part / parts);
      piece.high = int32_t(tile.low + keys * (part + 1) / parts);
      piece.out_row = int32_t(part * num_queries + tile.out_row);
      split.push_back(piece);
    }
  }
  lists.tiles = std::move(split);
}

// Room for the lists of any segments with these numbers of rows: no tile or segment is empty.
struct ListRoom {
  Tensor tiles, segments;
  ListRoom(Arena& workspace, int64_t rows, int64_t other_rows)
      : tiles(workspace.take(DType::kI32, {rows, fields<device::AttentionTile>()})),
        segments(workspace.take(DType::kI32, {other_rows, fields<device::AttentionSegment>()})) {}
  template <typename T>
  static constexpr int64_t fields() {
    return sizeof(T) / sizeof(int32_t);
  }
};

template <typename T>
const T* on_device(const Context& ctx, const std::vector<T>& list, const Tensor& room) {
  gpu::upload_bytes(ctx, list.data(), int64_t(list.size() * sizeof(T)), room);
  return reinterpret_cast<const T*>(room.data);
}

device::AttentionCall call_of(const Context& ctx, const Attention& x, const TileLists& lists,
                              const ListRoom& room, std::initializer_list<Tensor> more) {
  const AttentionShape& s = x.shape;
  constexpr int32_t kNoWindow = std::numeric_limits<int32_t>::max();
  return {
      .tiles = on_device(ctx, lists.tiles, room.tiles),
      .segments = on_device(ctx, lists.segments, room.segments),
      .q = elements(x.q),
      .k = elements(x.k),
      .v = elements(x.v),
      .lse = floats(x.lse_TN),
      .num_tiles = int32_t(lists.tiles.size()),
      .num_heads = int32_t(s.N),
      .num_kv_heads = int32_t(s.K),
      .head_size = int32_t(s.D),
      .value_size = int32_t(s.V),
      .window = s.window > 0 ? int32_t(std::min<int64_t>(s.window, kNoWindow)) : kNoWindow,
      .scale = float(s.scale),
      .by_vectors = by_vectors(s.D, {x.q, x.k}) && by_vectors(s.V, {x.v}) && by_vectors(0, more)};
}

int tile_rows(device::AttentionPass pass, const Attention& x) {
  return device::attention_tile_rows(pass, element_type(x.q.dtype), int(x.shape.D), int(x.shape.V));
}

// Rows of k that no segment has get no gradient.
void fill_rows_of_no_segment(const Context& ctx, std::span<const Segment> keys,
                             const AttentionGradients& g, int64_t rows) {
  for (const Segment& key : keys) rows -= key.length;
  if (rows == 0) return;
  for (const Tensor* t : {&g.dk, &g.dv}) gpu::fill(ctx, Matrix::of(*t), 0);
}

}  // namespace

void attention_forward(const Context& ctx, const Sequence& queries, std::span<const Segment> keys,
                       const Attention& x) {
  const auto& [N, K, D, V, window, scale, partial] = x.shape;
  const int64_t T = queries.num_tokens(), rows = x.k.numel() / (K * D), parts = num_parts(T, rows);
  const Arena::Scope scope(*ctx.workspace);
  const ListRoom room(*ctx.workspace, T * parts, rows);
  Tensor outs = x.out, lses = x.lse_TN;
  if (parts > 1) {
    outs = ctx.workspace->take(DType::kF32, {parts, T, N * V});
    lses = ctx.workspace->take(DType::kF32, {parts, T, N});
  }
  if (T == 0) return;
  TileLists lists = make_lists(TilesOf::kQueries, queries.segments(), keys,
                               tile_rows(device::AttentionPass::kForward, x), window);
  if (parts > 1) split_keys(lists, parts, T);
  put_most_work_first(lists);
  device::AttentionForward forward{.call = call_of(ctx, x, lists, room, {}), .out = elements(outs)};
  forward.call.lse = floats(lses);
  launch(ctx, forward);
  if (parts == 1) return;
  launch(ctx, device::AttentionJoin{.outs = floats(outs),
                                    .lses = floats(lses),
                                    .out = elements(x.out),
                                    .lse = floats(x.lse_TN),
                                    .parts = parts,
                                    .rows = T * N,
                                    .width = V});
}

void attention_backward(const Context& ctx, const Sequence& queries, std::span<const Segment> keys,
                        const Attention& x, const AttentionGradients& g) {
  using device::AttentionOperand;
  const int64_t T = queries.num_tokens(), rows = x.k.numel() / (x.shape.K * x.shape.D);
  const Arena::Scope scope(*ctx.workspace);
  const Tensor dots_TN = ctx.workspace->take(DType::kF32, {T, x.shape.N});
  const ListRoom query_room(*ctx.workspace, T, rows), key_room(*ctx.workspace, rows, T);
  fill_rows_of_no_segment(ctx, keys, g, rows);
  const int tile = tile_rows(device::AttentionPass::kBackward, x);
  const int64_t window = x.shape.window;
  if (T > 0)
    launch(ctx, device::AttentionDots{.out = elements(x.out),
                                      .dout = elements(g.dout),
                                      .dots = floats(dots_TN),
                                      .rows = T * x.shape.N,
                                      .width = x.shape.V});
  const auto run = [&](const device::AttentionCall& call, AttentionOperand of,
                       const Tensor& gradient) {
    if (call.num_tiles == 0) return;
    launch(ctx, device::AttentionBackward{.call = call,
                                          .dout = elements(g.dout),
                                          .dots = floats(dots_TN),
                                          .of = of,
                                          .gradient = floats(gradient)});
  };
  TileLists of_queries = make_lists(TilesOf::kQueries, queries.segments(), keys, tile, window);
  put_most_work_first(of_queries);
  run(call_of(ctx, x, of_queries, query_room, {g.dout}), AttentionOperand::kQueries, g.dq);
  TileLists of_keys = make_lists(TilesOf::kKeys, keys, queries.segments(), tile, window);
  put_most_work_first(of_keys);
  const device::AttentionCall keys_call = call_of(ctx, x, of_keys, key_room, {g.dout});
  run(keys_call, AttentionOperand::kKeys, g.dk);
  run(keys_call, AttentionOperand::kValues, g.dv);
}

}  // namespace ashlar::kernels::gpu
