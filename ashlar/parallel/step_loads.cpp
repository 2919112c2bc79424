#include "ashlar/parallel/step_loads.h"

namespace ashlar::parallel {

using kernels::Context;

StepLoads::StepLoads(Arena& arena, const nn::ModelWeights& weights) : weights_(weights) {
  const auto& blocks = weights.spec.blocks;
  const auto classes = [&](size_t l) {
    const auto* moe = std::get_if<MoeSpec>(&blocks[l].feed_forward);
    return moe ? moe->num_experts + 1 : 0;
  };
  int64_t numel = 0;
  for (size_t l = 0; l < blocks.size(); ++l) numel += classes(l);
  packed_ = arena.take(DType::kI64, {numel});
  host_.resize(size_t(numel));
  int64_t begin = 0;
  for (size_t l = 0; l < blocks.size(); ++l) {
    const int64_t count = classes(l);
    if (count == 0) continue;
    everywhere_.push_back(std::span(host_).subspan(size_t(begin), size_t(count)));
    if (weights.share.stage.holds(int64_t(l)))
      of_step_.push_back(packed_.slice(begin, begin + count));
    begin += count;
  }
  found_.resize(of_step_.size());
}

void StepLoads::begin_step(const Context& ctx) {
  if (!everywhere_.empty()) fill(ctx, packed_, 0.0);
}

void StepLoads::for_each(const nn::Saved& saved,
                         function_ref<void(size_t, const nn::ExpertLoad&)> use) const {
  size_t number = 0;
  weights_.for_each_block([&](const nn::Block& block, int64_t l) {
    if (!block.feed_forward->load(0)) return;
    if (saved.chunk.begin <= l && l < saved.chunk.end)
      use(number, *block.feed_forward->load(saved.slot));
    ++number;
  });
}

void StepLoads::find(const nn::Saved& saved) {
  for_each(saved,
           [&](size_t number, const nn::ExpertLoad& load) { found_[number] = load.count_X; });
}

void StepLoads::count(const Context& ctx, const nn::Saved& saved) {
  for_each(saved, [&](size_t number, const nn::ExpertLoad& load) {
    add(ctx, load.count_X, of_step_[number]);
  });
}

void StepLoads::sum_found_over(const nn::Saved& saved, comm::Group& ranks) {
  for_each(saved, [&](size_t, const nn::ExpertLoad& load) {
    ranks.all_reduce(load.count_X, load.count_X, "loads").wait();
  });
}

void StepLoads::sum_over(comm::Group& ranks) {
  if (!everywhere_.empty()) ranks.all_reduce(packed_, packed_, "loads").wait();
}

}  // namespace ashlar::parallel
