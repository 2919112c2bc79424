// Hugging Face directories: read what transformers wrote, in every form and layout, bit for bit.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/models/hf_directory.h"

namespace ashlar::models {
namespace {

class HfModelTest : public HfDirectoryTest {};

TEST_F(HfModelTest, OpensWhatTransformersSaved) {
  const HfModel model = HfModel::open(*files, test_data("hf_small"));
  EXPECT_EQ(model.layout(), HfLayout::kNative);
  EXPECT_EQ(model.config().form, HfForm::kNative);
  EXPECT_EQ(model.spec().vocab_size, 128);
  EXPECT_EQ(model.spec().num_blocks(), 4);
  const auto theirs = take_apart(test_data("hf_small/model.safetensors"));
  EXPECT_EQ(model.tensors().size(), theirs.size());
  const Values values = read_all(model, DType::kF32);
  for (size_t n = 0; n < values.pieces.size(); ++n) {
    const std::string& name = values.pieces[n].logical.name;
    ASSERT_TRUE(theirs.count(name)) << name;
    EXPECT_EQ(text_of(values.memory[n]), theirs.at(name)) << name;
  }
}

TEST_F(HfModelTest, NativeToLegacyToNativeIsBitEqual) {
  const HfModel first = HfModel::open(*files, test_data("hf_small"));
  const Values original = read_all(first, DType::kF32);
  write("legacy", first.spec(), original, kF32Legacy);
  const HfModel legacy = open("legacy");
  EXPECT_EQ(legacy.layout(), HfLayout::kLegacy);
  EXPECT_EQ(legacy.config().form, HfForm::kLegacy2026);
  EXPECT_TRUE(legacy.spec() == first.spec());
  EXPECT_EQ(take_apart(root / "legacy/model.safetensors").size(), 131u + 4 * 2 * 3);
  const Values through = read_all(legacy, DType::kF32);
  expect_equal(original, through);
  write("native", legacy.spec(), through, kF32Native);
  EXPECT_EQ(take_apart(root / "native/model.safetensors"),
            take_apart(test_data("hf_small/model.safetensors")));
  EXPECT_TRUE(open("native").spec() == first.spec());
}

// The experts of the legacy layout, one after the other, are the stacked tensor.
TEST_F(HfModelTest, LegacyExpertsStackToTheNativeTensor) {
  const ModelKeys spec = odd_spec();
  const Values values = random_values(spec, DType::kF32);
  write("legacy", spec, values, kF32Legacy);
  const auto stored = take_apart(root / "legacy/model.safetensors");
  std::string stack;
  for (int e = 0; e < 3; ++e)
    stack += stored.at(
        fmt::format("model.layers.3.zaya_block.experts.local_experts.{}.linear_fc2.weight", e));
  EXPECT_EQ(stack, text_of(values.of("model.layers.1.mlp.experts.down_proj")));
}

TEST_F(HfModelTest, EveryTypeRoundTripsInBothLayouts) {
  const ModelKeys spec = odd_spec();
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64})
    for (const HfLayout layout : {HfLayout::kNative, HfLayout::kLegacy}) {
      const std::string name = fmt::format("{}_{}", name_of(dtype), name_of(layout));
      SCOPED_TRACE(name);
      const Values values = random_values(spec, dtype);
      write(name, spec, values, {layout, dtype});
      const HfModel model = open(name);
      for (const LogicalTensor& tensor : model.tensors())
        EXPECT_EQ(tensor.dtype,
                  tensor.role == Role::kBuffer && dtype == DType::kBF16 ? DType::kF32 : dtype);
      expect_equal(values, read_all(model, dtype));
    }
}

TEST_F(HfModelTest, ConvertsToNearest) {
  const ModelKeys spec = odd_spec();
  const Values values = random_values(spec, DType::kF32);
  write("bf16", spec, values, {HfLayout::kNative, DType::kBF16});
  const HfModel model = open("bf16");
  const Values as_f32 = read_all(model, DType::kF32), as_f64 = read_all(model, DType::kF64);
  for (size_t n = 0; n < values.pieces.size(); ++n) {
    const bool buffer = values.pieces[n].logical.role == Role::kBuffer;
    for (int64_t i = 0; i < values.pieces[n].data.numel(); ++i) {
      const float x = values.pieces[n].data.as<float>()[i];
      const float expected = buffer ? x : float(bf16(x));
      ASSERT_EQ(as_f32.pieces[n].data.as<float>()[i], expected);
      ASSERT_EQ(as_f64.pieces[n].data.as<double>()[i], double(expected));
    }
  }
}

TEST_F(HfModelTest, ReadsAnyBox) {
  const ModelKeys spec = odd_spec();
  const Values whole = random_values(spec, DType::kF32);
  write("native", spec, whole, kF32Native);
  write("legacy", spec, whole, kF32Legacy);
  std::mt19937 rng(7);
  for (const char* name : {"native", "legacy"}) {
    const HfModel model = open(name);
    for (const Piece& piece : whole.pieces) {
      const Shape& shape = piece.logical.global_shape;
      Box box{shape, shape};
      for (int d = 0; d < shape.ndim(); ++d) {
        box.offset[d] = int64_t(rng() % uint64_t(shape[d]));
        box.length[d] = 1 + int64_t(rng() % uint64_t(shape[d] - box.offset[d]));
      }
      Values part;
      part.add(piece.logical, box, DType::kF64);
      model.read(part.pieces[0]);
      int64_t n = 0;
      const auto at = [&](const Shape& s, int d, int64_t i) { return d < s.ndim() ? i : 0; };
      const auto extent = [](const Shape& s, int d) { return d < s.ndim() ? s[d] : 1; };
      for (int64_t i = 0; i < extent(box.length, 0); ++i)
        for (int64_t j = 0; j < extent(box.length, 1); ++j)
          for (int64_t k = 0; k < extent(box.length, 2); ++k) {
            int64_t flat = 0;
            const int64_t index[] = {i, j, k};
            for (int d = 0; d < shape.ndim(); ++d)
              flat = flat * shape[d] + box.offset[d] + at(shape, d, index[d]);
            ASSERT_EQ(part.pieces[0].data.as<double>()[n++], double(piece.data.as<float>()[flat]))
                << piece.logical.name;
          }
    }
  }
}

