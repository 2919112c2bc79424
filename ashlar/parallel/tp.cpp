#include "ashlar/parallel/tp.h"

#include "ashlar/kernels/copy.h"

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

void TpSums::sum(const Tensor& partial) {
  tp_.all_reduce(partial, partial, "tp heads").wait();
}

// <de, y> over a part of the width is a part of it.
void ExpertSums::sum_partial(const Tensor& dweight_T) {
  tp_.all_reduce(dweight_T, dweight_T, "tp router").wait();
}

void ExpertSums::sum_adapted(const Context& ctx, const Tensor& rows) {
  if (ctx.meta() && !ctx.trace) return;
  tp_.all_reduce(rows, rows, "tp adapters").wait();
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

Shape TpBranch::whole(const Tensor& part) const {
  Shape shape = part.shape;
  shape[0] *= tp_.size();
  return shape;
}

Tensor TpBranch::room(const Context& ctx, const Tensor& part) const {
  return sequence_parallel_ ? ctx.workspace->take(part.dtype, whole(part)) : part;
}

Tensor TpBranch::operand_room(const Context& ctx, const Pass& pass, const Tensor& part) const {
  return sequence_parallel_ ? gradient_room(ctx, pass, part.dtype, whole(part)) : part;
}

comm::Work TpBranch::gather(const Tensor& part, const Tensor& all, std::string_view label) {
  return sequence_parallel_ ? tp_.all_gather(part, all, label) : comm::Work();
}

void TpBranch::add_up(const Tensor& all, const Tensor& part, std::string_view label) {
  (sequence_parallel_ ? tp_.reduce_scatter(all, part, label) : tp_.all_reduce(all, part, label))
      .wait();
}

void TpBranch::forward(const Context& ctx, const Pass& pass, int part, const Tensor& a_TH,
                       const Carry& carry, const Tensor& o_TH) {
  const DType wide = pass.types.wide;
  if (part == 0) {
    o_sum_ = o_TH.dtype == wide ? o_TH : ctx.workspace->take(wide, o_TH.shape);
    a_ = room(ctx, a_TH), o_ = room(ctx, o_sum_);
    gather(a_TH, a_, input_).wait();
  }
  inner_->forward(ctx, pass, part, a_, carry, o_);
  if (part + 1 < needs().forward_parts) return;
  add_up(o_, o_sum_, output_);
  if (o_TH.dtype != wide) copy(ctx, o_sum_, o_TH);
}

void TpBranch::backward(const Context& ctx, const Pass& pass, int part, const BackwardTensors& t) {
  if (part == 0) {
    a_ = operand_room(ctx, pass, t.a), d_o_ = operand_room(ctx, pass, t.d_o), da_ = room(ctx, t.da);
    comm::Work inputs = gather(t.a, a_, input_);
    gather(t.d_o, d_o_, output_gradient_).wait();
    inputs.wait();
  }
  inner_->backward(ctx, pass, part, {.a = a_, .d_o = d_o_, .da = da_, .carry = t.carry});
  if (part + 1 == needs().backward_parts) add_up(da_, t.da, gradient_);
}

}  // namespace ashlar::parallel
