// How it works.  The hash and the sweep answer one question independently.  The hash is a sum in
// the field of integers modulo p = 2^61 - 1, in which a product of 122 bits is reduced by one shift
// and one addition.  A row of n elements from offset o in dim d weighs g^o + ... + g^(o + n - 1) =
// g^o (g^n - 1) / (g - 1), and a box the product over its dims, so that its cost does not depend on
// how many elements it has.  (g - 1) is inverted once per generator.
//   The sweep finds an element to name when hashes differ.  It cuts dim 0 into slabs at all
// borders of the boxes; all of a slab is spanned by the same boxes, so that its first coordinate
// represents it, and check() descends to the next dim with those boxes.  Below the last dim exactly
// one box must be left.  With cuts along all dims the work grows like a power of the number of
// boxes, which the file determines: after kMaxSteps the sweep reports an error without an element.
#include "ashlar/checkpoint/format/cover.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "ashlar/checkpoint/format/boxes.h"
#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/core/error.h"
#include "ashlar/core/rng.h"

namespace ashlar::checkpoint {
namespace {

constexpr uint64_t kPrime = (uint64_t(1) << 61) - 1;

uint64_t add(uint64_t a, uint64_t b) {
  const uint64_t sum = a + b;
  return sum >= kPrime ? sum - kPrime : sum;
}

// 2^61 is 1 modulo kPrime: the bits from 61 on are added to those below.
uint64_t multiply(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return add(uint64_t(product & kPrime), uint64_t(product >> 61));
}

uint64_t power(uint64_t base, uint64_t exponent) {
  uint64_t result = 1;
  for (; exponent; exponent >>= 1, base = multiply(base, base))
    if (exponent & 1) result = multiply(result, base);
  return result;
}

uint64_t inverse(uint64_t a) {
  return power(a, kPrime - 2);
}  // Fermat

std::string element_text(std::span<const int64_t> at) {
  std::string text = "[";
  for (size_t d = 0; d < at.size(); ++d) text += (d ? ", " : "") + std::to_string(at[d]);
  return text + "]";
}

// Cuts dim `d` at every border of the boxes and descends into each slab with the boxes that span
// it.
class Sweep {
 public:
  Sweep(const Shape& shape, std::span<const Box* const> boxes)
      : shape_(shape), boxes_(boxes), at_(size_t(shape.ndim()), 0) {}

  std::optional<std::string> check(int d, const std::vector<int>& active) {
    if (d == shape_.ndim()) {
      if (active.size() == 1) return std::nullopt;
      if (active.empty()) return fmt::format("element {} is in no box", element_text(at_));
      return fmt::format("element {} is in boxes {} and {}", element_text(at_),
                         to_text(*boxes_[size_t(active[0])]), to_text(*boxes_[size_t(active[1])]));
    }
    if (steps_ > kMaxSteps)
      return fmt::format("its {} boxes do not tile it; too many to name an element", boxes_.size());
    steps_ += int64_t(active.size());
    std::vector<int> by_begin = active;
    std::stable_sort(by_begin.begin(), by_begin.end(),
                     [&](int a, int b) { return begin_of(a, d) < begin_of(b, d); });
    std::vector<int64_t> borders{0, shape_[d]};  // so that what no box reaches is a slab too
    for (const int box : active) {
      borders.push_back(begin_of(box, d));
      borders.push_back(end_of(box, d));
    }
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    std::vector<int> spanning;
    size_t next = 0;
    for (size_t slab = 0; slab + 1 < borders.size(); ++slab) {
      const int64_t begin = borders[slab];
      std::erase_if(spanning, [&](int box) { return end_of(box, d) <= begin; });
      while (next < by_begin.size() && begin_of(by_begin[next], d) == begin)
        spanning.push_back(by_begin[next++]);
      steps_ += int64_t(spanning.size()) + 1;
      at_[size_t(d)] = begin;
      if (auto error = check(d + 1, spanning)) return error;
    }
    at_[size_t(d)] = 0;
    return std::nullopt;
  }

 private:
  static constexpr int64_t kMaxSteps = 5'000'000;  // well below a second

  int64_t begin_of(int box, int d) const { return boxes_[size_t(box)]->offset[d]; }
  int64_t end_of(int box, int d) const {
    return boxes_[size_t(box)]->offset[d] + boxes_[size_t(box)]->length[d];
  }
  const Shape& shape_;
  std::span<const Box* const> boxes_;
  std::vector<int64_t> at_;
  int64_t steps_ = 0;
};

}  // namespace

CoverHash& CoverHash::operator+=(const CoverHash& other) {
  for (size_t i = 0; i < lanes.size(); ++i) lanes[i] = add(lanes[i], other.lanes[i]);
  return *this;
}

CoverHasher::CoverHasher(uint64_t seed, std::string_view name, int ndim) : ndim_(ndim) {
  uint64_t state = splitmix64(seed) ^ fnv1a64(name);
  for (Lane& lane : lanes_) {
    lane.weight = 1 + (state = splitmix64(state + 1)) % (kPrime - 1);
    for (int d = 0; d < ndim; ++d) {
      // From 2 on: for 0 and 1 the formula has no meaning.
      lane.generator[d] = 2 + (state = splitmix64(state + 1)) % (kPrime - 3);
      lane.inverse[d] = inverse(lane.generator[d] - 1);
    }
  }
}

CoverHash CoverHasher::operator()(const Box& box) const {
  ASHLAR_ASSERT(box.offset.ndim() == ndim_);
  CoverHash hash;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    uint64_t h = lane.weight;
    for (int d = 0; d < ndim_; ++d) {
      const uint64_t g = lane.generator[d];
      h = multiply(h, power(g, uint64_t(box.offset[d])));
      h = multiply(h, add(power(g, uint64_t(box.length[d])), kPrime - 1));  // g^length - 1
      h = multiply(h, lane.inverse[d]);
    }
    hash.lanes[i] = h;
  }
  return hash;
}

std::optional<std::string> find_cover_error(const Shape& shape, size_t num_boxes,
                                            function_ref<const Box&(size_t)> box_of) {
  const Id seed = random_id();  // so that no file can have boxes that match its generators
  uint64_t number = 0;
  std::memcpy(&number, seed.data(), sizeof(number));
  const CoverHasher hash(number, "", shape.ndim());
  CoverHash found;
  std::vector<const Box*> filled;
  for (size_t i = 0; i < num_boxes; ++i) {
    const Box& box = box_of(i);
    ASHLAR_ASSERT(inside(box, shape));
    if (box.length.numel() == 0) continue;
    found += hash(box);
    filled.push_back(&box);
  }
  if (found == hash(Box::whole(shape))) return std::nullopt;  // an empty shape has boxes of 0
  std::vector<int> all(filled.size());
  std::iota(all.begin(), all.end(), 0);
  auto error = Sweep(shape, filled).check(0, all);
  ASHLAR_ASSERT(error);  // the sweep is exact
  return error;
}

std::optional<std::string> find_cover_error(const Shape& shape, std::span<const Box> boxes) {
  return find_cover_error(shape, boxes.size(), [&](size_t i) -> const Box& { return boxes[i]; });
}

}  // namespace ashlar::checkpoint
