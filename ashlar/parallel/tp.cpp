#include "ashlar/parallel/tp.h"

namespace ashlar::parallel {

using kernels::Context;
using nn::AttentionCall;
using nn::BlockSaved;

void HeadSums::sum_queries(const Tensor& q_sum_TKD) {
  sharers_->all_reduce(q_sum_TKD, q_sum_TKD, "tp query sums").wait();
}

void HeadSums::sum_key_gradients(const Tensor& gradients) {
  sharers_->all_reduce(gradients, gradients, "tp key gradients").wait();
}

// <de, y> over a part of the width is a part of it.
void ExpertSums::sum_partial(const Tensor& dchosen_T) {
  tp_.all_reduce(dchosen_T, dchosen_T, "tp router").wait();
}

TpRunner::TpRunner(comm::Group& tp, const nn::Model& model, bool sequence_parallel)
    : tp_(tp), experts_(tp), model_(model), sequence_parallel_(sequence_parallel) {
  const int64_t num_keys = model.spec().blocks[0].mixer.num_key_heads;
  const int sharers = model.weights().share.of(nn::Grain::kKeyHead, num_keys).num_copies;
  if (sharers > 1)
    heads_ = std::make_unique<HeadSums>(tp.split("tp keys", [&](int rank) {
      return comm::SplitKey{rank / sharers, rank};
    }));
}

AttentionCall TpRunner::shared(const AttentionCall& call) {
  AttentionCall copy = call;
  copy.exchanges.experts = &experts_;
  copy.exchanges.heads = heads_.get();
  return copy;
}

Tensor TpRunner::room(const Context& ctx, const Tensor& part) const {
  if (!sequence_parallel_) return part;
  Shape shape = part.shape;
  shape[0] *= tp_.size();
  return ctx.workspace->take(part.dtype, shape);
}

comm::Work TpRunner::gather(const Tensor& part, const Tensor& all, std::string_view label) {
  return sequence_parallel_ ? tp_.all_gather(part, all, label) : comm::Work();
}

void TpRunner::add_up(const Tensor& all, const Tensor& part, std::string_view label) {
  (sequence_parallel_ ? tp_.reduce_scatter(all, part, label) : tp_.all_reduce(all, part, label))
      .wait();
}

void TpRunner::attention_forward(const Context& ctx, const AttentionCall& call,
                                 const BlockSaved& saved) {
  const auto l = size_t(call.layer);
  const Arena::Scope scope(*ctx.workspace);
  const Tensor a = room(ctx, saved.a), o = room(ctx, saved.o);
  gather(saved.a, a, "tp attention input").wait();
  nn::attention_forward(ctx, shared(call), model_.weights().blocks[l].attention, saved.attention, a,
                        o);
  add_up(o, saved.o, "tp attention");
}

void TpRunner::attention_backward(const Context& ctx, const AttentionCall& call,
                                  const BlockSaved& saved, const Tensor& do_TH,
                                  const Tensor& da_TH) {
  const auto l = size_t(call.layer);
  const Arena::Scope scope(*ctx.workspace);
  const Tensor a = room(ctx, saved.a), dout = room(ctx, do_TH), da = room(ctx, da_TH);
  comm::Work inputs = gather(saved.a, a, "tp attention input");
  gather(do_TH, dout, "tp attention output gradient").wait();
  inputs.wait();
  nn::attention_backward(ctx, shared(call), model_.weights().blocks[l].attention, saved.attention,
                         a, dout, da);
  add_up(da, da_TH, "tp attention gradient");
}

void TpRunner::moe_forward(const Context& ctx, const AttentionCall& call, const BlockSaved& saved,
                           const Tensor& r_prev_TR) {
  const auto l = size_t(call.layer);
  const Arena::Scope scope(*ctx.workspace);
  const Tensor m = room(ctx, saved.m), e = room(ctx, saved.e);
  gather(saved.m, m, "tp experts input").wait();
  nn::moe_forward(ctx, call.types, experts_, model_.weights().blocks[l].moe, saved.moe, m,
                  r_prev_TR, e);
  add_up(e, saved.e, "tp experts");
}

void TpRunner::moe_backward(const Context& ctx, const AttentionCall& call, const BlockSaved& saved,
                            const Tensor& r_prev_TR, const Tensor& de_TH, const Tensor& dr_next_TR,
                            const Tensor& dr_prev_TR, const Tensor& dm_TH) {
  const auto l = size_t(call.layer);
  const Arena::Scope scope(*ctx.workspace);
  const Tensor m = room(ctx, saved.m), de = room(ctx, de_TH), dm = room(ctx, dm_TH);
  comm::Work inputs = gather(saved.m, m, "tp experts input");
  gather(de_TH, de, "tp experts output gradient").wait();
  inputs.wait();
  nn::moe_backward(ctx, call.types, experts_, model_.weights().blocks[l].moe, saved.moe, m,
                   r_prev_TR, de, dr_next_TR, dr_prev_TR, dm, call.accumulate);
  add_up(dm, dm_TH, "tp experts gradient");
}

}  // namespace ashlar::parallel
