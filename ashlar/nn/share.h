// Which part of a model's layers stands here, as fractions: one of so many equal parts of the
// attention heads, of the experts' width.  A layer, which knows its own totals, resolves them.
#pragma once

#include <cstdint>

namespace ashlar::nn {

// What a layer can be cut into.
enum class Grain : uint8_t { kQueryHead, kKeyHead, kWidth };

// Grains, or elements, [begin, end) of some total.
struct Portion {
  int64_t begin = 0, end = 0;
  int copy = 0, num_copies = 1;  // so many shares hold this very portion
  int64_t size() const { return end - begin; }
};

struct Fraction {
  int index = 0, count = 1;
};

struct Share {
  Fraction heads, width;
  Fraction uncut;  // of the tensors that nobody cuts: `count` shares hold each, whole

  // Part `index` of `count` of everything that can be cut.
  static Share even(int index, int count);
  // total must be a multiple of the count of parts, or divide it: then several hold the same grain.
  Portion of(Grain grain, int64_t total) const;
};

}  // namespace ashlar::nn
