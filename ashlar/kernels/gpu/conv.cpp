#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"
#include "ashlar/kernels/gpu/sequence_lists.h"

namespace ashlar::kernels::gpu {
namespace {

// The arguments that both passes have.  more: tensors of the same channels, or of two taps each.
template <typename Call>
device::ConvColumns conv_of(const Call& x, const Tensor& link_T,
                            std::initializer_list<Tensor> more) {
  const int64_t C = x.z_TC.cols;
  return {.links = ints(link_T),
          .z = elements(x.z_TC),
          .halo = floats(x.halo_z),
          .w0 = floats(x.w0_C2),
          .b0 = floats(x.b0_C),
          .rows = x.z_TC.rows,
          .channels = C,
          .z_stride = x.z_TC.stride,
          .by_vectors = by_vectors(x.z_TC) && by_vectors(C, {x.halo_z, x.w0_C2, x.b0_C}) &&
                        by_vectors(C, more)};
}

}  // namespace

void conv_columns_forward(const Context& ctx, const ConvColumnsForward& x) {
  const Arena::Scope scope(*ctx.workspace);
  const Tensor link_T = upload_links(ctx, x.sequence);
  if (x.columns.empty()) return;
  launch(ctx, device::ConvColumnsForward{.conv = conv_of(x, link_T, {x.columns}),
                                         .columns = elements(x.columns)});
}

void conv_columns_backward(const Context& ctx, const ConvColumnsBackward& x) {
  const int64_t C = x.z_TC.cols, P = num_partials(x.z_TC.rows);
  const Arena::Scope scope(*ctx.workspace);
  const Tensor link_T = upload_links(ctx, x.sequence);
  const Tensor dw0_PC2 = ctx.workspace->take(DType::kF32, {P, C, 2});
  const Tensor db0_PC = ctx.workspace->take(DType::kF32, {P, C});
  if (x.dcolumns.empty()) return;
  device::ConvColumns conv = conv_of(x, link_T, {x.dcolumns, x.dhalo_z, dw0_PC2, db0_PC});
  conv.by_vectors &= by_vectors(x.dz_TC);
  launch(ctx, device::ConvColumnsBackward{.conv = conv,
                                          .dcolumns = elements(x.dcolumns),
                                          .dz = elements(x.dz_TC),
                                          .dz_stride = x.dz_TC.stride,
                                          .dhalo = floats(x.dhalo_z),
                                          .dw0_partials = floats(dw0_PC2),
                                          .db0_partials = floats(db0_PC)});
  add_partials(ctx, dw0_PC2, x.dw0_C2);
  add_partials(ctx, db0_PC, x.db0_C);
}

}  // namespace ashlar::kernels::gpu
