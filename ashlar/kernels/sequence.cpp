#include "ashlar/kernels/sequence.h"

#include "ashlar/core/error.h"

namespace ashlar::kernels {

Sequence::Sequence(std::vector<Segment> segments) {
  assign(segments);
}

Sequence Sequence::rows(int64_t num_rows, int64_t length) {
  std::vector<Segment> segments;
  for (int64_t r = 0; r < num_rows; ++r) segments.push_back({r * length, length, 0, r});
  return Sequence(std::move(segments));
}

void Sequence::reserve(int64_t num_tokens) {
  const auto num = size_t(num_tokens);
  segments_.reserve(num);  // of one token each, at worst
  halo_of_segment_.reserve(num);
  documents_.reserve(num);
  position_T_.reserve(num);
  segment_T_.reserve(num);
}

void Sequence::assign(std::span<const Segment> segments) {
  segments_.assign(segments.begin(), segments.end());
  position_T_.clear();
  segment_T_.clear();
  halo_of_segment_.clear();
  documents_.clear();
  num_halos_ = 0;
  for (const Segment& segment : segments_) {
    ASHLAR_ASSERT(segment.row == num_tokens() && segment.length > 0 && segment.position >= 0);
    const auto index = int32_t(halo_of_segment_.size());
    const Segment* before = index > 0 ? &segments_[size_t(index) - 1] : nullptr;
    const bool goes_on = before && before->document == segment.document &&
                         before->position + before->length == segment.position;
    if (goes_on)
      documents_.back().end += segment.length;
    else
      documents_.push_back({segment.row, segment.row + segment.length});
    halo_of_segment_.push_back(segment.position > 0 ? int32_t(num_halos_++) : -1);
    for (int64_t i = 0; i < segment.length; ++i) {
      position_T_.push_back(int32_t(segment.position + i));
      segment_T_.push_back(index);
    }
  }
}

}  // namespace ashlar::kernels
