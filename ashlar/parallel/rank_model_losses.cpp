// The losses of a RankModel: in an evaluation, in a step, and over all ranks.
#include <algorithm>
#include <array>

#include "ashlar/kernels/copy.h"
#include "ashlar/nn/loss.h"
#include "ashlar/nn/moe.h"
#include "ashlar/parallel/cp.h"
#include "ashlar/parallel/host_tensor.h"
#include "ashlar/parallel/rank_model.h"
#include "ashlar/parallel/zero.h"

namespace ashlar::parallel {

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
  head_loss(ctx_, *model_, last_saved_->final_TH, targets_, loss_table_->of_tokens(0));
  loss_table_->download_tokens(ctx_, 0);
  return {.sum = ctx_.meta() ? 0.0 : loss_table_->sum_of_tokens(0), .count = double(num_targets_)};
}

void RankModel::keep_router_losses(int64_t micro_batch, const nn::Saved& saved) {
  if (!has_router_losses()) return;
  loads_->for_each(saved, [&](size_t router, const nn::ExpertLoad& load) {
    if (load.losses_2)
      copy(ctx_, load.losses_2, loss_table_->of_router(micro_batch, int64_t(router)));
  });
}

// Adds up in the order of the backwards: the order decides the last bits.
void RankModel::sum_losses() {
  if (ctx_.meta()) return;
  // Ranks that share heads have the same losses of routers; where over_ranks adds up theirs too,
  // one of them counts.
  const bool counts_routers = has_router_losses() && !(shards_stream() && groups_.tp().rank() > 0);
  for (size_t i = 0; i < step_program_.actions.size(); ++i) {
    const Action& action = step_program_.actions[i];
    if (action.kind != Action::Kind::kBackward && action.kind != Action::Kind::kInputs) continue;
    const nn::Saved& saved = saved_of(step_program_, i);
    LossSum sum;
    if (saved.final_TH) sum.sum = loss_table_->sum_of_tokens(action.micro_batch);
    if (counts_routers)
      loads_->for_each(saved, [&](size_t router, const nn::ExpertLoad& load) {
        if (load.losses_2) loss_table_->add_router(action.micro_batch, int64_t(router), sum);
      });
    losses_ += sum;
  }
}

LossSum RankModel::over_ranks(const LossSum& here, std::string_view label) const {
  const size_t num = parallel_.ep > 1 ? kLossMembers.size() : has_router_losses() ? 4 : 2;
  std::array<double, kLossMembers.size()> sums{};
  for (size_t i = 0; i < num; ++i) sums[i] = here.*kLossMembers[i];
  const Tensor values = host_tensor(ctx_, std::span(sums).first(num));
  // Ranks that share heads have the same losses, unless they share the stream too.
  comm::Group& ranks = shards_stream() ? groups_.all() : groups_.losses();
  ranks.all_reduce(values, values, label).wait();
  if (ctx_.meta()) return {.count = here.count * ranks.size()};
  LossSum all;
  for (size_t i = 0; i < num; ++i) all.*kLossMembers[i] = sums[i];
  return all;
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
  const Tensor value = host_tensor(ctx_, std::span<double>(sum));
  groups_.all().all_reduce(value, value, label).wait();
  return sum[0];
}

}  // namespace ashlar::parallel
