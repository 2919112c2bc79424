// The matrices of a block in closed form, and which of them a run trains: all, those that it does
// not freeze, or adapters of low rank.
//
// Vectors, convolutions, and the small products of linear mixers' decays and of a shared expert's
// gate count as trained with train.freeze, and as frozen beside adapters: they are less than a
// hundredth of a model.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "ashlar/spec/model_spec.h"
#include "ashlar/spec/tune_spec.h"

namespace ashlar::sizing {

enum class BlockPart : uint8_t { kMixer, kMlp, kExperts, kRouter };
enum class TpCut : uint8_t { kRows, kCols, kNone };

// `count` whole matrices of rows x cols, which make cols inputs into rows outputs.
struct MatrixStack {
  double rows = 0, cols = 0, count = 0;
  BlockPart part = BlockPart::kMixer;
  TpCut cut = TpCut::kNone;
  std::string_view name;  // of the native tensor, behind "model.layers.3."
  double numel() const { return rows * cols * count; }
  // The extents on one of tp ranks.
  double rows_here(double tp) const { return cut == TpCut::kRows ? rows / tp : rows; }
  double cols_here(double tp) const { return cut == TpCut::kCols ? cols / tp : cols; }
  friend bool operator==(const MatrixStack&, const MatrixStack&) = default;
};
std::vector<MatrixStack> matrices_of(const BlockSpec& block, double hidden);

// Parameters of matrices of a whole block.
struct BlockWeights {
  double mixer = 0, mlp = 0;  // tp and tsp cut them
  double experts = 0;         // tp and ep cut them
  double router = 0;          // every rank has it
  double total() const { return mixer + mlp + experts + router; }
};
BlockWeights weights_of(std::span<const MatrixStack> matrices);

struct BlockTuning {
  std::vector<MatrixStack> trained, frozen;
  std::vector<MatrixStack>
      adapted;  // frozen ones, each with an A [rank, cols] and a B [rows, rank]
  double rank = 0;

  // The elements of adapters on a rank: half of each is cut as its matrix.  With of_experts: of all
  // experts, before ep divides them.
  double adapters(bool of_experts, double tp) const;
  // The share of the part's elements that is trained.
  double trained_share(BlockPart part) const;
  friend bool operator==(const BlockTuning&, const BlockTuning&) = default;
};

struct ModelTuning {
  std::vector<BlockTuning> blocks;
  bool embedding = true, head = true, vectors = true;  // whether these are trained
};
ModelTuning tuning_of(const ModelSpec& model, const TuneSpec& tune);

}  // namespace ashlar::sizing
