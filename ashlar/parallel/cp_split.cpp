#include "ashlar/parallel/cp_split.h"

#include <algorithm>

#include "ashlar/core/error.h"

namespace ashlar::parallel {

void CpSplit::check() const {
  ASHLAR_ASSERT(num_ranks > 0 && num_rows > 0 && length > 0);
  ASHLAR_REQUIRE(length % num_chunks() == 0 && length / num_chunks() >= min_chunk, kConfig,
                 "data.sequence_length is {} but parallel.cp {} with parallel.cp_layout {} cuts it "
                 "into {} equal chunks of at least {} tokens; choose a multiple of {}",
                 length, num_ranks, layout == CpLayout::kZigzag ? "zigzag" : "contiguous",
                 num_chunks(), min_chunk, num_chunks());
}

int CpSplit::owner(int64_t chunk) const {
  return int(chunk < num_ranks ? chunk : num_chunks() - 1 - chunk);
}

CpStretches stretches_of(const CpSplit& split, int rank) {
  const int64_t c = split.chunk_length();
  if (split.num_chunks() == split.num_ranks) return {{{rank * c, rank * c + c, 0}}, 1};
  const int64_t second = (2 * split.num_ranks - 1 - rank) * c;
  if (rank == split.num_ranks - 1) return {{{rank * c, second + c, 0}}, 1};
  return {{{rank * c, rank * c + c, 0}, {second, second + c, c}}, 2};
}

int64_t max_halos(const CpSplit& split, int rank) {
  int64_t count = 0;
  for (const CpStretch& stretch : stretches_of(split, rank)) count += stretch.begin > 0;
  return count * split.num_rows;
}

int64_t whole_row(const CpSplit& split, int rank, int64_t local_row) {
  const int64_t row = local_row / split.local_length(), i = local_row % split.local_length();
  for (const CpStretch& stretch : stretches_of(split, rank))
    if (i >= stretch.local && i < stretch.local + stretch.end - stretch.begin)
      return row * split.length + stretch.begin + i - stretch.local;
  ASHLAR_ASSERT(false && "a row outside the rank's part");
}

CpRow row_of(const CpSplit& split, int64_t whole_row) {
  const int64_t row = whole_row / split.length, token = whole_row % split.length;
  const int rank = split.owner(token / split.chunk_length());
  for (const CpStretch& stretch : stretches_of(split, rank))
    if (token >= stretch.begin && token < stretch.end)
      return {rank, row * split.local_length() + stretch.local + token - stretch.begin};
  ASHLAR_ASSERT(false && "a token that nobody holds");
}

void take_local_segments(const CpSplit& split, int rank, std::span<const Segment> whole,
                         std::vector<Segment>& local) {
  local.clear();
  size_t next = 0;
  for (int64_t row = 0; row < split.num_rows; ++row)
    for (const CpStretch& stretch : stretches_of(split, rank)) {
      const int64_t begin = row * split.length + stretch.begin,
                    end = begin + stretch.end - stretch.begin;
      const int64_t shift = row * split.local_length() + stretch.local - begin;
      while (next < whole.size() && whole[next].row + whole[next].length <= begin) ++next;
      for (size_t i = next; i < whole.size() && whole[i].row < end; ++i) {
        const Segment& s = whole[i];
        ASHLAR_ASSERT(s.position == 0 &&
                      s.row / split.length == (s.row + s.length - 1) / split.length);
        const int64_t from = std::max(s.row, begin), to = std::min(s.row + s.length, end);
        local.push_back({from + shift, to - from, from - s.row, s.document, s.padding});
      }
    }
}

}  // namespace ashlar::parallel
