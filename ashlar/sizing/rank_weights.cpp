#include "ashlar/sizing/rank_weights.h"

#include <algorithm>

#include "ashlar/sizing/block_time.h"
#include "ashlar/sizing/model.h"

namespace ashlar::sizing {

BlockWeights block_weights(const BlockSpec& block, double hidden) {
  BlockWeights weights;
  const auto sum = [](const std::vector<MatrixStack>& list, bool of_experts) {
    double numel = 0;
    for (const MatrixStack& m : list)
      if (m.of_experts == of_experts) numel += m.rows * m.cols * m.count;
    return numel;
  };
  BlockSpec mixer_alone = block;
  mixer_alone.feed_forward = MlpSpec{};
  weights.mixer = sum(matrices_of(mixer_alone, hidden), false);
  const std::vector<MatrixStack> all = matrices_of(block, hidden);
  weights.experts = sum(all, true);
  const double rest = sum(all, false) - weights.mixer;
  if (const auto* moe = std::get_if<MoeSpec>(&block.feed_forward)) {
    weights.mlp = 3 * hidden * double(moe->shared.width);
    weights.router = rest - weights.mlp;
  } else {
    weights.mlp = rest;
  }
  return weights;
}

std::array<Unit, 3> units_of(const StepShape& shape, const BlockWeights& block) {
  const ParallelSpec& p = shape.parallel;
  const double tp = double(p.tp), tsp = double(p.tsp), ep = double(p.ep);
  const int64_t data = p.dp * p.cp * p.tsp;
  std::array<Unit, 3> units;
  units[0] = {block.router, data, p.tp};
  units[1] = {(block.mixer + block.mlp) / tp / tsp, p.dp * p.cp, p.tp * p.tsp};
  units[2] = {block.experts / tp / ep, data / p.ep, p.tp * p.ep};
  if (p.tsp == 1) units[0].numel += units[1].numel, units[1].numel = 0;
  if (p.ep == 1) units[0].numel += units[2].numel, units[2].numel = 0;
  return units;
}

int64_t stage_of(const StepShape& shape, int64_t block) {
  const int64_t L = shape.model.num_blocks();
  const int64_t parts = shape.parallel.pp * shape.parallel.virtual_stages;
  const int64_t base = L / parts, longer = L % parts;
  const int64_t part = block < longer * (base + 1) ? block / (base + 1)
                                                   : longer + (block - longer * (base + 1)) / base;
  return part % shape.parallel.pp;
}

RankWeights rank_weights(const StepShape& shape, int64_t stage) {
  const ParallelSpec& p = shape.parallel;
  const double H = double(shape.model.hidden_size), V = double(shape.model.vocab_size);
  const bool first = stage == 0, last = stage + 1 == p.pp,
             muon = shape.matrices == MatrixOptimizer::kMuon;
  RankWeights w;
  w.root = (first || (last && shape.model.tied_head) ? V * H : 0) +
           (last && !shape.model.tied_head ? V * H : 0);
  w.head = last ? V * H : 0;
  const double data = double(p.dp * p.cp * p.tsp);
  const ModelParameters all = model_parameters(shape.model);
  double largest_flop = 0, largest = 0, matrices = 0;
  for (int64_t l = 0; l < shape.model.num_blocks(); ++l) {
    const BlockSpec& block = shape.model.blocks[size_t(l)];
    const BlockWeights whole = block_weights(block, H);
    matrices += whole.mixer + whole.mlp + whole.experts + whole.router;
    if (stage_of(shape, l) != stage) continue;
    double of_block = 0;
    for (const Unit& unit : units_of(shape, whole)) {
      of_block += unit.numel;
      w.kept_matrices += unit.numel / (p.zero > 0 ? double(unit.ranks) : 1);
    }
    w.blocks += of_block;
    w.largest_block = std::max(w.largest_block, of_block);
    if (!muon) continue;
    for (const MatrixStack& m : matrices_of(block, H)) {
      const double flop = newton_schulz_flop(m.rows, m.cols, 1);
      // Up to three ranks with parts of a matrix all run it, of more one does.
      const int64_t cuts = p.tp * (m.of_experts ? 1 : p.tsp);
      const double sets = m.of_experts ? double(p.ep) : double(p.tsp);
      const double sharers = (m.of_experts ? sets : 1) * (cuts > 3 ? double(cuts) : 1) *
                             (p.zero > 0 ? data / sets : 1);
      w.newton_schulz_flop += flop * m.count / sharers;
      if (flop > largest_flop) largest_flop = flop, largest = m.rows * m.cols;
    }
  }
  // Vectors and convolutions of the stage's blocks are in the root.
  const double rest = double(all.blocks + all.other) - matrices;
  w.root += rest / double(p.pp);
  w.kept = (p.zero > 0 ? w.root / data : w.root) + w.kept_matrices;
  // A border between shards cuts a matrix, of which both sides run all.
  if (muon && p.zero > 0 && data > 1) {
    w.newton_schulz_flop += largest_flop / 2;
    w.exchanged = largest / 2;
  }
  return w;
}

}  // namespace ashlar::sizing
