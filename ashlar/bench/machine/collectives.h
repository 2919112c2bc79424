// Times and correctness of collectives over message sizes, on all ranks or on groups of them.
//
// A row is one operation of one type and size: its time out of place and in place, and the number
// of wrong elements of a run whose data are exact (collective_data.h).  The time of a repeat is
// made of those of all ranks, from the call to the end of the wait, by their average unless another
// rule is asked for; a row's time is the median.  The profile gets the times of the slowest rank.
//
// Sizes and bandwidths are those of nccl-tests (machine/laws.h): S is the whole array, a rank's
// part is rounded down to a multiple of 16 bytes, algbw = S / time, busbw = algbw times the factor
// of the operation.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ashlar/bench/machine/part.h"
#include "ashlar/machine/laws.h"
#include "ashlar/tensor/dtype.h"

namespace ashlar::bench {

// Which ranks form a group.  All groups run at once unless only the first is to run.
struct GroupShape {
  enum class Kind : uint8_t { kAll, kNode, kRail, kStride, kBlock, kPairs };
  Kind kind = Kind::kAll;
  int64_t size = 0;  // stride:2 joins ranks 0, 2, 4, ...; block:2 ranks 0 and 1, 2 and 3, ...
  std::string text() const;
};
GroupShape parse_shape(std::string_view text);  // kConfig for others than the names above

// The time of a repeat, of those of all ranks; nccl-tests' numbers.
enum class OfRanks : uint8_t { kFirst = 0, kAverage = 1, kLeast = 2, kLargest = 3 };

// Implementations of collectives that can be measured side by side.
enum class CollectiveEngine : uint8_t {
  kRanks,   // the one that the ranks of the session use
  kExact,   // processes: rounds of messages, with sums in the order of ranks
  kNative,  // processes: MPI's own
  kThread,  // as many ranks as threads of rank 0's process
};
// The lane of native operations beside exact ones (comm::Options::native_lane).
inline constexpr const char* kNativeLane = "native";

struct CollectiveOptions {
  std::vector<machine::CollectiveOp> ops;   // empty: the usual ones
  std::vector<DType> dtypes;                // empty: F32, and BF16 unless quick
  int64_t min_bytes = 1024, max_bytes = 0;  // 0: 64 MiB, or 4 MiB if quick
  int64_t factor = 0, step_bytes = 0;       // between sizes; 0: 2, or 4 if quick
  int64_t iterations = 0;                   // 0: by the time that they take
  int64_t warm_up = 5;
  int64_t checks = 1;     // runs with exact data; 0: none
  int64_t aggregate = 1;  // operations that a repeat submits before it waits for the first
  int64_t skip = 0;       // first repeats that do not count
  OfRanks of_ranks = OfRanks::kAverage;
  bool cpu_time = false;            // the time column shows the time of the call, without the wait
  bool per_iteration = false;       // statistics of the repeats
  int root = 0;                     // -1: every rank in turn
  std::optional<double> min_busbw;  // GB/s that the average must reach to 0.9
  std::vector<CollectiveEngine> engines = {CollectiveEngine::kRanks};
  GroupShape shape;
  bool alone = false;  // only the first group runs
};

struct CollectiveTime {
  Repeats us;
  std::vector<double> times_us;         // of every repeat
  double algbw = 0, busbw = 0;          // GB/s
  int64_t num_wrong = 0;                // of all ranks and checks
  Repeats slowest;                      // of the repeats' slowest ranks
  double cpu_us = 0;                    // until a call returns: the median
  std::vector<double> most_of_rank_us;  // each rank's slowest repeat
};

struct CollectiveRow {
  std::string engine;
  machine::CollectiveOp op = machine::CollectiveOp::kAllReduce;
  DType dtype = DType::kF32;
  int64_t bytes = 0, count = 0;  // of the whole array; of elements that a rank gives
  int root = -1;
  int64_t row = -1;                                      // its number (Rig)
  std::optional<CollectiveTime> out_of_place, in_place;  // where the operation has it
  const CollectiveTime& best_known() const { return out_of_place ? *out_of_place : *in_place; }
  int64_t num_wrong() const;
};

struct CollectiveReport {
  std::vector<CollectiveRow> rows;  // of several engines: those of a size stand together
  int64_t group_size = 0, num_groups = 0;
  int64_t num_left_out = 0;
};

// The number of every rank's node, in the order of their first ranks.
std::vector<int> nodes_of(const std::vector<std::string>& hosts);

// Every rank calls it; rows of the first group, with the wrong elements of all.
// Errors  kConfig: a type without exact data, a shape that leaves groups of unequal size, one rank.
CollectiveReport measure_collectives(const Rig& rig, const CollectiveOptions& options);
Findings findings_of(const CollectiveReport& report, const Rig& rig,
                     const CollectiveOptions& options);

}  // namespace ashlar::bench
