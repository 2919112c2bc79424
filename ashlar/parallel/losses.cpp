#include "ashlar/parallel/losses.h"

#include <numeric>

namespace ashlar::parallel {

LossSum& LossSum::operator+=(const LossSum& other) {
  for (const auto member : kLossMembers) this->*member += other.*member;
  return *this;
}

LossTable::LossTable(Arena& arena, DType dtype, int64_t micro_batches, int64_t num_tokens,
                     int64_t num_routers)
    : num_tokens_(num_tokens),
      num_routers_(num_routers),
      rows_(arena.take(dtype, {micro_batches * row_numel()})) {
  if (rows_.data) host_.resize(size_t(rows_.numel()));
}

Tensor LossTable::of_tokens(int64_t micro_batch) const {
  const int64_t begin = micro_batch * row_numel();
  return rows_.slice(begin, begin + num_tokens_);
}

Tensor LossTable::of_router(int64_t micro_batch, int64_t router) const {
  const int64_t begin = micro_batch * row_numel() + num_tokens_ + 2 * router;
  return rows_.slice(begin, begin + 2);
}

void LossTable::download_tokens(const kernels::Context& ctx, int64_t micro_batch) {
  const Tensor tokens = of_tokens(micro_batch);
  std::span<double> to = host_;
  if (!ctx.meta()) to = to.subspan(size_t(micro_batch * row_numel()), size_t(num_tokens_));
  kernels::download(ctx, tokens, to);
}

double LossTable::sum_of_tokens(int64_t micro_batch) const {
  const double* tokens = host_.data() + micro_batch * row_numel();
  return std::accumulate(tokens, tokens + num_tokens_, 0.0);
}

void LossTable::add_router(int64_t micro_batch, int64_t router, LossSum& sum) const {
  const double* losses = host_.data() + micro_batch * row_numel() + num_tokens_ + 2 * router;
  sum.aux_loss += losses[0];
  sum.z_loss += losses[1];
}

}  // namespace ashlar::parallel
