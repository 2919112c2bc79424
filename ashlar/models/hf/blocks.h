// The blocks of a model as config.json states them: each kind of mixer and of feed-forward once,
// softmax mixers with a window apart from those without.
#pragma once

#include <optional>
#include <type_traits>

#include "ashlar/spec/model_spec.h"

namespace ashlar::models {

// The mixer or feed-forward of a block if it is of that kind, else null.
template <typename Spec, typename Block>
auto* part_in(Block& block) {
  if constexpr (std::is_convertible_v<Spec, MixerSpec>)
    return std::get_if<Spec>(&block.mixer);
  else
    return std::get_if<Spec>(&block.feed_forward);
}
template <typename Spec>
bool has(const BlockSpec& block) {
  return part_in<Spec>(block) != nullptr;
}
// Calls change(spec) for each block that has one.
template <typename Spec, typename Change>
void change_each(ModelSpec& model, Change change) {
  for (BlockSpec& block : model.blocks)
    if (Spec* spec = part_in<Spec>(block)) change(*spec);
}
// The number of the first block with one; num_blocks(): none has.
template <typename Spec>
int64_t first_block_with(const ModelSpec& model) {
  int64_t l = 0;
  while (l < model.num_blocks() && !has<Spec>(model.blocks[size_t(l)])) ++l;
  return l;
}

// Pointers into a model, which must outlive this; null: no block has it.
struct HfBlocks {
  template <typename Spec>
  struct Softmax {
    const Spec *whole = nullptr, *sliding = nullptr;  // without a window, with one
    const Spec* any() const { return whole ? whole : sliding; }
    bool one_reach() const { return !whole || !sliding; }
  };
  explicit HfBlocks(const ModelSpec& model);

  Softmax<CcaSpec> cca;
  Softmax<AttentionSpec> attention;
  const LinearSpec* linear = nullptr;
  const MoeSpec* moe = nullptr;
  const MlpSpec* mlp = nullptr;
  // The factors of Residual::kNormed.
  std::optional<ResidualFactors> softmax_factors, linear_factors, feed_forward_factors;
  // The first block that differs from an earlier one of its kind, but for what changes with depth,
  // or has another residual.
  std::optional<int64_t> odd;
};

}  // namespace ashlar::models
