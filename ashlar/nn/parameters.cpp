#include "ashlar/nn/parameters.h"

#include <algorithm>
#include <cmath>

namespace ashlar::nn {

bool ParameterInfo::is_cut_by(Grain grain) const {
  return std::any_of(cuts.begin(), cuts.end(), [&](const Cut& cut) {
    return std::any_of(cut.sections.begin(), cut.sections.end(),
                       [&](const Section& section) { return section.grain == grain; });
  });
}

Fraction copies_of(const ParameterInfo& info, const Share& share) {
  if (!info.at_both_ends) return share.uncut;
  return {share.uncut.index * share.embedding.count + share.embedding.index,
          share.uncut.count * share.embedding.count};
}

Portion portion_of(const Section& section, const Share& share) {
  Portion p = share.of(section.grain, section.total);
  const int64_t end = section.first + section.length, shift = section.begin - section.first;
  const auto element = [&](int64_t grain) {
    return std::clamp(grain * section.size, section.first, end) + shift;
  };
  p.begin = element(p.begin);
  p.end = element(p.end);
  return p;
}

Shape local_shape(const ParameterInfo& info, const Share& share) {
  Shape shape = info.shape;
  if (info.share_after_share) return shape;
  for (const Cut& cut : info.cuts) {
    shape[cut.dim] = 0;
    for (const Section& section : cut.sections) shape[cut.dim] += portion_of(section, share).size();
  }
  return shape;
}

bool LayerSpec::follows_its_router() const {
  const auto& own = std::get<MoeSpec>(of_block().feed_forward);
  return std::any_of(model.blocks.begin(), model.blocks.begin() + block, [&](const auto& before) {
    const auto* moe = std::get_if<MoeSpec>(&before.feed_forward);
    return moe && moe->router.index() == own.router.index();
  });
}

InitRule LayerSpec::output() const {
  const double depth = 1.0 / std::sqrt(2.0 * double(model.num_blocks()));
  return {InitRule::Kind::kNormal, init.std * (init.output_depth ? depth : 1.0)};
}

ParameterInfo LayerSpec::matrix(const char* name, const Shape& whole, InitRule rule,
                                Cut cut) const {
  return {.name = prefix + name,
          .shape = whole,
          .init = rule,
          .kind = OptimizerKind::kMuon,
          .decay = true,
          .cuts = {std::move(cut)}};
}

Parameter parameter_of(const ParameterInfo& info, DType dtype) {
  Parameter p;
  p.logical = {info.name, dtype, info.shape, Role::kParameter};
  p.kind = info.kind;
  p.decay = info.decay;
  p.num_matrices = info.num_matrices;
  p.halves = info.halves;
  return p;
}

Piece whole_piece(const ParameterInfo& info, const Tensor& tensor) {
  return {{info.name, tensor.dtype, tensor.shape, info.buffer ? Role::kBuffer : Role::kParameter},
          Box::whole(tensor.shape),
          tensor};
}

}  // namespace ashlar::nn
