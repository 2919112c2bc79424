// The peak is a bound: no product runs faster than the registers sustain, on any instruction set.
#include "ashlar/kernels/peak.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "ashlar/kernels/isa.h"
#include "ashlar/kernels/linear.h"
#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

// Flop per second of a product that fits the second-level cache, on one thread.
class Product {
 public:
  Product(Bench& bench, DType compute) : ctx_(bench.context()), compute_(compute) {
    ctx_.workspace = &workspace_;
    w_.w = bench.random(DType::kF32, "w", {kSize, kSize});
    const OperandLayout layout = operand_layout(ctx_, 1, kSize, kSize, compute, false);
    w_.forward = bench.zeros(layout.dtype, {layout.forward_numel});
    pack(ctx_, w_);
    x_ = bench.random(compute, "x", {kSize, kSize});
    y_ = bench.zeros(DType::kF32, {kSize, kSize});
  }
  double flops() const {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    for (int i = 0; i < kRepeats; ++i)
      linear_forward(ctx_, compute_, Matrix::of(x_), w_, Matrix::of(y_));
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return double(kRepeats) * 2 * double(kSize * kSize * kSize) / seconds;
  }

 private:
  static constexpr int64_t kSize = 256;
  static constexpr int kRepeats = 4;
  Allocator allocator_{Device::kCpu};
  Arena workspace_{allocator_, 4 << 20, Tag::kWorkspace};
  Context ctx_;
  DType compute_;
  Operand w_;
  Tensor x_, y_;
};

// Another load on the machine can slow the measurement of the peak but not speed up a product: both
// are measured until the peak is the larger, for seconds if need be; a bound that is too low never
// gets there.
TEST(Peak, NoProductIsFaster) {
  for (const Isa each : supported_isas()) {
    select_isa(each);
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      Bench bench({DType::kF32, compute}, false, 1);
      const Product product(bench, compute);
      double peak = 0, fastest = 0;
      using Clock = std::chrono::steady_clock;
      const auto end = Clock::now() + std::chrono::seconds(10);
      for (int round = 0; round < 3 || (fastest > peak && Clock::now() < end); ++round) {
        peak = std::max(peak, measure_peak_flops(bench.context(), compute));
        fastest = std::max(fastest, product.flops());
      }
      EXPECT_LE(fastest, peak) << name_of(each) << " " << name_of(compute);
      printf("%s: product %.0f of %.0f GFLOP/s\n",
             fmt::format("{} {}", name_of(each), name_of(compute)).c_str(), fastest * 1e-9,
             peak * 1e-9);
    }
  }
  select_isa(supported_isas().back());
}

}  // namespace
}  // namespace ashlar::kernels
