#include "ashlar/nn/branch.h"

namespace ashlar::nn {

using kernels::Context;

void run_forward(Branch& branch, const Context& ctx, const Pass& pass, const Tensor& a_TH,
                 const Carry& carry, const Tensor& o_TH) {
  const Arena::Scope scope(*ctx.workspace);
  const int parts = branch.needs().forward_parts;
  for (int part = 0; part < parts; ++part) branch.forward(ctx, pass, part, a_TH, carry, o_TH);
}

void run_backward(Branch& branch, const Context& ctx, const Pass& pass, const BackwardTensors& t) {
  const Arena::Scope scope(*ctx.workspace);
  const int parts = branch.needs().backward_parts;
  for (int part = 0; part < parts; ++part) branch.backward(ctx, pass, part, t);
}

}  // namespace ashlar::nn
