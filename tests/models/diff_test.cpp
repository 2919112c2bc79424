// Findings of diff, across layouts, types and formats, against what was changed.
#include "ashlar/models/diff.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/checkpoint/random_boxes.h"
#include "tests/checkpoint/state_test_util.h"
#include "tests/models/hf_test_util.h"
#include "tests/support/write_hf_model.h"

namespace ashlar::models {
namespace {

class DiffTest : public testing::Test {
 protected:
  StoredTensors save(const std::string& root, checkpoint::State& model, checkpoint::State& optim) {
    checkpoint::Checkpointer checkpoints(*files_, root, checkpoint::direct(), log_);
    checkpoint::SaveRequest request;
    request.model = model.pieces();
    request.optim = optim.pieces();
    checkpoints.save(request);
    return StoredTensors(checkpoints.open_newest());
  }
  static const TensorDiff& of(const Diff& diff, const std::string& name) {
    for (const TensorDiff& tensor : diff.tensors)
      if (tensor.name == name) return tensor;
    ADD_FAILURE() << "no tensor " << name;
    return diff.tensors.front();
  }

  std::unique_ptr<FileSystem> files_ = memory_files();
  Log log_ = checkpoint::quiet_log();
};

// Both sides cut at random, elements changed at random.
TEST_F(DiffTest, FindsTheChangedElementsAcrossLayouts) {
  checkpoint::Draw draw(21, "diff");
  const std::vector<Shape> shapes{{}, {17}, {9, 14}, {8, 3, 5}, {1300, 1021}};
  for (int round = 0; round < 12; ++round) {
    checkpoint::State sides[2], none;
    std::vector<std::vector<float>> values[2];
    std::vector<ValueDiff> expected(shapes.size());
    for (size_t t = 0; t < shapes.size(); ++t) {
      std::vector<float> a(size_t(shapes[t].numel())), b;
      for (size_t i = 0; i < a.size(); ++i) a[i] = float(draw.below(1000)) - 500;
      b = a;
      for (int64_t change = draw.below(4); change > 0; --change) {
        const auto at = size_t(draw.below(int64_t(b.size())));
        if (b[at] != a[at]) continue;
        const float by = float(1 + draw.below(50)) / 8;
        b[at] += by;
        ++expected[t].differing;
        expected[t].max_abs = std::max(expected[t].max_abs, double(by));
      }
      values[0].push_back(std::move(a));
      values[1].push_back(std::move(b));
    }
    std::vector<StoredTensors> stored;
    for (int side = 0; side < 2; ++side) {
      for (size_t t = 0; t < shapes.size(); ++t)
        for (const Box& box : checkpoint::random_tiling(shapes[t], draw.below(7), draw)) {
          const Piece& piece = sides[side].add_box(fmt::format("t{}", t), DType::kF32, shapes[t],
                                                   box, Role::kParameter);
          for (int64_t i = 0; i < piece.data.numel(); ++i)
            piece.data.as<float>()[i] = values[side][t][size_t(index_in_tensor(shapes[t], box, i))];
        }
      stored.push_back(save(fmt::format("{}-{}", round, side), sides[side], none));
    }
    const Diff found = diff(stored[0], stored[1], {.values = true, .num_threads = 3});
    bool equal = true;
    for (size_t t = 0; t < shapes.size(); ++t) {
      const TensorDiff& tensor = of(found, fmt::format("t{}", t));
      EXPECT_EQ(tensor.values->differing, expected[t].differing);
      EXPECT_EQ(tensor.values->not_finite, 0);
      EXPECT_EQ(tensor.values->max_abs, expected[t].max_abs);
      EXPECT_EQ(tensor.equal(), expected[t].differing == 0);
      equal &= tensor.equal();
    }
    EXPECT_EQ(found.equal(), equal);
    EXPECT_TRUE(diff(stored[0], stored[1], {}).equal());  // names, shapes and types only
  }
}

TEST_F(DiffTest, NamesShapesAndTypes) {
  checkpoint::State a, b, of_a, of_b;
  a.add("both", DType::kF32, {2, 3}, Role::kParameter);
  a.add("cast", DType::kF32, {4}, Role::kParameter);
  a.add("gone", DType::kF32, {5}, Role::kParameter);
  a.add("grown", DType::kF32, {6}, Role::kParameter);
  of_a.add("optim.exp_avg.both", DType::kF64, {2, 3}, Role::kOptimizerState);
  b.add("both", DType::kF32, {2, 3}, Role::kParameter);
  b.add("cast", DType::kBF16, {4}, Role::kParameter);
  b.add("grown", DType::kF32, {7}, Role::kParameter);
  b.add("new", DType::kI64, {1}, Role::kBuffer);
  of_b.add("optim.exp_avg.both", DType::kF64, {2, 3}, Role::kOptimizerState);
  for (checkpoint::State* state : {&a, &b, &of_a, &of_b}) state->clear();
  a.pieces()[1].data.as<float>()[2] = 1.0f + 1.0f / 1024;
  b.pieces()[1].data.as<bf16>()[2] = bf16(1.0f);
  const StoredTensors x = save("a", a, of_a), y = save("b", b, of_b);
  const Diff found = diff(x, y, {.values = true});
  EXPECT_FALSE(found.equal());
  ASSERT_EQ(found.tensors.size(), 6u);
  EXPECT_TRUE(of(found, "both").equal());
  EXPECT_TRUE(of(found, "optim.exp_avg.both").equal());
  EXPECT_EQ(of(found, "optim.exp_avg.both").component, checkpoint::Component::kOptim);
  EXPECT_FALSE(of(found, "gone").b || of(found, "new").a);
  EXPECT_FALSE(of(found, "grown").equal() || of(found, "grown").values);
  EXPECT_FALSE(of(found, "cast").equal());
  EXPECT_EQ(of(found, "cast").values->differing, 1);
  EXPECT_EQ(of(found, "cast").values->max_abs, 1.0 / 1024);
  const Diff of_optim = diff(x, y, {.component = checkpoint::Component::kOptim});
  EXPECT_TRUE(of_optim.equal());
  EXPECT_EQ(of_optim.tensors.size(), 1u);
}

TEST_F(DiffTest, EveryTypeIsComparedByItsBits) {
  for (const DType dtype :
       {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI64, DType::kI32, DType::kI16,
        DType::kU16, DType::kU8, DType::kI8, DType::kBool, DType::kU32, DType::kU64}) {
    checkpoint::State a, b, none;
    for (checkpoint::State* state : {&a, &b}) {
      state->add("w", dtype, {33}, Role::kParameter);
      state->clear();
    }
    const std::string name(name_of(dtype));
    const StoredTensors x = save(name + "a", a, none);
    // The last byte of the last element: the sign of a float, which makes -0 of 0.
    b.pieces()[0].data.data[33 * size_of(dtype) - 1] = std::byte(0x80);
    const StoredTensors y = save(name + "b", b, none);
    const Diff found = diff(x, y, {.values = true});
    EXPECT_EQ(found.tensors[0].values->differing, 1) << name;
    EXPECT_TRUE(diff(x, x, {.values = true}).equal());
  }
}

TEST_F(DiffTest, WhatIsNotFiniteIsCountedApart) {
  checkpoint::State a, b, none;
  for (checkpoint::State* state : {&a, &b}) {
    state->add("w", DType::kF32, {5}, Role::kParameter);
    state->clear();
  }
  float *x = a.pieces()[0].data.as<float>(), *y = b.pieces()[0].data.as<float>();
  x[0] = y[0] = std::nanf("");
  x[1] = INFINITY;
  y[2] = std::nanf("");
  y[3] = 2;
  const Diff found = diff(save("a", a, none), save("b", b, none), {.values = true});
  EXPECT_EQ(found.tensors[0].values->differing, 3);
  EXPECT_EQ(found.tensors[0].values->not_finite, 2);
  EXPECT_EQ(found.tensors[0].values->max_abs, 2);
}

// More elements than are compared at a time, of one type and of two, against one by one.
TEST_F(DiffTest, CountsOfManyElementsAreThoseOfEach) {
  constexpr int64_t kNumel = 5000;
  for (const DType type_b : {DType::kF32, DType::kF64}) {
    const std::string name(name_of(type_b));
    checkpoint::State a, b, none;
    float* x = a.add("w", DType::kF32, {kNumel}, Role::kParameter).data.as<float>();
    const Tensor other = b.add("w", type_b, {kNumel}, Role::kParameter).data;
    std::mt19937 random(3);
    ValueDiff expected;
    for (int64_t i = 0; i < kNumel; ++i) {
      x[i] = float(random() % 1000) / 7;
      double y = random() % 3 ? x[i] : float(random() % 1000) / 7;
      if (i >= 4000 && random() % 5 == 0) y = random() % 2 ? INFINITY : NAN;
      if (i >= 4000 && random() % 50 == 0) x[i] = float(y);  // alike, but perhaps not finite
      if (type_b == DType::kF32)
        other.as<float>()[i] = float(y);
      else
        other.as<double>()[i] = y;
      if (x[i] == y || (std::isnan(x[i]) && std::isnan(y))) continue;
      ++expected.differing;
      if (std::isfinite(x[i]) && std::isfinite(y))
        expected.max_abs = std::max(expected.max_abs, std::abs(double(x[i]) - y));
      else
        ++expected.not_finite;
    }
    const Diff found = diff(save("a" + name, a, none), save("b" + name, b, none), {.values = true});
    ASSERT_GT(expected.not_finite, 0);
    EXPECT_EQ(found.tensors[0].values->differing, expected.differing) << name;
    EXPECT_EQ(found.tensors[0].values->not_finite, expected.not_finite) << name;
    EXPECT_EQ(found.tensors[0].values->max_abs, expected.max_abs) << name;
  }
}

// A step of a model and its optimizer, and the same model as Hugging Face names it.
TEST_F(DiffTest, AStepAndAHuggingFaceDirectory) {
  const ModelKeys keys = odd_spec();
  const Values values = random_values(keys, DType::kF32);
  checkpoint::State model, optim;
  for (const Piece& piece : values.pieces) {
    const Piece& copy =
        model.add(piece.logical.name, DType::kF32, piece.logical.global_shape, piece.logical.role);
    copy_convert(piece.data, copy.data);
  }
  optim.add("optim.exp_avg.model.norm.weight", DType::kF32, {8}, Role::kOptimizerState);
  optim.clear();
  const StoredTensors step = save("step", model, optim);
  for (const HfLayout layout : {HfLayout::kNative, HfLayout::kLegacy}) {
    const std::string directory(name_of(layout));
    write_hf_model(*files_, directory, model_of(keys), values.pieces, {layout, DType::kF32});
    const StoredTensors hf = open_tensors(*files_, directory, log_);
    for (const bool turned : {false, true}) {
      const Diff found = diff(turned ? hf : step, turned ? step : hf, {.values = true});
      EXPECT_TRUE(found.equal());
      EXPECT_EQ(found.tensors.size(), values.pieces.size());
      EXPECT_EQ(found.left_out, std::vector<checkpoint::Component>{checkpoint::Component::kOptim});
    }
  }
  write_hf_model(*files_, "rounded", model_of(keys), values.pieces, {});
  const Diff rounded = diff(step, open_tensors(*files_, "rounded", log_), {.values = true});
  for (const TensorDiff& tensor : rounded.tensors) {
    const auto whole = std::ranges::find(values.pieces, tensor.name,
                                         [](const Piece& piece) { return piece.logical.name; });
    int64_t differing = 0;
    double most = 0;
    for (const float x : whole->data.span<float>()) {
      if (tensor.b->dtype == DType::kF32) continue;  // balancing biases
      differing += float(bf16(x)) != x;
      most = std::max(most, std::abs(double(float(bf16(x))) - double(x)));
    }
    EXPECT_EQ(tensor.values->differing, differing) << tensor.name;
    EXPECT_EQ(tensor.values->max_abs, most) << tensor.name;
  }
}

}  // namespace
}  // namespace ashlar::models
