// Kernels of the tests' own: small ones for the language, and with faults that the emulator must
// find.
#pragma once

#include <cstdint>
#include <string>

namespace ashlar::device {

// y[i] = f(x[i]).
enum class Function { kExp, kLog, kLog1p, kErf, kSigmoid, kSqrt, kToBf16 };
std::string evaluate(Function f, const float* x, float* y, int64_t n);

// c [m, n] = a [m, k] b^T, b [n, k], or b [k, n] if `transposed`; bf16 by bits.  m and n are
// multiples of 64, k of 32.
struct Product {
  const uint16_t *a, *b;
  float* c;
  int m, n, k;
  bool transposed = false;
};
std::string product(const Product&);

// Faults of kernels; each belongs to one of the kernels below.
enum class Fault {
  kNone,
  // scale_rows
  kEarlyEnd,
  kBarrierInBranch,
  kHalfOfLanes,
  kLanesElsewhere,
  kNoBarrierInSum,
  kNoBarrierBeforeReuse,
  kUninitializedShared,
  kSharedOverrun,
  kWritesPastEnd,
  kWritesIntoPadding,
  kWritesBeforeStart,
  kReadsPastEnd,
  kReadsPadding,
  kMisalignedVector,
  kSumOverWarp,
  // stage_rows
  kNoWait,
  kWaitsForTooFew,
  kNoCommit,
  kNoBarrierAfterWait,
  kStageOverwritten,
  kMisalignedCopy,
  // sum_blocks
  kReadsOtherBlocks,
  kBlocksWriteSame,
  kNoBarrierOfLanes,
  kExchangeAsBarrier,
  // multiply_tile
  kNvidiaLanes,
  kAmdLanes,
};

// y [rows, width] = x times the sum of its row; a block a row.
struct ScaleRows {
  const float* x;
  float* y;
  int rows, width;
  Fault fault = Fault::kNone;
};
std::string scale_rows(const ScaleRows&);

// y [width] = the sum over rows of x, which pass through two stages of shared memory; width 256.
struct StageRows {
  const float* x;
  float* y;
  int rows, width;
  Fault fault = Fault::kNone;
};
std::string stage_rows(const StageRows&);

// partials [n / 64] = sums of 64 elements of x; y [1] = the sum of partials, by a second launch.
struct SumBlocks {
  const float* x;
  float *partials, *y;
  int n;
  Fault fault = Fault::kNone;
};
std::string sum_blocks(const SumBlocks&);

// c [32, 32] = a [32, 16] b^T, b [32, 16], by one warp.
struct MultiplyTile {
  const uint16_t *a, *b;
  float* c;
  Fault fault = Fault::kNone;
};
std::string multiply_tile(const MultiplyTile&);

}  // namespace ashlar::device
