// Muon's passes, the weights in bf16 and what goes between the memories of host and device.
#include <limits>

#include "tests/kernels/gpu/op_case.h"

namespace ashlar::kernels {
namespace {

std::vector<Output> run_muon(Place& p, int64_t n, int64_t first, bool nesterov) {
  const auto part = [&](const char* name) {
    return p.random(p.wide(), name, {first + n}).slice(first, first + n);
  };
  const Tensor g = part("g"), m = part("m"), w = part("w"), x = nesterov ? g : part("x");
  kernels::muon_momentum(
      p.context(), {.mu = 0.95, .nesterov = nesterov, .grad_scale = 0.5, .g = g, .m = m, .x = x});
  kernels::muon_apply(p.context(), {.lr = 0.02, .decay = 0.1, .lambda = 0.2, .x = x, .w = w});
  return {{"m", m}, {"x", x}, {"w", w}};
}

TEST(GpuUpdate, MuonMatchesTheReferenceInEveryMode) {
  for (const int64_t n : {1, 17, 2500})
    for (const int64_t first : {0, 3})  // 3: no vector fits
      for (const bool nesterov : {false, true})
        expect_op(fmt::format("muon/{}/{}{}", n, first, nesterov ? "/nesterov" : ""),
                  {DType::kF32, DType::kF32},
                  [&](Place& p) { return run_muon(p, n, first, nesterov); });
}

TEST(GpuUpdate, MuonRefreshesTheOperand) {
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  const Tensor w = p.random(DType::kF32, "w", {6, 8}), x = p.random(DType::kF32, "x", {6, 8});
  const Tensor packed = p.random(DType::kBF16, "packed", {6, 8});
  const std::vector<double> before = values_of(packed);
  const Operand operand{.w = w, .forward = packed, .backward = {}};
  EXPECT_TRUE(gpu::packs_in_update(p.context(), {.operand = &operand, .row = 2}, 24));
  kernels::muon_apply(p.context(), {.lr = 1e-2,
                                    .decay = 0.1,
                                    .lambda = 0.3,
                                    .x = x.slice(2, 5),
                                    .w = w.slice(2, 5),
                                    .packed = {.operand = &operand, .row = 2}});
  const std::vector<double> after = values_of(packed), weights = values_of(w);
  for (size_t i = 0; i < after.size(); ++i)
    EXPECT_EQ(after[i],
              i / 8 >= 2 && i / 8 < 5 ? double(float(bf16(float(weights[i])))) : before[i]);
}

TEST(GpuUpdate, FindsTheFirstElementThatIsNotFinite) {
  for (const int64_t n : {1, 4096, 10001}) {
    Bench bench({DType::kF32, DType::kF32});
    Place p(gpu::kOps, bench);
    const Tensor x = p.random(DType::kF32, "x", {n});
    EXPECT_EQ(gpu::first_non_finite(p.context(), x), -1);
    p.edit<float>(x, [&](float* v) { v[n - 1] = std::numeric_limits<float>::quiet_NaN(); });
    EXPECT_EQ(gpu::first_non_finite(p.context(), x), n - 1);
    p.edit<float>(x, [&](float* v) { v[n / 2] = -std::numeric_limits<float>::infinity(); });
    EXPECT_EQ(gpu::first_non_finite(p.context(), x), n / 2);
  }
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  EXPECT_EQ(gpu::first_non_finite(p.context(), p.zeros(DType::kF32, {0})), -1);
}

TEST(GpuOperand, IsACopyInBf16ThatBothPassesRead) {
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  const OperandLayout fp32 = gpu::operand_layout(p.context(), 2, 3, 5, DType::kF32, true);
  EXPECT_EQ(fp32.forward_numel + fp32.backward_numel, 0);
  const OperandLayout layout = gpu::operand_layout(p.context(), 2, 3, 5, DType::kBF16, true);
  EXPECT_EQ(layout.dtype, DType::kBF16);
  EXPECT_EQ(layout.backward_numel, 0);
  const Tensor w = p.random(DType::kF32, "w", {2, 3, 5});
  p.edit<float>(w, [&](float* v) {
    for (int64_t i = 0; i < w.numel(); ++i) v[i] /= 3;
  });
  const Tensor packed = p.unset(layout.dtype, {layout.forward_numel});
  gpu::pack(p.context(), {.w = w, .forward = packed, .backward = {}});
  const std::vector<double> weights = values_of(w), values = values_of(packed);
  ASSERT_EQ(values.size(), weights.size());
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(values[i], double(float(bf16(float(weights[i])))));
}

// Uploads `list` to a tensor and downloads it again; of no elements too.
template <typename Sent, typename Got = Sent>
void expect_round_trip(DType dtype, const std::vector<Sent>& list) {
  Bench bench;
  Place p(gpu::kOps, bench);
  for (const auto size : {list.size(), size_t(0)}) {
    const std::span<const Sent> sent(list.data(), size);
    const Tensor t = p.unset(dtype, {int64_t(size)});
    kernels::upload(p.context(), sent, t);
    std::vector<Got> got(size);
    kernels::download(p.context(), t, std::span(got));
    for (size_t i = 0; i < size; ++i)
      EXPECT_EQ(got[i], dtype == DType::kF32 ? Got(float(sent[i])) : Got(sent[i])) << i;
  }
}

TEST(GpuCopy, UploadsAndDownloads) {
  expect_round_trip<int32_t>(DType::kI32, {3, -1, 2147483647});
  expect_round_trip<double>(DType::kF64, {0.1, -2.5, 1e300});
  expect_round_trip<double>(DType::kF32, {0.1, -2.5, 1e-3});
  Bench bench;
  Place p(gpu::kOps, bench);
  const Tensor counts = p.zeros(DType::kI64, {2});
  p.edit<int64_t>(counts, [](int64_t* n) { n[1] = int64_t(1) << 40; });
  std::vector<int64_t> got(2);
  kernels::download(p.context(), counts, std::span(got));
  EXPECT_EQ(got[1], int64_t(1) << 40);
}

TEST(GpuOps, RaisesWhatItLacks) {
  for (const Device device : {Device::kCpu, Device::kMeta}) {
    Bench bench({}, true, 1, device);
    Place p(gpu::kOps, bench);
    Operand weight;
    try {
      gpu::kOps.round_to_int8(p.context(), DType::kF32, weight);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kDevice);
      EXPECT_STREQ(e.what(), "round_to_int8 has no GPU path yet; the CPU has one");
    }
  }
}

}  // namespace
}  // namespace ashlar::kernels
