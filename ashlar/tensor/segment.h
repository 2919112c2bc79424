// Adjacent rows of a batch that are adjacent tokens of one document.
#pragma once

#include <cstdint>

namespace ashlar {

struct Segment {
  int64_t row;  // first row, counted over the whole batch: sample * T + position in the sample
  int64_t length;
  int64_t position;  // index of its first token inside the document: 0 starts a document
  int64_t document;  // id; keys and queries meet only within one document
  // Padding fills up a row: its tokens have no targets, no other token sees them, and no expert
  // takes them.
  bool padding = false;
  friend bool operator==(const Segment&, const Segment&) = default;
};

}  // namespace ashlar
