#include "ashlar/data/piece_borders.h"

namespace ashlar::data {

void PieceBorders::add(std::string_view piece) {
  uint32_t before = 0;
  for (size_t at = 0; at < piece.size();) {
    const Step step = step_at(piece, at);
    if (at > 0) beside_[before * kClasses + step.kind] = true;
    before = step.kind;
    at += step.bytes;
  }
}

bool PieceBorders::end_words() const {
  for (uint32_t letter = 0; letter < kOther; ++letter)
    if (((letter | 32) >= 'a' && (letter | 32) <= 'z') && beside_[letter * kClasses + ' '])
      return false;
  return true;
}

size_t PieceBorders::last_before_end(std::string_view text) const {
  size_t last = 0;
  uint32_t before = 0;
  for (size_t at = 0; at < text.size();) {
    const Step step = step_at(text, at);
    if (at > 0 && !beside_[before * kClasses + step.kind]) last = at;
    before = step.kind;
    at += step.bytes;
  }
  return last;
}

}  // namespace ashlar::data
