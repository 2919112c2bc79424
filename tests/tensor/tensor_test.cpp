#include "ashlar/tensor/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace ashlar {
namespace {

class TensorTest : public testing::Test {
 protected:
  Allocator cpu_{Device::kCpu}, meta_{Device::kMeta};
};

TEST_F(TensorTest, MakesZeroedTensors) {
  const OwnedTensor owned = make_tensor(cpu_, DType::kF32, {3, 4}, Tag::kWeights);
  EXPECT_EQ(owned.tensor.bytes(), 48);
  for (const float value : owned.tensor.span<float>()) EXPECT_EQ(value, 0.0f);
  EXPECT_TRUE(owned.tensor);
  EXPECT_FALSE(Tensor{});
  EXPECT_TRUE(Tensor{}.empty());
}

TEST_F(TensorTest, SlicesRows) {
  const OwnedTensor owned = make_tensor(cpu_, DType::kI32, {4, 3}, Tag::kInput);
  const auto all = owned.tensor.span<int32_t>();
  std::iota(all.begin(), all.end(), 0);
  const Tensor middle = owned.tensor.slice(1, 3);
  EXPECT_EQ(middle.shape, (Shape{2, 3}));
  EXPECT_EQ(middle.as<int32_t>()[0], 3);
  EXPECT_EQ(middle.span<int32_t>().back(), 8);
  EXPECT_EQ(middle.slice(1, 2).as<int32_t>()[2], 8);
  EXPECT_EQ(owned.tensor.slice(2, 2).shape, (Shape{0, 3}));
  EXPECT_EQ(owned.tensor.slice(4, 4).numel(), 0);
  const Tensor flat = owned.tensor.view({2, 6});
  EXPECT_EQ(flat.slice(1, 2).as<int32_t>()[0], 6);
}

TEST_F(TensorTest, MetaTensorsHaveShapesOnly) {
  const OwnedTensor owned = make_tensor(meta_, DType::kBF16, {1 << 20, 1 << 20}, Tag::kWeights);
  EXPECT_EQ(owned.tensor.bytes(), int64_t{1} << 41);
  EXPECT_EQ(owned.tensor.data, nullptr);
  EXPECT_EQ(owned.tensor.slice(5, 9).data, nullptr);
  EXPECT_EQ(owned.tensor.slice(5, 9).shape, (Shape{4, 1 << 20}));
  fill_zero(owned.tensor);
  copy_convert(owned.tensor, owned.tensor);
}

TEST_F(TensorTest, ViewsIntoABuffer) {
  const Buffer buffer = cpu_.allocate(128, Tag::kWorkspace);
  const Tensor second = tensor_over(buffer, Device::kCpu, DType::kF64, {4}, 32);
  EXPECT_EQ(second.data, buffer.data() + 32);
}

using TensorDeathTest = TensorTest;

TEST_F(TensorDeathTest, MisuseAborts) {
  const OwnedTensor owned = make_tensor(cpu_, DType::kF32, {4}, Tag::kWeights);
  const OwnedTensor meta = make_tensor(meta_, DType::kF32, {4}, Tag::kWeights);
  EXPECT_DEATH(owned.tensor.as<double>(), "dtype_of");
  EXPECT_DEATH(meta.tensor.as<float>(), "dtype_of");
  EXPECT_DEATH(owned.tensor.slice(2, 5), "slice|end");
  EXPECT_DEATH(owned.tensor.slice(3, 2), "begin <= end");
  EXPECT_DEATH(owned.tensor.view({5}), "numel");
  EXPECT_DEATH(tensor_over(owned.buffer, Device::kCpu, DType::kF32, {17}), "size_bytes");
  const OwnedTensor ints = make_tensor(cpu_, DType::kI32, {4}, Tag::kWeights);
  EXPECT_DEATH(copy_convert(ints.tensor, owned.tensor), "floating types only");
}

template <typename T>
std::vector<T> converted(Allocator& allocator, const std::vector<double>& values) {
  const Shape shape{static_cast<int64_t>(values.size())};
  const OwnedTensor from = make_tensor(allocator, DType::kF64, shape, Tag::kWorkspace);
  const OwnedTensor to = make_tensor(allocator, dtype_of<T>, shape, Tag::kWorkspace);
  std::copy(values.begin(), values.end(), from.tensor.as<double>());
  copy_convert(from.tensor, to.tensor);
  const auto out = to.tensor.span<T>();
  return {out.begin(), out.end()};
}

TEST_F(TensorTest, ConvertsBetweenFloatingTypes) {
  const std::vector<double> values = {0, -1.5, 1.0 / 3, 1e300, -1e-300, 0x1.01p0};
  EXPECT_EQ(converted<double>(cpu_, values), values);
  EXPECT_EQ(converted<float>(cpu_, values),
            (std::vector<float>{0, -1.5f, 1.0f / 3, std::numeric_limits<float>::infinity(), -0.0f,
                                0x1.01p0f}));
  const OwnedTensor wide = make_tensor(cpu_, DType::kF32, {2}, Tag::kWorkspace);
  const OwnedTensor half = make_tensor(cpu_, DType::kBF16, {2}, Tag::kWorkspace);
  wide.tensor.as<float>()[0] = 0x1.03p0f;  // a tie, to even
  wide.tensor.as<float>()[1] = -7;
  copy_convert(wide.tensor, half.tensor);
  copy_convert(half.tensor, wide.tensor);
  EXPECT_EQ(wide.tensor.as<float>()[0], 0x1.04p0f);
  EXPECT_EQ(wide.tensor.as<float>()[1], -7);
  fill_zero(wide.tensor);
  EXPECT_EQ(wide.tensor.as<float>()[1], 0);
}

TEST_F(TensorTest, DoubleToBf16RoundsOnce) {
  // A hair over or under a tie: rounding to float first would land on the tie and then go wrong.
  const double hair = 0x1p-40;
  const std::vector<bf16> out = converted<bf16>(
      cpu_, {1 + 0x1p-8 + hair, 1 + 3 * 0x1p-8 - hair, -1 - 0x1p-8 - hair, 1 + 0x1p-8,
             std::numeric_limits<double>::max(), -0x1p-1000, std::nan(""), 0x1.ffp127 - 0x1p80,
             std::numeric_limits<double>::infinity(), 0x1p-134 + 0x1p-160});
  EXPECT_EQ(out[0].bits, 0x3f81);
  EXPECT_EQ(out[1].bits, 0x3f81);
  EXPECT_EQ(out[2].bits, 0xbf81);
  EXPECT_EQ(out[3].bits, 0x3f80);
  EXPECT_EQ(out[4].bits, 0x7f80);
  EXPECT_EQ(out[5].bits, 0x8000);
  EXPECT_TRUE(std::isnan(float(out[6])));
  EXPECT_EQ(out[7].bits, 0x7f7f);  // just under the tie between the largest bf16 and infinity
  EXPECT_EQ(out[8].bits, 0x7f80);
  EXPECT_EQ(out[9].bits, 0x0001);  // just over half of the smallest bf16, 2^-133
}

TEST_F(TensorTest, ArenaScopesGiveBack) {
  Arena arena(cpu_, 1024, Tag::kWorkspace);
  const Tensor first = arena.take(DType::kF32, {3});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.data) % 64, 0u);
  {
    const Arena::Scope scope(arena);
    const Tensor a = arena.take(DType::kU8, {65});
    EXPECT_EQ(a.data, first.data + 64);
    {
      const Arena::Scope inner(arena);
      EXPECT_EQ(arena.take(DType::kU8, {1}).data, first.data + 64 + 128);
    }
    EXPECT_EQ(arena.take(DType::kF64, {8}).data, first.data + 64 + 128);
  }
  EXPECT_EQ(arena.take(DType::kF64, {1}).data, first.data + 64);
  EXPECT_EQ(arena.peak_bytes(), 256);
  EXPECT_EQ(cpu_.counts().total.current_bytes, 1024);
}

