// Neighbouring rows of a batch that are neighbouring tokens of one document.
#pragma once

#include <cstdint>

namespace ashlar {

struct Segment {
  int64_t row;  // first row, counted over the whole batch: sample * T + place in the sample
  int64_t length;
  int64_t position;  // index of its first token inside the document: 0 starts a document
  int64_t document;  // id; keys and queries meet only within one document
  friend bool operator==(const Segment&, const Segment&) = default;
};

}  // namespace ashlar
