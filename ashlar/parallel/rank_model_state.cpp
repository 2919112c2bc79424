// The parts of the model's tensors that a RankModel keeps, as optimizers and checkpoints see them.
#include "ashlar/nn/init.h"
#include "ashlar/parallel/rank_model.h"
#include "ashlar/parallel/zero.h"
#include "ashlar/tensor/pieces.h"

namespace ashlar::parallel {

void RankModel::initialize() {
  const auto fill = [&](const nn::ParameterInfo& info, const Piece& piece) {
    nn::initialize(ctx_, info, piece, recipe_.train.seed);
  };
  for (size_t i = 0; i < parameters().size(); ++i) {
    const Parameter& p = parameters()[i];
    for (const Piece& piece : pieces_of({&p, p.logical, p.value})) fill(zero_->infos()[i], piece);
  }
  model_->weights().for_each(
      [&](const nn::ParameterInfo& info, const Tensor& value, const Tensor&) {
        if (info.frozen)
          for (const Piece& piece : frozen_pieces_of(info, value)) fill(info, piece);
        else if (info.buffer)
          fill(info, nn::whole_piece(info, value));
      });
  weights_changed();
}

void RankModel::initialize_adapters() {
  for (size_t i = 0; i < parameters().size(); ++i) {
    const Parameter& p = parameters()[i];
    if (zero_->infos()[i].adapter)
      for (const Piece& piece : pieces_of({&p, p.logical, p.value}))
        nn::initialize(ctx_, zero_->infos()[i], piece, recipe_.train.seed);
  }
}

void RankModel::weights_changed(bool by_updates) {
  if (!by_updates) model_->pack_frozen(ctx_);
  zero_->weights_changed(by_updates);
}

std::vector<Piece> RankModel::frozen_pieces_of(const nn::ParameterInfo& info,
                                               const Tensor& value) const {
  if (info.buffer) return {nn::whole_piece(info, value)};
  const Tensor all = value.view({value.numel()});
  std::vector<Piece> list;
  int64_t begin = 0;
  for (Placement& place : placements(info, model_->weights().share)) {
    Parameter held = parameter_of(info, value.dtype);
    held.end = place.numel();
    held.local_shape = place.local_shape;
    held.boxes = std::move(place.boxes);
    for (Piece& piece : pieces_of({&held, held.logical, all.slice(begin, begin + held.end)}))
      list.push_back(std::move(piece));
    begin += held.end;
  }
  return list;
}

std::vector<Piece> RankModel::frozen_pieces() const {
  std::vector<Piece> list;
  model_->weights().for_each(
      [&](const nn::ParameterInfo& info, const Tensor& value, const Tensor&) {
        if (!info.frozen) return;
        for (Piece& piece : frozen_pieces_of(info, value)) list.push_back(std::move(piece));
      });
  return list;
}

const std::vector<kernels::PackedRows>& RankModel::packed_rows() const {
  return zero_->packed_rows();
}

const std::vector<Parameter>& RankModel::parameters() const {
  return zero_->parameters();
}

std::vector<Piece> RankModel::buffers() const {
  std::vector<Piece> list;
  model_->weights().for_each(
      [&](const nn::ParameterInfo& info, const Tensor& value, const Tensor&) {
        if (info.buffer && !info.frozen) list.push_back(nn::whole_piece(info, value));
      });
  return list;
}

const Shards& RankModel::shards_of(int64_t unit) const {
  return zero_->shards_of(unit);
}

kernels::Cost RankModel::gather_cost(int world_rank) const {
  return zero_->gather_cost(world_rank);
}

std::vector<Piece> RankModel::pieces(bool to_write) const {
  std::vector<KeptTensor> kept;
  for (const Parameter& p : parameters()) kept.push_back({&p, p.logical, p.value});
  std::vector<Piece> list = to_write ? pieces_to_write(kept) : pieces_of(kept);
  if (to_write && !writes_buffers()) return list;
  for (Piece& piece : buffers()) list.push_back(std::move(piece));
  return list;
}

std::vector<Parameter> RankModel::all_parameters() const {
  std::vector<Parameter> list;
  const nn::ModelWeights whole(model_->spec(), {}, {}, recipe_.tune);  // of one rank
  for (const nn::Stored& stored : whole.tensors)
    for (const nn::ParameterInfo& info : stored.logical)
      if (info.is_trained()) list.push_back(parameter_of(info, model_->types().wide));
  return list;
}

std::vector<LogicalTensor> RankModel::all_buffers() const {
  std::vector<LogicalTensor> list = nn::logical_tensors(model_->spec(), model_->types().wide);
  std::erase_if(list, [&](const LogicalTensor& t) {
    return t.role != Role::kBuffer || recipe_.tune.freezes(t.name);
  });
  return list;
}

}  // namespace ashlar::parallel
