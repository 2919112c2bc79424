// Times and correctness of collectives over message sizes, on all ranks or on groups of them.
//
// A row is one operation of one type and size: its time out of place and in place, and the number
// of wrong elements of a run whose data are exact (collective_data.h).  The time of a repeat is
// that of its slowest rank, from the call to the end of the wait; a row's time is the median.
//
// Sizes and bandwidths are those of nccl-tests (machine/laws.h): S is the whole array, a rank's
// part is rounded down to a multiple of 16 bytes, algbw = S / time, busbw = algbw times the factor
// of the operation.
#pragma once

#include <optional>
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

struct CollectiveOptions {
  std::vector<machine::CollectiveOp> ops;   // empty: the usual ones
  std::vector<DType> dtypes;                // empty: F32, and BF16 unless quick
  int64_t min_bytes = 1024, max_bytes = 0;  // 0: 64 MiB, or 4 MiB if quick
  int64_t factor = 0, step_bytes = 0;       // between sizes; 0: 2, or 4 if quick
  int64_t iterations = 0;                   // 0: by the time that they take
  int64_t warm_up = 5;
  int64_t checks = 1;  // runs with exact data; 0: none
  int root = 0;
  GroupShape shape;
  bool alone = false;  // only the first group runs
};

struct CollectiveTime {
  Repeats us;
  std::vector<double> times_us;  // of every repeat
  double algbw = 0, busbw = 0;   // GB/s
  int64_t num_wrong = 0;         // of all ranks and checks
};

struct CollectiveRow {
  machine::CollectiveOp op = machine::CollectiveOp::kAllReduce;
  DType dtype = DType::kF32;
  int64_t bytes = 0, count = 0;  // of the whole array; of elements that a rank gives
  int root = -1;
  std::optional<CollectiveTime> out_of_place, in_place;  // where the operation has it
  const CollectiveTime& best_known() const { return out_of_place ? *out_of_place : *in_place; }
  int64_t num_wrong() const;
};

struct CollectiveReport {
  std::vector<CollectiveRow> rows;
  int64_t group_size = 0, num_groups = 0;
  int64_t num_left_out = 0;
};

// Every rank calls it; rows of the first group, with the wrong elements of all.
// Errors  kConfig: a type without exact data, a shape that leaves groups of unequal size, one rank.
CollectiveReport measure_collectives(const Rig& rig, const CollectiveOptions& options);
Findings findings_of(const CollectiveReport& report, const Rig& rig,
                     const CollectiveOptions& options);

}  // namespace ashlar::bench
