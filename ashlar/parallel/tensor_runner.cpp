#include "ashlar/parallel/tensor_runner.h"

#include "ashlar/kernels/copy.h"
#include "ashlar/parallel/tensor.h"

namespace ashlar::parallel {

using kernels::Context;
using nn::AttentionCall;
using nn::BlockSaved;

TensorRunner::TensorRunner(comm::Group& tp, const nn::Model& model, bool sequence_parallel)
    : tp_(tp), model_(model), sequence_parallel_(sequence_parallel) {
  const int sharers = num_key_sharers(model.spec());
  if (sharers > 1)
    sharers_ = tp.split("tp keys", [&](int rank) { return comm::Place{rank / sharers, rank}; });
}

void TensorRunner::sum(const Tensor& data, std::string_view label) {
  sharers_->all_reduce(data, data, label).wait();
}

AttentionCall TensorRunner::shared(const AttentionCall& call) {
  AttentionCall copy = call;
  copy.sharing = sharers_ ? this : nullptr;
  return copy;
}

Tensor TensorRunner::room(const Context& ctx, const Tensor& part) const {
  if (!sequence_parallel_) return part;
  Shape shape = part.shape;
  shape[0] *= tp_.size();
  return ctx.workspace->take(part.dtype, shape);
}

comm::Work TensorRunner::gather(const Tensor& part, const Tensor& all, std::string_view label) {
  return sequence_parallel_ ? tp_.all_gather(part, all, label) : comm::Work();
}

void TensorRunner::add_up(const Tensor& all, const Tensor& part, std::string_view label) {
  (sequence_parallel_ ? tp_.reduce_scatter(all, part, label) : tp_.all_reduce(all, part, label))
      .wait();
}

void TensorRunner::attention_forward(const Context& ctx, const AttentionCall& call,
                                     const BlockSaved& saved) {
  const auto l = size_t(call.layer);
  const Arena::Scope scope(*ctx.workspace);
  const Tensor a = room(ctx, saved.a), o = room(ctx, saved.o);
  gather(saved.a, a, "tp attention input").wait();
  nn::attention_forward(ctx, shared(call), model_.weights().blocks[l].attention,
                        model_.operands().blocks[l].attention, saved.attention, a, o);
  add_up(o, saved.o, "tp attention");
}

void TensorRunner::attention_backward(const Context& ctx, const AttentionCall& call,
                                      const BlockSaved& saved, const Tensor& do_TH,
                                      const Tensor& da_TH) {
  const auto l = size_t(call.layer);
  const Arena::Scope scope(*ctx.workspace);
  const Tensor a = room(ctx, saved.a), dout = room(ctx, do_TH), da = room(ctx, da_TH);
  comm::Work inputs = gather(saved.a, a, "tp attention input");
  gather(do_TH, dout, "tp attention output gradient").wait();
  inputs.wait();
  nn::attention_backward(ctx, shared(call), model_.weights().blocks[l].attention,
                         model_.operands().blocks[l].attention, saved.attention, a, dout,
                         model_.gradients().blocks[l].attention, da);
  add_up(da, da_TH, "tp attention gradient");
}

void TensorRunner::moe_forward(const Context& ctx, const AttentionCall& call,
                               const BlockSaved& saved, const Tensor& r_prev_TR) {
  const auto l = size_t(call.layer);
  const Arena::Scope scope(*ctx.workspace);
  const Tensor m = room(ctx, saved.m), e = room(ctx, saved.e);
  gather(saved.m, m, "tp experts input").wait();
  nn::moe_forward(ctx, call.spec, call.types, model_.weights().blocks[l].moe,
                  model_.operands().blocks[l].moe, saved.moe, m, r_prev_TR, e);
  add_up(e, saved.e, "tp experts");
}

void TensorRunner::moe_backward(const Context& ctx, const AttentionCall& call,
                                const BlockSaved& saved, const Tensor& r_prev_TR,
                                const Tensor& de_TH, const Tensor& dr_next_TR,
                                const Tensor& dr_prev_TR, const Tensor& dm_TH) {
  const auto l = size_t(call.layer);
  const nn::MoeWeights &w = model_.weights().blocks[l].moe, &dw = model_.gradients().blocks[l].moe;
  const nn::MoeOperands& operands = model_.operands().blocks[l].moe;
  Arena& workspace = *ctx.workspace;
  const Arena::Scope scope(workspace);
  const Tensor m = room(ctx, saved.m), de = room(ctx, de_TH), dm = room(ctx, dm_TH);
  comm::Work inputs = gather(saved.m, m, "tp experts input");
  gather(de_TH, de, "tp experts output gradient").wait();
  inputs.wait();
  const nn::RouterSaved& router = saved.moe.router;
  const Tensor dchosen = workspace.take(call.types.stream, router.chosen.shape);
  const Tensor dx_rows = workspace.take(call.types.activation, saved.moe.x_rows.shape);
  nn::experts_backward(ctx, call.spec, call.types, operands, saved.moe, m, de, dw, dchosen, dx_rows,
                       call.accumulate);
  // <de, y> over a part of the width is a part of it.
  tp_.all_reduce(dchosen, dchosen, "tp router").wait();
  nn::router_backward(ctx, call.spec, call.types, w.router, operands.router, router, m, r_prev_TR,
                      dchosen, dr_next_TR, dw.router, dr_prev_TR, dm, call.accumulate);
  // The router's share of dm, the same on every rank, counts once.
  if (tp_.rank() > 0) fill(ctx, dm, 0.0);
  nn::experts_input_backward(ctx, call.spec, saved.moe, de, dx_rows, dm);
  add_up(dm, dm_TH, "tp experts gradient");
}

}  // namespace ashlar::parallel
