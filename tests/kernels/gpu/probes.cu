#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/math.h"
#include "ashlar/kernels/gpu/tile.h"
#include "tests/kernels/gpu/probes.h"

namespace ashlar::device {

// Faulty maps of lanes, of which each vendor's compiler uses one.
// The two halves of the columns are exchanged.
struct WrongNvidiaLanes : NvidiaLanes {
  ASHLAR_DEVICE static int a_depth(int lane, int r) { return NvidiaLanes::a_depth(lane, r) ^ 8; }
};
// The two halves of the warp are exchanged.
struct WrongAmdLanes : AmdLanes {
  ASHLAR_DEVICE static int c_row(int lane, int r) { return AmdLanes::c_row(lane, r) ^ 4; }
};
template <int warp>
struct WrongLanesOf {
  using Type = WrongNvidiaLanes;
};
template <>
struct WrongLanesOf<64> {
  using Type = WrongAmdLanes;
};

namespace {

constexpr int kThreads = 128;

struct Evaluate {
  Function f;
  const float* x;
  float* y;
  int64_t n;
};

ASHLAR_DEVICE float value(Function f, float x) {
  switch (f) {
    case Function::kExp:
      return exp(x);
    case Function::kLog:
      return log(x);
    case Function::kLog1p:
      return log1p(x);
    case Function::kErf:
      return erf(x);
    case Function::kSigmoid:
      return sigmoid(x);
    case Function::kSqrt:
      return sqrt(x);
    case Function::kToBf16:
      return to_float(to_bf16(x));
  }
  return 0;
}

ASHLAR_KERNEL(kThreads) evaluate_kernel(Evaluate x) {
  const int64_t i = int64_t(block_index()) * block_size() + thread_index();
  if (i < x.n) x.y[i] = value(x.f, x.x[i]);
}

// Tiles of 64 x 64 by four warps, 32 columns of the operands at a time, in two stages.
constexpr int kSide = 64, kDepth = 32, kStride = kDepth + 8, kTransposedStride = kSide + 8;
constexpr int kStageElements = kSide * kStride + kSide * kStride;

ASHLAR_DEVICE void copy_block(Bf16* to, int to_stride, const uint16_t* from, int from_stride,
                              int rows, int columns) {
  const int of_row = columns / 8;
  for (int i = thread_index(); i < rows * of_row; i += block_size())
    copy_async(to + i / of_row * to_stride + i % of_row * 8,
               from + int64_t(i / of_row) * from_stride + i % of_row * 8);
}

ASHLAR_DEVICE void load_stage(const Product& x, Bf16* stage, int row, int column, int k) {
  if (k < x.k) {
    copy_block(stage, kStride, x.a + int64_t(row) * x.k + k, x.k, kSide, kDepth);
    Bf16* b = stage + kSide * kStride;
    if (x.transposed)
      copy_block(b, kTransposedStride, x.b + int64_t(k) * x.n + column, x.n, kDepth, kSide);
    else
      copy_block(b, kStride, x.b + int64_t(column) * x.k + k, x.k, kSide, kDepth);
  }
  copy_commit();
}

ASHLAR_KERNEL(4 * kWarp) product_kernel(Product x) {
  auto* shared = (Bf16*)shared_memory();
  const int tiles = x.n / kSide;
  const int row = block_index() / tiles * kSide, column = block_index() % tiles * kSide;
  const int warp = thread_index() / kWarp, i = warp / 2 * 32, j = warp % 2 * 32;
  WarpTile sum;
  load_stage(x, shared, row, column, 0);
  for (int k = 0; k < x.k; k += kDepth) {
    load_stage(x, shared + (k / kDepth + 1) % 2 * kStageElements, row, column, k + kDepth);
    copy_wait<1>();
    sync_block();
    const Bf16* a = shared + k / kDepth % 2 * kStageElements + i * kStride;
    const Bf16* b = shared + k / kDepth % 2 * kStageElements + kSide * kStride;
    for (int d = 0; d < kDepth; d += WarpTile::kDepth) {
      if (x.transposed)
        sum.multiply<Transposed::kYes>(a + d, kStride, b + d * kTransposedStride + j,
                                       kTransposedStride);
      else
        sum.multiply(a + d, kStride, b + j * kStride + d, kStride);
    }
    sync_block();
  }
  sum.each([&](int r, int c, float v) { x.c[int64_t(row + i + r) * x.n + column + j + c] = v; });
}

// Sums what the threads hold, faults aside like block_sum.
ASHLAR_DEVICE float sum_with_faults(float x, float* room, Fault fault) {
  const int thread = thread_index();
  if (fault == Fault::kHalfOfLanes && thread % 32 >= 16) return x;
  if (fault == Fault::kLanesElsewhere && thread % 32 == 5)
    x = lane_max(x);
  else
    x = lane_sum(x);
  if (thread % 32 == 0 && !(fault == Fault::kUninitializedShared && thread == 0))
    room[thread / 32] = x;
  if (fault != Fault::kNoBarrierInSum) sync_block();
  float sum = 0;
  for (int i = 0; i < block_size() / 32; ++i) sum = add(sum, room[i]);
  return sum;
}

// A sum in the order of a warp, whose size is the vendor's.
ASHLAR_DEVICE float sum_over_warps(float x, float* room) {
  room[thread_index()] = x;
  sync_block();
  float total = 0;
  for (int first = 0; first < block_size(); first += kWarp) {
    float sum = 0;
    for (int i = 0; i < kWarp; ++i) sum = add(sum, room[first + i]);
    total = add(total, sum);
  }
  return total;
}

// Where the faults of addresses read or write, instead of element i.
ASHLAR_DEVICE int64_t faulty_index(const ScaleRows& x, int64_t i, Fault past, Fault padding) {
  const int64_t n = int64_t(x.rows) * x.width;
  if (i != n - 1) return i;
  if (x.fault == past) return n + 16;
  return x.fault == padding ? n : i;
}

ASHLAR_KERNEL(kThreads) scale_rows_kernel(ScaleRows x) {
  auto* room = (float*)shared_memory();
  const int64_t begin = int64_t(block_index()) * x.width;
  float sum = 0;
  for (int c = thread_index(); c < x.width; c += block_size())
    sum = add(sum, x.x[faulty_index(x, begin + c, Fault::kReadsPastEnd, Fault::kReadsPadding)]);
  if (x.fault == Fault::kMisalignedVector && thread_index() == 0)
    sum = add(sum, bits_to_float(load_vector(x.x + begin + 1).words[0]));
  if (x.fault == Fault::kEarlyEnd && thread_index() == 7) return;
  if (x.fault == Fault::kBarrierInBranch && thread_index() == 3) sync_block();
  if (x.fault == Fault::kSharedOverrun && thread_index() == 9) room[kThreads] = sum;
  sum = x.fault == Fault::kSumOverWarp ? sum_over_warps(sum, room)
                                       : sum_with_faults(sum, room, x.fault);
  if (x.fault != Fault::kNoBarrierBeforeReuse) sync_block();
  // A second sum, of ones, in the same room.
  const float ones = sum_with_faults(1.0f, room, Fault::kNone);
  sum = mul(sum, div(ones, float(block_size())));
  for (int c = thread_index(); c < x.width; c += block_size()) {
    int64_t to = faulty_index(x, begin + c, Fault::kWritesPastEnd, Fault::kWritesIntoPadding);
    if (x.fault == Fault::kWritesBeforeStart && to == 0) to = -1;
    x.y[to] = mul(x.x[begin + c], sum);
  }
}

ASHLAR_KERNEL(kThreads) stage_rows_kernel(StageRows x) {
  auto* stages = (float*)shared_memory();
  const int thread = thread_index();
  const auto load = [&](int row) {
    if (row < x.rows && thread < x.width / 4) {
      const int skew = x.fault == Fault::kMisalignedCopy ? 1 : 0;
      copy_async(stages + row % 2 * x.width + 4 * thread,
                 x.x + int64_t(row) * x.width + 4 * thread + skew);
    }
    if (x.fault != Fault::kNoCommit) copy_commit();
  };
  float sums[2] = {};
  load(0);
  for (int row = 0; row < x.rows; ++row) {
    load(row + 1);
    if (x.fault == Fault::kWaitsForTooFew)
      copy_wait<2>();
    else if (x.fault != Fault::kNoWait)
      copy_wait<1>();
    if (x.fault != Fault::kNoBarrierAfterWait) sync_block();
    // Another thread's copies: those of the upper half.
    for (int i = 0; i < 2; ++i)
      sums[i] = add(sums[i], stages[row % 2 * x.width + x.width - 1 - (thread + i * kThreads)]);
    if (x.fault != Fault::kStageOverwritten) sync_block();
  }
  for (int i = 0; i < 2; ++i) x.y[x.width - 1 - (thread + i * kThreads)] = sums[i];
}

// The sum over 64 threads: one lane of each group writes its sum for all lanes of the block.
ASHLAR_KERNEL(64) sum_blocks_kernel(SumBlocks x) {
  auto* room = (float*)shared_memory();
  const int thread = thread_index(), lane = thread % 32;
  room[thread] = x.x[int64_t(block_index()) * 64 + thread];
  if (x.fault == Fault::kExchangeAsBarrier)
    lane_sum(0.0f);
  else if (x.fault != Fault::kNoBarrierOfLanes)
    sync_lanes();
  float sum = 0;
  for (int i = 0; i < 32; ++i) sum = add(sum, room[thread - lane + i]);
  sync_lanes();
  if (lane == 0) room[thread] = sum;
  sync_block();
  if (thread == 0) x.partials[block_index()] = add(room[0], room[32]);
  if (x.fault == Fault::kBlocksWriteSame && thread == 0) x.y[0] = 0;
  if (x.fault == Fault::kReadsOtherBlocks && block_index() == 0 && thread == 0) {
    float total = 0;
    for (int b = 0; b < x.n / 64; ++b) total = add(total, x.partials[b]);
    x.y[0] = total;
  }
}

ASHLAR_KERNEL(32) add_partials_kernel(SumBlocks x) {
  if (thread_index() != 0) return;
  float total = 0;
  for (int b = 0; b < x.n / 64; ++b) total = add(total, x.partials[b]);
  x.y[0] = total;
}

template <typename AnyTile>
ASHLAR_DEVICE void multiply_with(const MultiplyTile& x, const Bf16* a, const Bf16* b) {
  AnyTile tile;
  tile.multiply(a, 16, b, 16);
  tile.each([&](int r, int c, float v) { x.c[32 * r + c] = v; });
}

ASHLAR_KERNEL(kWarp) multiply_tile_kernel(MultiplyTile x) {
  auto* a = (Bf16*)shared_memory();
  for (int i = thread_index(); i < 512; i += block_size()) {
    a[i].bits = x.a[i];
    a[512 + i].bits = x.b[i];
  }
  sync_block();
  if (x.fault == (kWarp == 32 ? Fault::kNvidiaLanes : Fault::kAmdLanes))
    multiply_with<TileOf<WrongLanesOf<kWarp>::Type>>(x, a, a + 512);
  else
    multiply_with<WarpTile>(x, a, a + 512);
}

}  // namespace

std::string evaluate(Function f, const float* x, float* y, int64_t n) {
  return run(evaluate_kernel, {(n + kThreads - 1) / kThreads, kThreads, 0}, Evaluate{f, x, y, n});
}
std::string product(const Product& x) {
  const int blocks = x.m / kSide * (x.n / kSide);
  return run(product_kernel, {blocks, 4 * kWarp, 2 * kStageElements * int(sizeof(Bf16))}, x);
}
std::string scale_rows(const ScaleRows& x) {
  return run(scale_rows_kernel, {x.rows, kThreads, kThreads * int(sizeof(float))}, x);
}
std::string stage_rows(const StageRows& x) {
  return run(stage_rows_kernel, {1, kThreads, 2 * x.width * int(sizeof(float))}, x);
}
std::string sum_blocks(const SumBlocks& x) {
  const std::string error = run(sum_blocks_kernel, {x.n / 64, 64, 64 * int(sizeof(float))}, x);
  if (!error.empty() || x.fault == Fault::kReadsOtherBlocks) return error;
  return run(add_partials_kernel, {1, 32, 0}, x);
}
std::string multiply_tile(const MultiplyTile& x) {
  return run(multiply_tile_kernel, {1, kWarp, 2 * 512 * int(sizeof(Bf16))}, x);
}

}  // namespace ashlar::device
