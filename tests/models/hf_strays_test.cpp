// Tensors of files beside the parameters: buffers of older versions, which are read past and said
// once, and names with the prefix of a wrapper, which are refused with a tensor that is there.
#include <gtest/gtest.h>

#include <filesystem>

#include "ashlar/models/hf/strays.h"
#include "ashlar/models/source.h"
#include "tests/models/hf_directory.h"

namespace ashlar::models {
namespace {

class HfStrays : public HfDirectoryTest {
 protected:
  // A copy of the directory with its tensors changed.
  std::string changed(const std::string& family,
                      const std::function<void(std::vector<RawTensor>&)>& change) {
    const std::string path = root / ("case" + std::to_string(++count_));
    std::filesystem::copy(test_data(family), path);
    rewrite(path, change);
    return path;
  }
  HfModel open_path(const std::string& path) { return HfModel::open(*files, path); }
  std::string refusal_of(const std::string& path) {
    const std::string message = message_of(ErrorKind::kData, [&] { open_path(path); });
    EXPECT_TRUE(message.starts_with(path)) << message;
    return message.substr(std::min(message.size(), path.size()));
  }

 private:
  int count_ = 0;
};

RawTensor raw(const std::string& name, DType dtype, std::vector<int64_t> shape) {
  int64_t bytes = size_of(dtype);
  for (const int64_t extent : shape) bytes *= extent;
  return {{name, dtype, std::move(shape)}, std::string(size_t(bytes), '\0')};
}

const std::vector<RawTensor>& strays() {
  static const std::vector<RawTensor> list = {
      raw("model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {4}),
      raw("model.layers.1.self_attn.rotary_emb.inv_freq", DType::kBF16, {4}),
      raw("model.rotary_emb.inv_freq", DType::kF32, {4}),
      raw("rotary_emb.original_inv_freq", DType::kF32, {4}),
      raw("model.layers.0.self_attn.rotary_emb.cos_cached", DType::kF32, {1, 1, 16, 8}),
      raw("model.layers.0.self_attn.rotary_emb.sin_cached", DType::kF16, {1, 1, 16, 8}),
      raw("model.layers.0.self_attn.bias", DType::kBool, {1, 1, 16, 16}),
      raw("model.layers.0.self_attn.masked_bias", DType::kF32, {}),
      raw("model.layers.0.attention.bias", DType::kU8, {1, 1, 16, 16}),
      raw("model.position_ids", DType::kI64, {1, 16}),
      raw("model.causal_mask", DType::kBool, {16, 16}),
      // Tensors of one block too many, as a model that lost blocks keeps them.
      raw("model.layers.99.self_attn.rotary_emb.inv_freq", DType::kF32, {4}),
  };
  return list;
}

TEST_F(HfStrays, AreReadPastInEveryFamilyAndSaidOnce) {
  for (const char* family : kFamilies) {
    SCOPED_TRACE(family);
    const HfModel before = open_path(test_data(family));
    EXPECT_TRUE(before.notes().empty());
    const std::string path = changed(family, [](std::vector<RawTensor>& tensors) {
      tensors.insert(tensors.end(), strays().begin(), strays().end());
    });
    const HfModel model = open_path(path);
    expect_equal(read_all(before, DType::kF32), read_all(model, DType::kF32));
    ASSERT_EQ(model.notes().size(), 1u);
    EXPECT_EQ(model.notes()[0],
              path +
                  ": 12 tensors are read past, for the model does not need them: "
                  "model.causal_mask, model.layers.0.attention.bias, "
                  "model.layers.0.self_attn.bias, model.layers.0.self_attn.masked_bias, "
                  "model.layers.0.self_attn.rotary_emb.cos_cached and 7 more");
    std::vector<std::string> lines;
    Log log{[&](std::string_view line) { lines.emplace_back(line); }};
    find_model(*files, path, log);
    EXPECT_EQ(lines, (std::vector{model.notes()[0]}));
  }
}

TEST_F(HfStrays, OneIsSaidInTheSingular) {
  const std::string path = changed(
      "hf_llama", [](std::vector<RawTensor>& tensors) { tensors.push_back(strays().front()); });
  EXPECT_EQ(open_path(path).notes()[0],
            path +
                ": 1 tensor is read past, for the model does not need it: "
                "model.layers.0.self_attn.rotary_emb.inv_freq");
}

// Layers that predict more tokens are parameters, but no program here runs them.
TEST_F(HfStrays, LayersThatPredictMoreTokensAreNamed) {
  const std::string path = changed("hf_qwen3_next", [](std::vector<RawTensor>& tensors) {
    tensors.push_back(raw("mtp.fc.weight", DType::kF32, {4, 4}));
  });
  EXPECT_NE(open_path(path).notes()[0].find(": mtp.fc.weight"), std::string::npos);
}

// A bias is no mask, whatever its name.
TEST_F(HfStrays, TensorsOfOtherShapesOrNamesAreUnexpected) {
  for (const RawTensor& tensor :
       {raw("model.layers.0.self_attn.bias", DType::kF32, {32}),
        raw("model.layers.0.self_attn.bias", DType::kF32, {1, 1, 16, 8}),
        raw("model.layers.0.self_attn.q_proj.bias", DType::kF32, {32}),
        raw("model.layers.0.mlp.bias", DType::kF32, {1, 1, 16, 16}),
        raw("model.layers.0.self_attn.rotary_emb.weight", DType::kF32, {4})}) {
    const std::string path =
        changed("hf_llama", [&](std::vector<RawTensor>& tensors) { tensors.push_back(tensor); });
    EXPECT_TRUE(refusal_of(path).starts_with(": unexpected tensors: " + tensor.spec.name + ";"))
        << tensor.spec.name;
  }
}

// Programs that write shards anew leave names in the index behind.
TEST_F(HfStrays, MayBeNamedInTheIndexAlone) {
  write("sharded", odd_spec(), random_values(odd_spec(), DType::kF32),
        {.layout = HfLayout::kNative, .dtype = DType::kF32, .max_file_bytes = 2000});
  const std::string index = root / "sharded/model.safetensors.index.json";
  const Json as_written = Json::parse(slurp(index));
  const std::string shard = as_written["weight_map"].begin().value();
  for (const RawTensor& stray : strays()) {
    Json json = as_written;
    json["weight_map"][stray.spec.name] = shard;
    spill(index, json.dump());
    EXPECT_TRUE(open("sharded").notes().empty()) << stray.spec.name;
  }
  Json json = as_written;
  json["weight_map"]["model.layers.0.self_attn.q_proj.bias"] = shard;
  spill(index, json.dump());
  EXPECT_NE(message_of(ErrorKind::kData, [&] { open("sharded"); })
                .find("weight_map names tensors that their shard lacks: "
                      "model.layers.0.self_attn.q_proj.bias"),
            std::string::npos);
}

TEST_F(HfStrays, APrefixIsNamedWithATensorThatIsThere) {
  const auto with = [](const std::string& old, const std::string& prefix) {
    return [=](std::vector<RawTensor>& tensors) {
      for (RawTensor& tensor : tensors)
        if (tensor.spec.name.starts_with(old))
          tensor.spec.name = prefix + tensor.spec.name.substr(old.size());
    };
  };
  const struct {
    std::string old, prefix, named;
  } cases[] = {
      {"", "module.", "\"module.model.\""},
      {"", "_orig_mod.", "\"_orig_mod.model.\""},
      {"", "base_model.model.", "\"base_model.model.model.\""},
      {"", "language_model.", "\"language_model.model.\""},
      {"model.", "model.language_model.", "\"model.language_model.\""},
      {"model.", "transformer.", "\"transformer.\""},
      {"model.", "", "no prefix"},
  };
  for (const char* family : kFamilies)
    for (const auto& c : cases) {
      SCOPED_TRACE(std::string(family) + " " + c.prefix);
      const std::string there = c.prefix + (c.old.empty() ? "model." : "") + "embed_tokens.weight";
      EXPECT_TRUE(refusal_of(changed(family, with(c.old, c.prefix)))
                      .starts_with(": the names of tensors begin with " + c.named + ": " + there +
                                   " is there; expected model.embed_tokens.weight, as in the "
                                   "files of a "));
    }
}

// A head under another name is named beside what is missing.
TEST_F(HfStrays, WhatIsThereInsteadIsNamed) {
  const std::string path = changed("hf_llama", [](std::vector<RawTensor>& tensors) {
    for (RawTensor& tensor : tensors)
      if (tensor.spec.name == "lm_head.weight") tensor.spec.name = "output.weight";
  });
  EXPECT_EQ(
      refusal_of(path).substr(0, 86),
      ": tensors are missing: lm_head.weight, and these are there instead: output.weight; exp");
}

}  // namespace
}  // namespace ashlar::models
