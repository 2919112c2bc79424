// Losses of a RankModel: of an evaluation, of the targets and routers here, and of all ranks.
#include <algorithm>
#include <array>

#include "ashlar/nn/loss.h"
#include "ashlar/nn/moe.h"
#include "ashlar/parallel/cp.h"
#include "ashlar/parallel/rank_model.h"
#include "ashlar/parallel/zero.h"

namespace ashlar::parallel {

LossSum& LossSum::operator+=(const LossSum& other) {
  sum += other.sum;
  count += other.count;
  aux_loss += other.aux_loss;
  z_loss += other.z_loss;
  rounds += other.rounds;
  mixtures += other.mixtures;
  return *this;
}

LossSum RankModel::evaluate(const MicroBatch& batch) {
  ASHLAR_ASSERT(!in_step_);
  loaded_ = -1;
  load(0, batch);
  zero_->begin(evaluation_program_.uses);
  for (size_t i = 0; i < evaluation_program_.actions.size(); ++i) {
    const Action& action = evaluation_program_.actions[i];
    const nn::Saved& saved = saved_of(evaluation_program_, i);
    if (pp_) pp_->wait_before(action, saved);
    if (action.kind == Action::Kind::kForward) {
      run_forward(saved);
      loads_->find(saved);
    } else {
      pp_->post(action, saved);
    }
  }
  if (pp_) pp_->finish();
  if (cp_) cp_->finish_sends();
  loaded_ = -1;
  if (!last_saved_->final_TH) return {};
  ctx_.enter("loss");
  head_loss(ctx_, *model_, last_saved_->final_TH, targets_, loss_);
  return sum_losses();
}

LossSum RankModel::sum_losses() const {
  if (ctx_.meta()) return {.count = loss_.numel()};
  LossSum losses;
  const int32_t* targets = targets_.as<int32_t>();
  for (int64_t t = 0; t < loss_.numel(); ++t) {
    if (targets[t] < 0) continue;
    losses.sum += loss_.dtype == DType::kF64 ? loss_.as<double>()[t] : double(loss_.as<float>()[t]);
    ++losses.count;
  }
  return losses;
}

// Ranks that share heads have the same ones; where over_ranks adds up theirs too, one of them
// counts.
void RankModel::sum_router_losses(const nn::Saved& saved, LossSum& losses) const {
  if (!has_router_losses() || ctx_.meta() || (shards_stream() && groups_.tp().rank() > 0)) return;
  const auto value = [](const Tensor& t, size_t i) {
    return t.dtype == DType::kF64 ? t.as<double>()[i] : double(t.as<float>()[i]);
  };
  loads_->for_each(saved, [&](size_t, const nn::ExpertLoad& load) {
    if (!load.losses_2) return;
    losses.aux_loss += value(load.losses_2, 0);
    losses.z_loss += value(load.losses_2, 1);
  });
}

Tensor RankModel::over(std::span<double> values) const {
  return {ctx_.meta() ? nullptr : reinterpret_cast<std::byte*>(values.data()),
          DType::kF64,
          ctx_.device,
          {int64_t(values.size())}};
}

LossSum RankModel::over_ranks(const LossSum& here, std::string_view label) const {
  // Counts are exact below 2^53.
  std::array<double, 6> sums = {here.sum,    double(here.count), here.aux_loss,
                                here.z_loss, here.rounds,        here.mixtures};
  const auto used = std::span(sums).first(parallel_.ep > 1 ? 6 : has_router_losses() ? 4 : 2);
  // Ranks that share heads have the same losses, unless they share the stream too.
  comm::Group& ranks = shards_stream() ? groups_.all() : groups_.losses();
  ranks.all_reduce(over(used), over(used), label).wait();
  if (ctx_.meta()) return {.count = here.count * ranks.size()};
  return {sums[0], int64_t(sums[1]), sums[2], sums[3], sums[4], sums[5]};
}

bool RankModel::has_router_losses() const {
  const auto& blocks = model_->spec().blocks;
  const bool asked = recipe_.balance.aux_loss_coef > 0 || recipe_.balance.z_loss_coef > 0;
  return asked && std::any_of(blocks.begin(), blocks.end(), [](const BlockSpec& block) {
           const auto* moe = std::get_if<MoeSpec>(&block.feed_forward);
           return moe && std::holds_alternative<LinearRouterSpec>(moe->router);
         });
}

double RankModel::sum_over_ranks(double here, std::string_view label) const {
  std::array<double, 1> sum = {here};
  groups_.all().all_reduce(over(sum), over(sum), label).wait();
  return sum[0];
}

}  // namespace ashlar::parallel
