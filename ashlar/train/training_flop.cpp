#include "ashlar/train/training_flop.h"

#include "ashlar/nn/weights.h"
#include "ashlar/sizing/model.h"

namespace ashlar::train {
namespace {

// The part of a stack of experts that a token meets.
double met_by_token(const ModelSpec& model, const nn::Stored& stored) {
  if (!stored.logical[0].is_cut_by(nn::Grain::kExpert)) return 1.0;
  const auto& moe = std::get<MoeSpec>(model.blocks[size_t(stored.block)].feed_forward);
  return double(moe.experts_of_token()) / double(moe.num_experts);
}

}  // namespace

double training_flop(const Recipe& recipe) {
  const ModelSpec model = model_of(recipe.model);
  double flop = model_flop(model, recipe.data.sequence_length).training;
  if (recipe.tune.trains_all()) return flop;
  const nn::ModelWeights weights(model, {}, {}, recipe.tune);
  for (const nn::Stored& stored : weights.tensors) {
    if (!stored.is_operand()) continue;
    const double numel = double(stored.shape.numel());
    if (stored.logical[0].adapter) flop += 6.0 * numel * met_by_token(model, stored);
    if (stored.is_frozen()) flop -= 2.0 * numel * met_by_token(model, stored);
  }
  return flop;
}

}  // namespace ashlar::train
