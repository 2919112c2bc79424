// A table of a device other than the CPU's.
#include "ashlar/kernels/ops.h"

#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

// Takes workspace of its own, as another device's norm would.
void norm_with_workspace(const Context& ctx, double, const Tensor&, const Tensor&,
                         const Tensor& y_TH, const Tensor&, double) {
  const Arena::Scope scope(*ctx.workspace);
  const Tensor partials = ctx.workspace->take(DType::kF32, {1024});
  if (ctx.meta()) return;
  EXPECT_NE(partials.data, nullptr);
  fill(ctx, y_TH, 7.0);
}

TEST(Ops, APlanHasTheWorkspaceOfItsDevice) {
  Ops ops = cpu::kOps;
  ops.rms_norm_forward = norm_with_workspace;
  for (const bool own : {false, true}) {
    Bench bench({}, true, 1, Device::kMeta);
    Context ctx = bench.context();
    Arena counted(Device::kMeta);
    ctx.workspace = &counted;
    if (own) ctx.ops = &ops;
    rms_norm_forward(ctx, 1e-5, bench.stream({3, 8}), bench.stream({8}), bench.stream({3, 8}),
                     bench.stream({3}));
    EXPECT_EQ(counted.peak_bytes(), own ? 4096 : 0);
    ASSERT_EQ(bench.calls().size(), 1u);  // the contract records it, whatever the device
    EXPECT_EQ(bench.calls()[0].op, "rms_norm_forward");
  }
}

TEST(Ops, ARunCallsTheFunctionsOfItsDevice) {
  Ops ops = cpu::kOps;
  ops.rms_norm_forward = norm_with_workspace;
  Bench bench;
  Context ctx = bench.context();
  ctx.ops = &ops;
  const Tensor y = bench.stream({3, 8});
  rms_norm_forward(ctx, 1e-5, bench.stream({3, 8}), bench.stream({8}), y, bench.stream({3}));
  for (const double value : values_of(y)) EXPECT_EQ(value, 7.0);
}

}  // namespace
}  // namespace ashlar::kernels
