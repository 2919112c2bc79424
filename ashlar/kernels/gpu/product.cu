// linear.h: products of groups.  A block makes a square of one group's result, and each of its four
// warps a quarter of that, kTiles x kTiles tiles.  It goes over the depth in steps, for which it
// copies its parts of both operands to shared memory as they lie in global memory; what is beyond a
// group's rows, columns or depth is filled with zeros.  Every element is summed in the order of the
// depth, whatever the size of the square.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/rows.h"
#include "ashlar/kernels/gpu/tile.h"

namespace ashlar::device {
namespace {

constexpr int kThreads = 4 * kWarp;

// Where copies to shared memory are asynchronous, those of the next two steps run during a step.
constexpr int kStages = kWarp == 64 ? 1 : 3;

ASHLAR_BOTH constexpr int squares_of(int width, int side) {
  return (width + side - 1) / side;
}
template <LinearPass pass>
constexpr bool kTransposesA = pass == LinearPass::kBackwardWeight;
template <LinearPass pass>
constexpr bool kTransposesB = pass != LinearPass::kForward;

// The room in shared memory for a step of one operand: [side, kDepth] or, transposed,
// [kDepth, side].  Rows begin in different banks.
template <typename Element, bool transposed, int side>
struct Room {
  static constexpr int kDepth = 64 / int(sizeof(Element));
  static constexpr int kRows = transposed ? kDepth : side, kColumns = transposed ? side : kDepth;
  static constexpr int kStride = kColumns + 16 / int(sizeof(Element));
  static constexpr int kElements = kRows * kStride;
  static constexpr Transposed kTransposed = transposed ? Transposed::kYes : Transposed::kNo;
  ASHLAR_DEVICE static const Element* at(const Element* room, int line, int depth) {
    return room + (transposed ? depth * kStride + line : line * kStride + depth);
  }
};

// The work of a block: C_g from (row, column) on, of which `rows` and `columns` are left, over
// `depth` from `first` on.
struct Square {
  int group, part;  // part: of the depth
  int row, column, rows, columns;
  int first, depth;
  int begin, end;  // the rows of the group in matrices of which groups own rows, or all rows
};

// Sets the group and the row of the squares in line `line` of all groups; false: there is none.
ASHLAR_DEVICE bool find_line(const GroupedProduct& x, int side, int line, Square& s) {
  if (!x.row_of_group) {
    const int lines = squares_of(x.rows, side);
    s.group = line / lines;
    s.row = line % lines * side;
    s.begin = 0, s.end = x.rows;
    return true;
  }
  for (s.group = 0; s.group < x.num_groups; ++s.group) {
    s.begin = x.row_of_group[s.group], s.end = x.row_of_group[s.group + 1];
    const int lines = squares_of(s.end - s.begin, side);
    s.row = line * side;
    if (line < lines) return true;
    line -= lines;
  }
  return false;
}

// The squares of a line are neighbours, so that they share rows of A in the cache.
ASHLAR_DEVICE bool find_square_of_rows(const GroupedProduct& x, int side, Square& s) {
  const int of_line = squares_of(x.columns, side);
  if (!find_line(x, side, block_index() / of_line, s)) return false;
  s.column = block_index() % of_line * side;
  s.rows = s.end - s.begin - s.row, s.columns = x.columns - s.column;
  s.part = 0, s.first = 0, s.depth = x.depth;
  return true;
}

// Sums over rows, in parts that are as even as a unit of rows permits.
ASHLAR_DEVICE bool find_square_of_sums(const GroupedProduct& x, int side, Square& s) {
  constexpr int kUnit = 32;
  const int of_line = squares_of(x.columns, side), lines = squares_of(x.rows, side);
  s.column = block_index() % of_line * side;
  s.row = block_index() / of_line % lines * side;
  s.rows = x.rows - s.row, s.columns = x.columns - s.column;
  s.group = block_index() / of_line / lines % x.num_groups;
  s.part = block_index() / of_line / lines / x.num_groups;
  s.begin = x.row_of_group ? x.row_of_group[s.group] : 0;
  s.end = x.row_of_group ? x.row_of_group[s.group + 1] : x.depth;
  const int depth = s.end - s.begin;
  const int of_part = squares_of(depth, x.parts * kUnit) * kUnit;
  s.first = s.part * of_part < depth ? s.part * of_part : depth;
  s.depth = depth - s.first < of_part ? depth - s.first : of_part;
  return s.depth > 0 || !x.accumulates;
}

template <LinearPass pass>
ASHLAR_DEVICE bool find_square(const GroupedProduct& x, int side, Square& s) {
  return pass == LinearPass::kBackwardWeight ? find_square_of_sums(x, side, s)
                                             : find_square_of_rows(x, side, s);
}

// Element (row, column) of the matrix of a group.
ASHLAR_DEVICE int64_t element_of(const ProductMatrix& m, const Square& s, int row, int column) {
  return s.group * m.group_stride + row * m.stride + column;
}

// An operand from element `begin` on, of which these rows and columns are left.
struct Source {
  const ProductMatrix& matrix;
  int64_t begin;
  int rows, columns;
};
template <LinearPass pass>
ASHLAR_DEVICE Source source_a(const GroupedProduct& x, const Square& s) {
  if (kTransposesA<pass>)
    return {x.a, element_of(x.a, s, s.begin + s.first, s.row), s.depth, s.rows};
  return {x.a, element_of(x.a, s, s.begin + s.row, 0), s.rows, s.depth};
}
template <LinearPass pass>
ASHLAR_DEVICE Source source_b(const GroupedProduct& x, const Square& s) {
  const int begin = pass == LinearPass::kBackwardWeight ? s.begin + s.first : 0;
  if (kTransposesB<pass>) return {x.b, element_of(x.b, s, begin, s.column), s.depth, s.columns};
  return {x.b, element_of(x.b, s, s.column, 0), s.columns, s.depth};
}

ASHLAR_DEVICE void copy_pack(Bf16* to, const void* data, int64_t at) {
  copy_async(to, (const Bf16*)data + at);
}
ASHLAR_DEVICE void copy_pack(float* to, const void* data, int64_t at) {
  copy_async(to, (const float*)data + at);
  copy_async(to + 4, (const float*)data + at + 4);
}
ASHLAR_DEVICE ElementType type_of(const Bf16*) {
  return ElementType::kBF16;
}
ASHLAR_DEVICE ElementType type_of(const float*) {
  return ElementType::kF32;
}

// Fills a room with the rows and columns from (row, column) of the source on.
template <typename R, typename Element>
ASHLAR_DEVICE void load(Element* room, const Source& from, int row, int column) {
  constexpr int kPacksOfRow = R::kColumns / kPack, kRowsAtOnce = kThreads / kPacksOfRow;
  static_assert(kThreads % kPacksOfRow == 0);
  const ProductMatrix& m = from.matrix;
  const int first = thread_index() / kPacksOfRow, c = thread_index() % kPacksOfRow * kPack;
  const int64_t begin = from.begin + int64_t(row) * m.stride + column + c;
  const auto count = [&](int r) { return row + r < from.rows ? from.columns - column - c : 0; };
  if (m.by_vectors && m.elements.type == type_of(room)) {
#pragma unroll
    for (int turn = 0; turn < R::kRows; turn += kRowsAtOnce) {
      const int r = turn + first;
      if (R::kRows % kRowsAtOnce != 0 && r >= R::kRows) return;
      Element* to = room + r * R::kStride + c;
      count(r) > 0 ? copy_pack(to, m.elements.data, begin + r * m.stride)
                   : store_vectors(Pack{}, to);
    }
    return;
  }
#pragma unroll 1
  for (int r = first; r < R::kRows; r += kRowsAtOnce)
    store_vectors(load_pack(m.elements, begin + r * m.stride, {count(r), m.by_vectors}),
                  room + r * R::kStride + c);
}

// The step that begins at this depth.
template <typename R, typename Element>
ASHLAR_DEVICE void load_step(Element* room, const Source& from, int depth) {
  if (R::kTransposed == Transposed::kYes)
    load<R>(room, from, depth, 0);
  else
    load<R>(room, from, 0, depth);
}

// Adds a step to the sums from (row, column) of the square on.
template <typename A, typename B, typename Element, typename Tile, int kTiles>
ASHLAR_DEVICE void multiply_step(const Element* a, const Element* b, int row, int column,
                                 Tile (&sums)[kTiles][kTiles]) {
#pragma unroll 4
  for (int d = 0; d < A::kDepth; d += Tile::kDepth) {
    typename Tile::Left left[kTiles];
    typename Tile::Right right[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      left[i] = Tile::template load_left<A::kTransposed>(A::at(a, row + 32 * i, d), A::kStride);
      right[i] =
          Tile::template load_right<B::kTransposed>(B::at(b, column + 32 * i, d), B::kStride);
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) sums[i][j].multiply(left[i], right[j]);
    }
  }
}

// Sums pass through shared memory on their way to C, a tile of each warp at a time, so that threads
// store neighbours.
constexpr int kTileStride = 32 + 4, kTileBytes = 32 * kTileStride * int(sizeof(float));

template <typename Tile>
ASHLAR_DEVICE void store_tile(const GroupedProduct& x, int64_t begin, int rows, int columns,
                              float* room, Tile& tile) {
  constexpr int kPacksOfRow = 32 / kPack;
  sync_block();  // what was here has been read
  if (rows > 0 && columns > 0)
    tile.each([&](int row, int column, float sum) { room[row * kTileStride + column] = sum; });
  sync_block();
#pragma unroll 1
  for (int i = thread_index() % kWarp; i < 32 * kPacksOfRow; i += kWarp) {
    const int row = i / kPacksOfRow, column = i % kPacksOfRow * kPack;
    const Extent extent{row < rows ? columns - column : 0, x.c.by_vectors};
    const int64_t at = begin + row * x.c.stride + column;
    if (extent.count <= 0) continue;
    Pack pack = load_vectors(room + row * kTileStride + column);
    if (x.accumulates) {
      const Pack before = load_pack(x.c.elements, at, extent);
#pragma unroll
      for (int e = 0; e < kPack; ++e) pack.at[e] = add(before.at[e], pack.at[e]);
    }
    store_pack(pack, x.c.elements, at, extent);
  }
}

template <typename Element, LinearPass pass, int kTiles>
ASHLAR_KERNEL(kThreads, kTiles == 1 ? 4 : 2)
grouped_product_kernel(GroupedProduct x) {
  constexpr int kSide = 64 * kTiles;
  using A = Room<Element, kTransposesA<pass>, kSide>;
  using B = Room<Element, kTransposesB<pass>, kSide>;
  Square s;
  if (!find_square<pass>(x, kSide, s)) return;
  const Source a = source_a<pass>(x, s), b = source_b<pass>(x, s);
  const int c_row = pass == LinearPass::kBackwardWeight ? s.row : s.begin + s.row;
  const int64_t begin = element_of(x.c, s, c_row, s.column) + s.part * x.c_part_stride;
  auto* shared = (Element*)shared_memory();
  const auto room = [&](int stage) { return shared + stage * (A::kElements + B::kElements); };
  const auto load = [&](int stage, int step) {
    load_step<A>(room(stage), a, step * A::kDepth);
    load_step<B>(room(stage) + A::kElements, b, step * A::kDepth);
  };
  const int warp = thread_index() / kWarp, steps = squares_of(s.depth, A::kDepth);
  const int row = warp / 2 * 32 * kTiles, column = warp % 2 * 32 * kTiles;
  const bool has_sums = row < s.rows && column < s.columns;
  typename TileFor<Element>::Type sums[kTiles][kTiles];
#pragma unroll 1
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < steps) load(step, step);
    copy_commit();
  }
