#include "ashlar/sizing/rank_weights.h"

#include <algorithm>

#include "ashlar/sizing/block_time.h"
#include "ashlar/sizing/model.h"

namespace ashlar::sizing {

std::array<Unit, 3> units_of(const StepShape& shape, const BlockTuning& tuning) {
  const ParallelSpec& p = shape.parallel;
  const BlockWeights block = weights_of(tuning.trained);
  const double tp = double(p.tp), tsp = double(p.tsp), ep = double(p.ep);
  const int64_t data = p.dp * p.cp * p.tsp;
  std::array<Unit, 3> units;
  units[0] = {block.router, data, p.tp};
  units[1] = {(block.mixer + block.mlp) / tp / tsp, p.dp * p.cp, p.tp * p.tsp};
  units[2] = {(block.experts / tp + tuning.adapters(/*of_experts=*/true, tp)) / ep, data / p.ep,
              p.tp * p.ep};
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
  const auto add_table = [&](bool trained, bool packed) {
    (trained ? w.root : w.frozen_root) += V * H;
    if (packed) (trained ? w.root_packed : w.frozen_head) += V * H;
  };
  if (first || (last && shape.model.tied_head))
    add_table(shape.tuning.embedding, last && shape.model.tied_head);
  if (last && !shape.model.tied_head) add_table(shape.tuning.head, true);
  const double data = double(p.dp * p.cp * p.tsp);
  const ModelParameters all = model_parameters(shape.model);
  double largest_flop = 0, largest = 0, matrices = 0, kept_adapters = 0;
  for (int64_t l = 0; l < shape.model.num_blocks(); ++l) {
    const BlockTuning& block = shape.tuning.blocks[size_t(l)];
    const BlockWeights frozen = weights_of(block.frozen);
    matrices += weights_of(block.trained).total() + frozen.total();
    if (stage_of(shape, l) != stage) continue;
    w.frozen += frozen.router + (frozen.mixer + frozen.mlp) / double(p.tp * p.tsp) +
                frozen.experts / double(p.tp * p.ep);
    const double adapters = block.adapters(/*of_experts=*/false, double(p.tp));
    w.root += adapters, w.root_packed += adapters;
    double of_block = 0;
    for (const Unit& unit : units_of(shape, block)) {
      of_block += unit.numel;
      w.kept_blocks += unit.numel / (p.zero > 0 ? double(unit.ranks) : 1);
    }
    const double of_adapters = block.adapters(/*of_experts=*/true, double(p.tp)) / double(p.ep);
    kept_adapters += of_adapters / (p.zero > 0 ? data / double(p.ep) : 1);
    w.blocks += of_block;
    w.largest_block = std::max(w.largest_block, of_block);
    if (!muon) continue;
    for (const MatrixStack& m : block.trained) {
      const bool of_experts = m.part == BlockPart::kExperts;
      const double flop = newton_schulz_flop(m.rows, m.cols, 1);
      // Up to three ranks with parts of a matrix all run it, of more one does.
      const int64_t cuts = p.tp * (of_experts ? 1 : p.tsp);
      const double sets = of_experts ? double(p.ep) : double(p.tsp);
      const double sharers =
          (of_experts ? sets : 1) * (cuts > 3 ? double(cuts) : 1) * (p.zero > 0 ? data / sets : 1);
      w.newton_schulz_flop += flop * m.count / sharers;
      if (flop > largest_flop) largest_flop = flop, largest = m.rows * m.cols;
    }
  }
  // Vectors and convolutions of the stage's blocks are in the root.
  const double rest = double(all.blocks + all.other) - matrices;
  (shape.tuning.vectors ? w.root : w.frozen_root) += rest / double(p.pp);
  w.kept = (p.zero > 0 ? w.root / data : w.root) + w.kept_blocks;
  w.kept_matrices = w.kept_blocks - kept_adapters;
  // A border between shards cuts a matrix, of which both sides run all.
  if (muon && p.zero > 0 && data > 1) {
    w.newton_schulz_flop += largest_flop / 2;
    w.exchanged = largest / 2;
  }
  return w;
}

}  // namespace ashlar::sizing