TEST_F(TensorTest, APartOfAnArenaLiesInIt) {
  Arena arena(cpu_, 1024, Tag::kSaved), counter(Device::kMeta);
  const Tensor before = arena.take(DType::kF32, {16});
  Arena part = arena.part(128);
  const Tensor after = arena.take(DType::kF32, {16});
  EXPECT_EQ(arena.used_bytes(), 64 + 128 + 64);
  for (int turn = 0; turn < 2; ++turn) {  // whoever comes next takes the same memory
    const Arena::Scope scope(part);
    EXPECT_EQ(part.take(DType::kF32, {16}).data, before.data + 64);
    EXPECT_EQ(part.take(DType::kF32, {16}).data, before.data + 128);
    EXPECT_DEATH(part.take(DType::kU8, {1}), "used_ \\+ size <= capacity_");
  }
  EXPECT_EQ(after.data, before.data + 192);
  Arena counted = counter.part(128);
  EXPECT_EQ(counted.take(DType::kF32, {100}).data, nullptr);
  EXPECT_EQ(counter.used_bytes(), 128);
}

TEST_F(TensorTest, APlannedArenaFits) {
  const auto work = [](Arena& arena) {
    const Tensor kept = arena.take(DType::kF32, {5, 5});
    for (const int64_t size : {100, 3, 77}) {
      const Arena::Scope scope(arena);
      arena.take(DType::kBF16, {size});
      arena.take(DType::kF64, {size});
    }
    return kept;
  };
  Arena plan(Device::kCpu);
  EXPECT_EQ(work(plan).data, nullptr);
  Arena real(cpu_, plan.peak_bytes(), Tag::kSaved);
  EXPECT_NE(work(real).data, nullptr);
  EXPECT_EQ(real.peak_bytes(), plan.peak_bytes());
  EXPECT_EQ(plan.peak_bytes(), 128 + 256 + 832);
  Arena meta(meta_, plan.peak_bytes(), Tag::kSaved);
  EXPECT_EQ(work(meta).data, nullptr);
  EXPECT_EQ(meta_.counts().total.peak_bytes, plan.peak_bytes());
}

TEST_F(TensorDeathTest, PassingTheArenaAborts) {
  Arena arena(cpu_, 128, Tag::kWorkspace);
  arena.take(DType::kU8, {64});
  arena.take(DType::kU8, {64});
  EXPECT_DEATH(arena.take(DType::kU8, {1}), "capacity_");
}

}  // namespace
}  // namespace ashlar