#pragma unroll 1
  for (int step = 0, stage = 0; step < steps; ++step) {
    copy_wait<kStages == 1 ? 0 : kStages - 2>();
    sync_block();  // this step has come, and nobody reads the one before any more
    const int before = stage == 0 ? kStages - 1 : stage - 1;
    if (step + kStages - 1 < steps) load(before, step + kStages - 1);
    copy_commit();
    if (kStages == 1) {
      copy_wait<0>();
      sync_block();
    }
    if (has_sums) multiply_step<A, B>(room(stage), room(stage) + A::kElements, row, column, sums);
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  auto* room_of_warp = (float*)(shared_memory() + warp * kTileBytes);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int r = row + 32 * i, c = column + 32 * j;
      store_tile(x, begin + r * x.c.stride + c, s.rows - r, s.columns - c, room_of_warp,
                 sums[i][j]);
    }
  }
}

template <typename Element, LinearPass pass, int kTiles>
std::string run_product(const GroupedProduct& x) {
  constexpr int kSide = 64 * kTiles;
  int64_t lines = int64_t(x.num_groups) * squares_of(x.rows, kSide);
  if (pass != LinearPass::kBackwardWeight && x.row_of_group) {
    // The most that there can be: every group with rows may have a square that is not full.
    const int64_t groups = x.num_groups < x.rows ? x.num_groups : x.rows;
    lines = (x.rows + groups * (kSide - 1)) / kSide;
  }
  constexpr int kRoom = Room<Element, kTransposesA<pass>, kSide>::kElements +
                        Room<Element, kTransposesB<pass>, kSide>::kElements;
  constexpr int kSteps = kStages * kRoom * int(sizeof(Element)), kSums = 4 * kTileBytes;
  return run(
      grouped_product_kernel<Element, pass, kTiles>,
      {lines * squares_of(x.columns, kSide) * x.parts, kThreads, kSteps > kSums ? kSteps : kSums},
      x);
}

template <typename Element, LinearPass pass>
std::string run_side(const GroupedProduct& x) {
  return x.side == kProductSides[0] ? run_product<Element, pass, 1>(x)
                                    : run_product<Element, pass, 2>(x);
}

template <typename Element>
std::string run_pass(const GroupedProduct& x) {
  if (x.pass == LinearPass::kForward) return run_side<Element, LinearPass::kForward>(x);
  if (x.pass == LinearPass::kBackwardInput) return run_side<Element, LinearPass::kBackwardInput>(x);
  return run_side<Element, LinearPass::kBackwardWeight>(x);
}

}  // namespace

std::string launch(const GroupedProduct& x) {
  return x.in_bf16 ? run_pass<Bf16>(x) : run_pass<float>(x);
}

}  // namespace ashlar::device
