// The tokens that a rank holds, as a list of segments.  Packed documents, context-parallel pieces,
// chunked prefill and decode are only different lists.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/tensor/segment.h"

namespace ashlar::kernels {

// Tokens [begin, end) of a sequence through which a recurrence carries its state (recurrence.h).
struct StateChunk {
  int64_t begin, end;
  friend bool operator==(const StateChunk&, const StateChunk&) = default;
};

// Segments in row order, tiling rows [0, num_tokens), and the per-token lists that kernels read.
class Sequence {
 public:
  Sequence() = default;
  explicit Sequence(std::vector<Segment> segments);
  static Sequence rows(int64_t num_rows, int64_t length);  // num_rows documents of equal length
  void reserve(int64_t num_tokens);  // assign of up to num_tokens then allocates nothing
  void assign(std::span<const Segment> segments);

  int64_t num_tokens() const { return int64_t(position_T_.size()); }
  const std::vector<Segment>& segments() const { return segments_; }
  std::span<const int32_t> position_T() const { return position_T_; }
  // Halo row h belongs to the h-th segment whose position is > 0 (continues a document).
  int64_t num_halos() const { return num_halos_; }
  std::span<const int32_t> segment_T() const { return segment_T_; }
  // -1: starts a document.
  std::span<const int32_t> halo_of_segment() const { return halo_of_segment_; }
  // Documents; segments that continue each other count as one.
  std::span<const StateChunk> documents() const { return documents_; }

 private:
  std::vector<Segment> segments_;
  std::vector<int32_t> position_T_, segment_T_, halo_of_segment_;
  std::vector<StateChunk> documents_;
  int64_t num_halos_ = 0;
};

}  // namespace ashlar::kernels
