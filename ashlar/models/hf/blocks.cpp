#include "ashlar/models/hf/blocks.h"

namespace ashlar::models {
namespace {

// Whether the spec is the first of its kind, which is kept, or equal to it.
template <typename Spec>
bool fits(const Spec*& first, const Spec& spec) {
  if (!first) first = &spec;
  return *first == spec;
}
bool fits(std::optional<ResidualFactors>& first, const ResidualFactors& factors) {
  if (!first) first = factors;
  return *first == factors;
}

// Lightning's decays follow from the number of the block.
bool fits_at(int64_t block, int64_t num_blocks, const LinearSpec*& first, const LinearSpec& spec) {
  if (!first) first = &spec;
  LinearSpec expected = *first;
  expected.slope_factor = spec.kind == LinearKind::kLightning
                              ? LinearSpec::slope_factor_of(block, num_blocks)
                              : LinearSpec{}.slope_factor;
  return expected == spec;
}

}  // namespace

HfBlocks::HfBlocks(const ModelSpec& model) {
  const int64_t L = model.num_blocks();
  for (int64_t l = 0; l < L; ++l) {
    const BlockSpec& block = model.blocks[size_t(l)];
    bool alike = block.residual == model.blocks[0].residual;
    if (const auto* spec = part_in<CcaSpec>(block))
      alike = fits(spec->window > 0 ? cca.sliding : cca.whole, *spec) && alike;
    if (const auto* spec = part_in<AttentionSpec>(block))
      alike = fits(spec->window > 0 ? attention.sliding : attention.whole, *spec) && alike;
    if (const auto* spec = part_in<LinearSpec>(block))
      alike = fits_at(l, L, linear, *spec) && alike;
    if (const auto* spec = part_in<MoeSpec>(block)) alike = fits(moe, *spec) && alike;
    if (const auto* spec = part_in<MlpSpec>(block)) alike = fits(mlp, *spec) && alike;
    if (block.residual == Residual::kNormed) {
      auto& mixer_factors = has<LinearSpec>(block) ? linear_factors : softmax_factors;
      alike = fits(mixer_factors, block.mixer_factors) && alike;
      alike = fits(feed_forward_factors, block.feed_forward_factors) && alike;
    }
    if (!alike && !odd) odd = l;
  }
}

}  // namespace ashlar::models
