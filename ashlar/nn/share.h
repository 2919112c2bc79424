// Which part of a model stands here: of its layers, as fractions (one of so many equal parts of the
// attention heads, of the width of MLPs and of experts, of the experts; a layer, which knows its
// own totals, resolves them), and which of its blocks.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace ashlar::nn {

// What a layer can be cut into.
// kStateHead: a key head of a linear mixer, with the value heads that read it.
enum class Grain : uint8_t { kQueryHead, kKeyHead, kStateHead, kWidth, kExpertWidth, kExpert };

// Grains, or elements, [begin, end) of some total.
struct Portion {
  int64_t begin = 0, end = 0;
  int copy = 0, num_copies = 1;  // so many shares hold this very portion
  int64_t size() const { return end - begin; }
};

struct Fraction {
  int index = 0, count = 1;
};

struct BlockRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};

// A stage of a pipeline: one chunk of blocks, or several.  The chunks of all stages are the virtual
// stages, numbered in the order in which tokens pass them; stage s of n has numbers s, s + n, s + 2
// n, ...  The first stage has the embedding too, the last one the final norm and the head.
struct Stage {
  int index = 0, count = 1;
  std::vector<int64_t>
      borders{};  // virtual stage v: blocks [borders[v], borders[v + 1]); empty: one

  bool first() const { return index == 0; }
  bool last() const { return index == count - 1; }
  int num_chunks() const { return borders.empty() ? 1 : int(borders.size() - 1) / count; }
  BlockRange chunk(int number, int64_t num_blocks) const;
  bool holds(int64_t block) const;
};

// The units that a block's tensors cut by heads or width form.  Units of their own are packed by
// the branch that runs a layer with all shares (parallel/tsp.h).
enum class CutUnits : uint8_t {
  kWithBlock,      // none: they are in the block's unit
  kOne,            // one unit
  kHeadsAndWidth,  // a unit of heads and a unit of width, which different ranks share
};

// How the tensors of a share are shared among ranks, where not all alike.  Tensors that other ranks
// hold make a unit of their own (nn/weights.h).
struct UnitSplit {
  CutUnits cuts = CutUnits::kWithBlock;
  bool experts = false;    // those that are cut by experts, from the others
  bool embedding = false;  // the embedding, from the rest of the root
  bool has_cut_units() const { return cuts != CutUnits::kWithBlock; }
  int num_cut_units() const { return int(cuts); }
  int per_block() const { return 1 + num_cut_units() + experts; }
};

struct Share {
  Fraction heads, width, expert_width, experts;
  // The heads here are run in this many equal parts, one after another (parallel/tsp.h).
  int head_buckets = 1;
  // Where experts are cut: the room for rows, as a multiple of what an even load gives them.
  double expert_rows = 1.0;
  Fraction uncut;  // of the tensors that nobody cuts: `count` shares hold each, whole
  // Of the embedding, where the head is the same tensor and stands in another stage.
  Fraction embedding{};
  Stage stage{};
  UnitSplit units{};

  // Part `index` of `count` of heads, width and experts' width.
  static Share even(int index, int count);
  // total must be a multiple of the count of parts, or divide it: then several hold the same grain.
  Portion of(Grain grain, int64_t total) const;
};

}  // namespace ashlar::nn
