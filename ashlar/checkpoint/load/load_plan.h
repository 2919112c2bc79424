// Which rank reads which chunks of a step that several ranks load together, and when the chunks go
// to the others.  Every rank makes the same plan from what all of them want.
//
// Cut      the chunks that any rank wants, in the order of files, are cut evenly by bytes: rank r
//          of n reads those that begin in [r, r + 1) / n of their bytes.  Each is read once.
// Lots     a rank reads in lots of 8 MiB or more (its last is smaller), below 12 MiB.  A part of a
//          lot is consecutive chunks that the same ranks want.
// Rounds   for ranks of several processes; ranks of one process copy to each other
//          (wanted_bytes.h).  A part of S bytes with m receivers is cut into m slices: each
//          receiver gets one slice from the reader and sends it to the m - 1 others, so that no
//          rank sends more than about S, however many receive.  In a round a reader has at most
//          one lot, and no rank receives more than 12 MiB.
// Traffic  of all ranks together: the sum over chunks of padded(bytes) times the ranks that want
//          the chunk and do not read it.
// Cost     time and memory in proportion to chunks and to the ranges of all ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/checkpoint/format/index.h"
#include "ashlar/core/files.h"

namespace ashlar::checkpoint {

// Bytes of a chunk in a lot, where chunks follow each other, each where direct reads may begin.
inline constexpr int64_t padded(int64_t bytes) {
  return (bytes + File::kDirectBytes - 1) / File::kDirectBytes * File::kDirectBytes;
}
inline constexpr int64_t kLotBytes = 2 * kChunkBytes;     // a lot with this many is full
inline constexpr int64_t kMaxLotBytes = 3 * kChunkBytes;  // more than any lot has

// Numbers all chunks of all files, in the order of the index.
class ChunkNumbers {
 public:
  explicit ChunkNumbers(const Index& index);
  int64_t first(size_t file) const { return first_[file]; }  // the number of its chunk 0
  size_t file(int64_t number) const;
  int64_t bytes(int64_t number) const;

 private:
  const Index& index_;
  std::vector<int64_t> first_;  // one more than files
};

struct ChunkRange {
  int64_t begin = 0, end = 0;  // numbers
};

struct Lot {
  struct Part {
    ChunkRange chunks;
    int64_t bytes = 0;           // padded
    std::vector<int> receivers;  // ascending, without the reader
  };
  int reader = 0;
  int64_t bytes = 0;
  std::vector<Part> parts;
};

struct LoadPlan {
  std::vector<Lot> lots;                    // by reader, each in the order of files
  std::vector<std::vector<size_t>> rounds;  // numbers of lots; those of a reader stay in order
};

// wanted[r]: what rank r wants, ascending, without overlap.
LoadPlan make_load_plan(const ChunkNumbers& chunks,
                        std::span<const std::vector<ChunkRange>> wanted);

}  // namespace ashlar::checkpoint
