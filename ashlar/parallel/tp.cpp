#include "ashlar/parallel/tp.h"

namespace ashlar::parallel {

using kernels::Context;
using nn::BackwardTensors;
using nn::Carry;
using nn::Pass;

std::unique_ptr<HeadSums> HeadSums::among(const comm::Group& tp, int sharers) {
  if (sharers == 1) return nullptr;
  auto group = tp.split("tp keys", [&](int rank) { return comm::SplitKey{rank / sharers, rank}; });
  return std::unique_ptr<HeadSums>(new HeadSums(std::move(group)));
}

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

TpBranch::TpBranch(std::unique_ptr<nn::Branch> inner, comm::Group& tp, const std::string& name,
                   bool sequence_parallel)
    : inner_(std::move(inner)),
      tp_(tp),
      sequence_parallel_(sequence_parallel),
      output_(name),
      input_(name + " input"),
      output_gradient_(name + " output gradient"),
      gradient_(name + " gradient") {}

Tensor TpBranch::room(const Context& ctx, const Tensor& part) const {
  if (!sequence_parallel_) return part;
  Shape shape = part.shape;
  shape[0] *= tp_.size();
  return ctx.workspace->take(part.dtype, shape);
}

comm::Work TpBranch::gather(const Tensor& part, const Tensor& all, std::string_view label) {
  return sequence_parallel_ ? tp_.all_gather(part, all, label) : comm::Work();
}

void TpBranch::add_up(const Tensor& all, const Tensor& part, std::string_view label) {
  (sequence_parallel_ ? tp_.reduce_scatter(all, part, label) : tp_.all_reduce(all, part, label))
      .wait();
}

void TpBranch::forward(const Context& ctx, const Pass& pass, const Tensor& a_TH, const Carry& carry,
                       const Tensor& o_TH) {
  const Arena::Scope scope(*ctx.workspace);
  const Tensor a = room(ctx, a_TH), o = room(ctx, o_TH);
  gather(a_TH, a, input_).wait();
  inner_->forward(ctx, pass, a, carry, o);
  add_up(o, o_TH, output_);
}

void TpBranch::backward(const Context& ctx, const Pass& pass, const BackwardTensors& t) {
  const Arena::Scope scope(*ctx.workspace);
  const Tensor a = room(ctx, t.a), d_o = room(ctx, t.d_o), da = room(ctx, t.da);
  comm::Work inputs = gather(t.a, a, input_);
  gather(t.d_o, d_o, output_gradient_).wait();
  inputs.wait();
  inner_->backward(ctx, pass, {.a = a, .d_o = d_o, .da = da, .carry = t.carry});
  add_up(da, t.da, gradient_);
}

}  // namespace ashlar::parallel
