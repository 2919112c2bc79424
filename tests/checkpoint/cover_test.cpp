// Boxes: intersection, runs, and the two proofs of exact cover, against brute force.
#include "ashlar/checkpoint/format/cover.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "ashlar/checkpoint/format/boxes.h"
#include "ashlar/core/clock.h"
#include "tests/checkpoint/random_boxes.h"

namespace ashlar::checkpoint {
namespace {

Shape random_shape(Draw& draw) {
  Shape shape{std::span<const int64_t>(std::vector<int64_t>(size_t(draw.below(5)), 1))};
  for (int d = 0; d < shape.ndim(); ++d) shape[d] = 1 + draw.below(6);
  return shape;
}

template <typename F>
void for_each_element(const Box& box, F&& body) {
  std::vector<int64_t> at(box.offset.dims().begin(), box.offset.dims().end());
  for (int64_t i = 0; i < box.length.numel(); ++i) {
    int64_t rest = i;
    for (int d = box.offset.ndim() - 1; d >= 0; --d) {
      at[size_t(d)] = box.offset[d] + rest % box.length[d];
      rest /= box.length[d];
    }
    body(at);
  }
}

bool tiles(const Shape& shape, const std::vector<Box>& boxes) {
  std::map<std::vector<int64_t>, int> hits;
  for (const Box& box : boxes) for_each_element(box, [&](const auto& at) { ++hits[at]; });
  bool exact = int64_t(hits.size()) == shape.numel();
  for (const auto& [at, count] : hits) exact &= count == 1;
  return exact;
}

bool hash_accepts(uint64_t seed, const Shape& shape, const std::vector<Box>& boxes) {
  const CoverHasher hash(seed, "layers.0.weight", shape.ndim());
  CoverHash sum;
  for (const Box& box : boxes) sum += hash(box);
  return sum == hash(Box::whole(shape));
}

TEST(Cover, HashAndSweepAgreeWithBruteForceOnTilingsAndMutants) {
  Draw draw(11, "cover");
  int mutants = 0;
  for (uint64_t round = 0; round < 3000; ++round) {
    const Shape shape = random_shape(draw);
    std::vector<Box> boxes = random_tiling(shape, draw.below(12), draw);
    ASSERT_TRUE(hash_accepts(round, shape, boxes));
    ASSERT_EQ(find_cover_error(shape, boxes), std::nullopt);
    for (int mutation = 0; mutation < 4; ++mutation) {
      std::vector<Box> mutant = boxes;
      Box& victim = mutant[size_t(draw.below(int64_t(mutant.size())))];
      const int d = shape.ndim() ? int(draw.below(shape.ndim())) : 0;
      if (mutation == 0)
        std::erase(mutant, Box(victim));
      else if (mutation == 1)
        mutant.push_back(Box(victim));
      else if (shape.ndim() == 0)
        continue;
      else if (mutation == 2 && victim.offset[d] > 0)
        --victim.offset[d];
      else if (mutation == 3 && victim.length[d] > 1)
        --victim.length[d];
      else
        continue;
      ++mutants;
      ASSERT_FALSE(tiles(shape, mutant));
      EXPECT_FALSE(hash_accepts(round, shape, mutant));
      EXPECT_TRUE(find_cover_error(shape, mutant));
    }
  }
  EXPECT_GT(mutants, 6000);
}

// Boxes of several tensors, some of one shape, as one save has them.
struct Tiled {
  std::string name;
  Shape shape;
  std::vector<Box> boxes;
};

bool save_accepts(uint64_t seed, const std::vector<Tiled>& tensors) {
  CoverHash found, expected;
  for (const Tiled& tensor : tensors) {
    const CoverHasher hash(seed, tensor.name, tensor.shape.ndim());
    expected += hash(Box::whole(tensor.shape));
    for (const Box& box : tensor.boxes) found += hash(box);
  }
  return found == expected;
}

bool sweep_accepts(const std::vector<Tiled>& tensors) {
  return std::ranges::none_of(tensors, [](const Tiled& tensor) {
    return find_cover_error(tensor.shape, tensor.boxes).has_value();
  });
}

bool tiles(const std::vector<Tiled>& tensors) {
  return std::ranges::all_of(tensors,
                             [](const Tiled& tensor) { return tiles(tensor.shape, tensor.boxes); });
}

// Mutants that keep the number of elements, so that only their places tell: a box moved onto
// another place, two boxes that exchange their lengths, a box instead of another of its volume, a
// box of one tensor given to another of the same shape; and a tensor of which there is nothing.
// False: not possible here.
bool mutate(std::vector<Tiled>& tensors, int64_t kind, Draw& draw) {
  Tiled& tensor = tensors[size_t(draw.below(int64_t(tensors.size())))];
  std::vector<Box>& boxes = tensor.boxes;
  Box& victim = boxes[size_t(draw.below(int64_t(boxes.size())))];
  const int ndim = tensor.shape.ndim();
  if (kind == 0) {
    boxes.clear();
    return true;
  }
  if (kind == 1) {  // moved
    for (int d = 0; d < ndim; ++d)
      victim.offset[d] = draw.below(tensor.shape[d] - victim.length[d] + 1);
    return true;
  }
  if (kind == 2) {  // the same volume, other lengths
    if (ndim < 2) return false;
    const int a = int(draw.below(ndim)), b = int(draw.below(ndim));
    std::swap(victim.length[a], victim.length[b]);
    return inside(victim, tensor.shape);
  }
  if (kind == 3) {  // one of two boxes of equal volume twice, the other not at all
    for (Box& other : boxes)
      if (&other != &victim && other.length.numel() == victim.length.numel()) {
        other = victim;
        return true;
      }
    return false;
  }
  for (Tiled& other : tensors)  // given away
    if (&other != &tensor && other.shape == tensor.shape) {
      other.boxes.push_back(victim);
      boxes.erase(boxes.begin() + (&victim - boxes.data()));
      return true;
    }
  return false;
}

// ASHLAR_COVER_MUTANTS=N   so many mutants (default 6,000; scripts/campaign reshard)
TEST(Cover, NoMutantOfEqualVolumeAndNoAbsentTensorIsAccepted) {
  const char* asked = std::getenv("ASHLAR_COVER_MUTANTS");
  const int64_t wanted = asked ? std::atoll(asked) : 6000;
  ASSERT_GT(wanted, 0);
  Draw draw(12, "mutants");
  std::array<int64_t, 5> mutants{};
  int64_t covers = 0, made = 0;
  for (uint64_t round = 0; made < wanted; ++round) {
    std::vector<Tiled> tensors;
    const Shape twin = random_shape(draw);
    for (int n = 0; n < 4; ++n) {
      const Shape shape = n < 2 ? twin : random_shape(draw);
      tensors.push_back(
          {fmt::format("layers.{}.weight", n), shape, random_tiling(shape, draw.below(10), draw)});
    }
    ++covers;
    ASSERT_TRUE(save_accepts(round, tensors)) << round;
    ASSERT_TRUE(sweep_accepts(tensors)) << round;
    for (int64_t kind = 0; kind < 5; ++kind) {
      std::vector<Tiled> mutant = tensors;
      if (!mutate(mutant, kind, draw) || tiles(mutant)) continue;
      ++made;
      ++mutants[size_t(kind)];
      ASSERT_FALSE(save_accepts(round, mutant)) << "round " << round << " kind " << kind;
      ASSERT_FALSE(sweep_accepts(mutant)) << "round " << round << " kind " << kind;
    }
  }
  for (const int64_t count : mutants) EXPECT_GT(count, wanted / 100);
  fmt::print(
      "cover: {} exact covers, 0 rejected; {} mutants, 0 accepted: {} of absent tensors, {} "
      "moved, {} of equal volume, {} twice, {} of another tensor\n",
      covers, made, mutants[0], mutants[1], mutants[2], mutants[3], mutants[4]);
}

TEST(Cover, HashIsTheSumOverElements) {
  const Shape shape{3, 4, 2};
  const CoverHasher hash(9, "w", 3);
  CoverHash sum;
  for_each_element(Box::whole(shape), [&](const std::vector<int64_t>& at) {
    sum += hash(Box{Shape{std::span<const int64_t>(at)}, {1, 1, 1}});
  });
  EXPECT_EQ(sum, hash(Box::whole(shape)));
  EXPECT_NE(sum, CoverHasher(10, "w", 3)(Box::whole(shape)));
  EXPECT_NE(sum, CoverHasher(9, "v", 3)(Box::whole(shape)));
  EXPECT_EQ(hash(Box{{1, 2, 0}, {0, 1, 2}}), CoverHash{});
}

TEST(Cover, SweepNamesTheElement) {
  const Shape shape{4, 6};
  EXPECT_EQ(find_cover_error(shape, std::vector<Box>{{{0, 0}, {2, 6}}, {{2, 0}, {2, 5}}}),
            "element [2, 5] is in no box");
  EXPECT_EQ(find_cover_error(shape, std::vector<Box>{{{0, 0}, {3, 6}}, {{2, 0}, {2, 6}}}),
            "element [2, 0] is in boxes [0:3, 0:6] and [2:4, 0:6]");
  EXPECT_EQ(find_cover_error(Shape{}, std::vector<Box>{}), "element [] is in no box");
  EXPECT_EQ(find_cover_error(Shape{0, 3}, std::vector<Box>{{{0, 0}, {0, 3}}}), std::nullopt);
}

// Cuts along all three dims, that meet each other everywhere: the one hole comes after 10^12 steps.
TEST(Cover, BoxesOfIllWillAreToldInBoundedSteps) {
  constexpr int64_t kCuts = 10000;
  const Shape shape{kCuts, kCuts + 1, kCuts + 1};
  std::vector<Box> boxes;
  for (int64_t i = 0; i < kCuts; ++i) {
    boxes.push_back({{0, 1 + i, 0}, {kCuts, 1, 1}});
    boxes.push_back({{0, 1, 1 + i}, {kCuts, kCuts, 1}});
    boxes.push_back({{i, 0, 0}, {1, 1, kCuts + 1}});
  }
  EXPECT_EQ(find_cover_error(shape, boxes), std::nullopt);
  boxes.pop_back();
  const auto start = Clock::now();
  EXPECT_EQ(find_cover_error(shape, boxes),
            "its 29999 boxes do not tile it; too many to name an element");
  EXPECT_LT(seconds_since(start), 10) << "hangs";  // well below a second on an idle machine
}

TEST(Boxes, IntersectionAndRunsCopyExactlyTheCommonElements) {
  Draw draw(11, "runs");
  for (int round = 0; round < 2000; ++round) {
    const Shape shape = random_shape(draw);
    const auto random_box = [&] {
      Box box = Box::whole(shape);
      for (int d = 0; d < shape.ndim(); ++d) {
        if (draw.below(2)) continue;  // whole dims make long runs
        box.offset[d] = draw.below(shape[d]);
        box.length[d] = 1 + draw.below(shape[d] - box.offset[d]);
      }
      return box;
    };
    const Box from = random_box(), to = random_box();
    std::map<std::vector<int64_t>, int64_t> place;  // element -> position in `from`
    int64_t position = 0;
    for_each_element(from, [&](const auto& at) { place[at] = position++; });
    std::vector<int64_t> expected, found(size_t(to.length.numel()), -1);
    int64_t common = 0;
    for_each_element(to, [&](const auto& at) {
      expected.push_back(place.contains(at) ? place[at] : -1);
      common += place.contains(at);
    });
    const auto part = intersect(from, to);
    ASSERT_EQ(part.has_value(), common > 0);
    if (!part) continue;
    int64_t last = -1;
    for (Runs runs(*part, from, to); !runs.done(); runs.next()) {
      ASSERT_GT(runs.from(), last);
      for (int64_t i = 0; i < runs.length(); ++i) found[size_t(runs.to() + i)] = runs.from() + i;
      last = runs.from() + runs.length() - 1;
    }
    ASSERT_EQ(found, expected);
  }
}

}  // namespace
}  // namespace ashlar::checkpoint
