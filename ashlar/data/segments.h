// A run of neighbouring tokens of one document inside a batch.
#pragma once

#include <cstdint>

namespace ashlar::data {

struct Segment {
  int64_t row;  // first token, counted over the whole batch: sample * T + place in the sample
  int64_t length;
  int64_t position;  // index of its first token in what attention sees of the document: 0
  int64_t document;  // different for every segment of a batch
  friend bool operator==(const Segment&, const Segment&) = default;
};

}  // namespace ashlar::data
