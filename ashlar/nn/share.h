// The part of a model on this rank: a part of each layer, and some of the blocks.  The part of a
// layer is given as fractions of its attention heads, of the width of MLPs and of experts, and of
// the experts; the layer knows its own totals and turns the fractions into ranges.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace ashlar::nn {

// The pieces that a layer can be cut into.  kStateHead is a key head of a linear mixer, with the
// value heads that read it.
enum class Grain : uint8_t { kQueryHead, kKeyHead, kStateHead, kWidth, kExpertWidth, kExpert };

// Grains or elements [begin, end) out of a total.
struct Portion {
  int64_t begin = 0, end = 0;
  int copy = 0, num_copies = 1;  // number of shares that hold this same portion
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
// stages, numbered in the order in which tokens pass through them; stage s of n has the numbers s,
// s + n, s + 2 n, ...  The first stage also has the embedding, the last one the final norm and the
// head.
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

// The units formed by those tensors of a block that are cut by heads or width.  Separate units are
// packed by the branch that runs a layer with all shares (parallel/tsp.h).
enum class CutUnits : uint8_t {
  kWithBlock,      // no separate unit: they are in the block's unit
  kOne,            // one unit
  kHeadsAndWidth,  // a unit of heads and a unit of width, each shared by different ranks
};

// Which tensors of a share are held by other ranks than the rest; each such group of tensors is a
// unit of its own (nn/weights.h).
struct UnitSplit {
  CutUnits cuts = CutUnits::kWithBlock;
  bool experts = false;    // separates tensors cut by experts from the others
  bool embedding = false;  // separates the embedding from the rest of the root
  bool has_cut_units() const { return cuts != CutUnits::kWithBlock; }
  int num_cut_units() const { return int(cuts); }
  int per_block() const { return 1 + num_cut_units() + experts; }
};

struct Share {
  Fraction heads, width, expert_width, experts;
  // The heads here run in this many equal parts, one after another (parallel/tsp.h).
  int head_buckets = 1;
  // If experts are cut: memory for their rows, as a multiple of an even load.
  double expert_rows = 1.0;
  Fraction uncut;  // tensors that are not cut: `count` shares hold each of them whole
  // Set where the embedding is also the head of another stage.
  Fraction embedding{};
  Stage stage{};
  UnitSplit units{};

  // Part `index` of `count` of the heads, the width and the experts' width.
  static Share even(int index, int count);
  // The total must be a multiple of the number of parts, or divide it; in the second case several
  // shares hold the same grain.
  Portion of(Grain grain, int64_t total) const;
};

}  // namespace ashlar::nn
