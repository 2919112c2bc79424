// The peaks of a GPU, and the workspace of its products.
#include <gtest/gtest.h>

#include "ashlar/core/device_spec.h"
#include "ashlar/core/error.h"
#include "ashlar/kernels/gpu/blas/blas.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels {
namespace {

Context context_of(const DeviceSpec& chip) {
  Context ctx;
  ctx.ops = &gpu::kOps;
  ctx.spec = &chip;
  return ctx;
}

TEST(GpuPeak, IsThatOfTheChip) {
  const Context h200 = context_of(*known_device("h200"));
  EXPECT_EQ(measure_peak_flops(h200, DType::kBF16), 989.4e12);
  EXPECT_EQ(measure_peak_flops(h200, DType::kF32), 66.9e12);
  EXPECT_EQ(flop_within(h200, DType::kF32, 0.5), 33'450'000'000'000);
  EXPECT_TRUE(bf16_is_faster(h200));
}

TEST(GpuPeak, ThatOfAnUnknownChipIsAnError) {
  DeviceSpec chip = *known_device("h200");
  chip.name = "NVIDIA Something", chip.fp32_flops = 0;
  try {
    measure_peak_flops(context_of(chip), DType::kF32);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
    EXPECT_NE(std::string(error.what()).find("the peak of NVIDIA Something is unknown"),
              std::string::npos)
        << error.what();
  }
}

TEST(BlasTables, TakeTheWorkspaceOfTheChip) {
  constexpr int64_t kMiB = 1 << 20;
  EXPECT_EQ(gpu::blas::workspace_bytes(context_of(*known_device("h200"))), 32 * kMiB);
  EXPECT_EQ(gpu::blas::workspace_bytes(context_of(*known_device("mi300x"))), 80 * kMiB);
}

}  // namespace
}  // namespace ashlar::kernels