TEST_F(HfModelTest, ReadsHalfPrecision) {
  const ModelKeys spec = odd_spec();
  write("f16", spec, random_values(spec, DType::kF32), kF32Native);
  // Bits and the values that IEEE 754 gives them.
  const uint16_t bits[] = {0x3c00, 0xc000, 0x0001, 0x03ff, 0x0400, 0x7bff, 0x8000, 0x3555};
  const double expected[] = {
      1.0,     -2.0, std::ldexp(1, -24),   std::ldexp(1023, -24), std::ldexp(1, -14),
      65504.0, -0.0, std::ldexp(1365, -12)};
  rewrite(root / "f16", [&](std::vector<RawTensor>& tensors) {
    for (RawTensor& tensor : tensors)
      if (tensor.spec.name == "model.norm.weight") {
        tensor.spec.dtype = DType::kF16;
        tensor.bytes.assign(reinterpret_cast<const char*>(bits), sizeof bits);
      }
  });
  const HfModel model = open("f16");
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Values values = read_all(model, dtype);
    const Tensor norm = values.pieces.back().data;
    ASSERT_EQ(values.pieces.back().logical.name, "model.norm.weight");
    for (int i = 0; i < 8; ++i) {
      const double x = dtype == DType::kF32 ? double(norm.as<float>()[i]) : norm.as<double>()[i];
      EXPECT_EQ(x, expected[i]) << i;
      EXPECT_EQ(std::signbit(x), std::signbit(expected[i])) << i;
    }
  }
}

TEST_F(HfModelTest, AcceptsAHeadThatIsTheEmbedding) {
  const ModelKeys spec = odd_spec();
  const Values values = random_values(spec, DType::kF32);
  write("tied", spec, values, kF32Native);
  const auto add_head = [](std::vector<RawTensor>& tensors) {
    for (const RawTensor& tensor : tensors)
      if (tensor.spec.name == "model.embed_tokens.weight") {
        RawTensor head = tensor;
        head.spec.name = "lm_head.weight";
        tensors.push_back(head);
        return;
      }
  };
  rewrite(root / "tied", add_head);
  const HfModel model = open("tied");
  EXPECT_EQ(model.tensors().size(), 99u);
  expect_equal(values, read_all(model, DType::kF32));
  rewrite(root / "tied", [](std::vector<RawTensor>& tensors) { tensors.back().bytes[17] ^= 1; });
  const std::string message = message_of(ErrorKind::kData, [&] { open("tied"); });
  EXPECT_NE(message.find("lm_head.weight is"), std::string::npos) << message;
  EXPECT_NE(message.find("at element 4 "), std::string::npos) << message;
}

// Some programs store a tied table as the head alone.
TEST_F(HfModelTest, AHeadStandsForATiedEmbedding) {
  const ModelKeys spec = odd_spec();
  const Values values = random_values(spec, DType::kF32);
  write("tied", spec, values, kF32Native);
  rewrite(root / "tied", [](std::vector<RawTensor>& tensors) {
    for (RawTensor& tensor : tensors)
      if (tensor.spec.name == "model.embed_tokens.weight") tensor.spec.name = "lm_head.weight";
  });
  expect_equal(values, read_all(open("tied"), DType::kF32));
}

// The config of 2025 and tensors named smoe_block, as the earliest release has them.
TEST_F(HfModelTest, ReadsTheEarliestForm) {
  ModelKeys spec = odd_spec();
  spec.layer_types.assign(3, LayerType::kHybrid);
  spec.sliding_window = 0;
  spec.rope_theta_sliding = 1e4;
  const Values values = random_values(spec, DType::kF32);
  write("old", spec, values, kF32Legacy);
  rewrite(root / "old", [](std::vector<RawTensor>& tensors) {
    for (RawTensor& tensor : tensors)
      if (const size_t at = tensor.spec.name.find("zaya_block"); at != std::string::npos)
        tensor.spec.name.replace(at, 10, "smoe_block");
  });
  spill(root / "old/config.json", R"({"model_type": "zaya", "smoe_layers": ["a", 3, "a", 3, "a", 3],
    "num_hidden_layers": 120, "hidden_size": 8, "vocab_size": 11,
    "cca_num_q_heads": [4, 0, 4, 0, 4, 0],
    "num_query_groups_list": [2, 0, 2, 0, 2, 0], "num_attention_heads": 2, "kv_channels": 4,
    "ffn_hidden_size_list": [0, 10, 0, 10, 0, 10], "smoe_mlp_expansion": [0, 6, 0, 6, 0, 6],
    "norm_epsilon": 1e-5, "rotary_base": 10000, "rope_pct": 0.5, "max_position_embeddings": 32768,
    "eos_token_id": 1, "smoe_use_mod": true})");
  const HfModel model = open("old");
  EXPECT_EQ(model.config().form, HfForm::kLegacy2025);
  EXPECT_TRUE(model.spec() == model_of(spec));
  expect_equal(values, read_all(model, DType::kF32));
}

}  // namespace
}  // namespace ashlar::models
