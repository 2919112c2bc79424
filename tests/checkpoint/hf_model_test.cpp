// Hugging Face directories: read what transformers wrote, write and read both layouts bit for bit.
#include "ashlar/checkpoint/hf_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ashlar/checkpoint/safetensors.h"
#include "ashlar/core/error.h"
#include "ashlar/core/json.h"
#include "hf_test_util.h"

namespace ashlar::checkpoint {
namespace {

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void spill(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// A file taken apart without the code under test: name -> bytes.
std::map<std::string, std::string> take_apart(const std::string& path) {
  const std::string bytes = slurp(path);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const Json header = Json::parse(bytes.substr(8, length));
  EXPECT_EQ(header["__metadata__"]["format"], "pt");
  std::map<std::string, std::string> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const int64_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    tensors[name] = bytes.substr(8 + length + size_t(begin), size_t(end - begin));
  }
  return tensors;
}

std::string bytes_of(const std::vector<std::byte>& memory) {
  return {reinterpret_cast<const char*>(memory.data()), memory.size()};
}

void expect_equal(const Values& a, const Values& b) {
  ASSERT_EQ(a.pieces.size(), b.pieces.size());
  for (size_t n = 0; n < a.pieces.size(); ++n) {
    const std::string& name = a.pieces[n].logical.name;
    EXPECT_EQ(bytes_of(a.memory[n]), bytes_of(b.of(name))) << name;
  }
}

class HfModelTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const ModelSpec& spec, const Values& values,
             const HfWriteOptions& options) {
    write_hf_model(*files, root / name, spec, values.pieces, options);
  }
  HfModel open(const std::string& name) { return HfModel::open(*files, root / name); }

  template <typename F>
  std::string error_of(ErrorKind kind, F&& action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  }

  std::unique_ptr<FileSystem> files = posix_files();
  TemporaryDirectory root;
};

const HfWriteOptions kF32Native{HfLayout::kNative, DType::kF32};
const HfWriteOptions kF32Legacy{HfLayout::kLegacy, DType::kF32};

TEST_F(HfModelTest, OpensWhatTransformersSaved) {
  const HfModel model = HfModel::open(*files, test_data("hf_small"));
  EXPECT_EQ(model.layout(), HfLayout::kNative);
  EXPECT_EQ(model.config().form, HfForm::kNative);
  EXPECT_EQ(model.spec().vocab_size, 128);
  EXPECT_EQ(model.spec().num_hidden_layers, 4);
  const auto theirs = take_apart(test_data("hf_small/model.safetensors"));
  EXPECT_EQ(model.tensors().size(), theirs.size());
  const Values values = read_all(model, DType::kF32);
  for (size_t n = 0; n < values.pieces.size(); ++n) {
    const std::string& name = values.pieces[n].logical.name;
    ASSERT_TRUE(theirs.count(name)) << name;
    EXPECT_EQ(bytes_of(values.memory[n]), theirs.at(name)) << name;
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
  const ModelSpec spec = odd_spec();
  const Values values = random_values(spec, DType::kF32);
  write("legacy", spec, values, kF32Legacy);
  const auto stored = take_apart(root / "legacy/model.safetensors");
  std::string stack;
  for (int e = 0; e < 3; ++e)
    stack += stored.at(
        fmt::format("model.layers.3.zaya_block.experts.local_experts.{}.linear_fc2.weight", e));
  EXPECT_EQ(stack, bytes_of(values.of("model.layers.1.mlp.experts.down_proj")));
}

TEST_F(HfModelTest, EveryTypeRoundTripsInBothLayouts) {
  const ModelSpec spec = odd_spec();
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
  const ModelSpec spec = odd_spec();
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

TEST_F(HfModelTest, ShardsAboveTheLimitAndListsThem) {
  const ModelSpec spec = odd_spec();
  const Values values = random_values(spec, DType::kF32);
  for (const HfLayout layout : {HfLayout::kNative, HfLayout::kLegacy}) {
    const std::string name(name_of(layout));
    HfWriteOptions options{layout, DType::kF32};
    options.max_file_bytes = 2000;
    write(name, spec, values, options);
    EXPECT_FALSE(std::filesystem::exists(root / (name + "/model.safetensors")));
    const Json index = Json::parse(slurp(root / (name + "/model.safetensors.index.json")));
    int64_t total = 0;
    std::set<std::string> shards;
    for (const auto& [tensor, file] : index["weight_map"].items()) shards.insert(file);
    for (const std::string& shard : shards) {
      int64_t bytes = 0;
      const auto tensors = take_apart(root / (name + "/" + shard));
      for (const auto& [tensor, data] : tensors) {
        bytes += int64_t(data.size());
        EXPECT_EQ(index["weight_map"][tensor], shard);
      }
      EXPECT_TRUE(bytes <= 2000 || tensors.size() == 1) << shard;
      total += bytes;
    }
    EXPECT_GT(shards.size(), 5u);
    EXPECT_EQ(*shards.begin(), fmt::format("model-00001-of-{:05}.safetensors", shards.size()));
    EXPECT_EQ(total, 4 * (3970 + 12));
    EXPECT_EQ(index["metadata"]["total_size"], total);
    expect_equal(values, read_all(open(name), DType::kF32));
  }
}

TEST_F(HfModelTest, ReadsAnyBox) {
  const ModelSpec spec = odd_spec();
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

TEST_F(HfModelTest, RefusesToReadAnotherModelsTensors) {
  const HfModel model = HfModel::open(*files, test_data("hf_small"));
  Values wanted = random_values(odd_spec(), DType::kF32);
  const std::string message = error_of(ErrorKind::kData, [&] { model.read(wanted.pieces[0]); });
  EXPECT_NE(message.find("[128, 32]; expected [11, 8]"), std::string::npos) << message;
  wanted.pieces[0].logical.name = "model.layers.9.input_layernorm.weight";
  error_of(ErrorKind::kData, [&] { model.read(wanted.pieces[0]); });
}

// Rewrites the one file of a directory: `change` sees name, dtype and bytes of every tensor.
struct RawTensor {
  TensorSpec spec;
  std::string bytes;
};
void rewrite(const std::string& directory,
             const std::function<void(std::vector<RawTensor>&)>& change) {
  const std::string path = directory + "/model.safetensors";
  const auto bytes = slurp(path);
  const SafetensorsHeader header = parse_safetensors(std::as_bytes(std::span(bytes)),
                                                     int64_t(bytes.size()), path, ErrorKind::kData);
  std::vector<RawTensor> tensors;
  for (const TensorEntry& entry : header.entries)
    tensors.push_back(
        {{entry.name, entry.dtype, entry.shape},
         bytes.substr(size_t(header.data_begin + entry.begin), size_t(entry.bytes()))});
  change(tensors);
  std::vector<TensorSpec> specs;
  std::string data;
  for (const RawTensor& tensor : tensors) {
    specs.push_back(tensor.spec);
    data += tensor.bytes;
  }
  spill(path, plan_safetensors(specs, {{"format", "pt"}}, HeaderStyle::kPlain).header + data);
}

TEST_F(HfModelTest, ReadsHalfPrecision) {
  const ModelSpec spec = odd_spec();
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
  const ModelSpec spec = odd_spec();
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
  const std::string message = error_of(ErrorKind::kData, [&] { open("tied"); });
  EXPECT_NE(message.find("lm_head.weight is"), std::string::npos) << message;
  EXPECT_NE(message.find("at element 4 "), std::string::npos) << message;
}

// The config of 2025 and tensors named smoe_block, as the earliest release has them.
TEST_F(HfModelTest, ReadsTheEarliestForm) {
  ModelSpec spec = odd_spec();
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
  EXPECT_TRUE(model.spec() == spec);
  expect_equal(values, read_all(model, DType::kF32));
}

TEST_F(HfModelTest, CopiesFurtherFilesAndWritesTheConfigs) {
  spill(root / "tokenizer.model", std::string("\0\1binary", 8));
  HfWriteOptions options = kF32Native;
  options.copy_files = {root / "tokenizer.model"};
  const ModelSpec spec = odd_spec();
  write("new", spec, random_values(spec, DType::kF32), options);
  EXPECT_EQ(slurp(root / "new/tokenizer.model"), std::string("\0\1binary", 8));
  EXPECT_EQ(slurp(root / "new/config.json"), to_hf_config(spec, DType::kF32, HfLayout::kNative));
  EXPECT_EQ(slurp(root / "new/generation_config.json"), to_hf_generation_config(spec));
  options.copy_files = {root / "new/config.json"};
  error_of(ErrorKind::kConfig,
           [&] { write("other", spec, random_values(spec, DType::kF32), options); });
  EXPECT_FALSE(std::filesystem::exists(root / "other"));
  EXPECT_FALSE(std::filesystem::exists(root / "other.tmp"));
}

TEST_F(HfModelTest, NeverWritesOverAnything) {
  const ModelSpec spec = odd_spec();
  const Values values = random_values(spec, DType::kF32);
  std::filesystem::create_directory(root / "there");
  const std::string message =
      error_of(ErrorKind::kConfig, [&] { write("there/", spec, values, kF32Native); });
  EXPECT_NE(message.find("there: exists already"), std::string::npos) << message;
  EXPECT_TRUE(std::filesystem::is_empty(root / "there"));
}

TEST_F(HfModelTest, WritesOnlyWholeModels) {
  const ModelSpec spec = odd_spec();
  Values values = random_values(spec, DType::kF32);
  const auto refuse = [&](const std::string& word) {
    const std::string message =
        error_of(ErrorKind::kData, [&] { write("none", spec, values, kF32Native); });
    EXPECT_NE(message.find(word), std::string::npos) << message;
    EXPECT_FALSE(std::filesystem::exists(root / "none"));
  };
  const Piece first = values.pieces.front();
  values.pieces.push_back(first);
  refuse("model.embed_tokens.weight is given twice");
  values.pieces.back().logical.name = "model.other";
  refuse("expected only the 99");
  values.pieces.pop_back();
  values.pieces.front().logical.global_shape = Shape{8, 11};
  refuse("has shape [8, 11]");
  values.pieces.erase(values.pieces.begin());
  refuse("model.embed_tokens.weight is missing");
}

// Whichever call fails: the target is absent, or complete because only its last sync failed.
TEST_F(HfModelTest, AFaultLeavesAllOrNothing) {
  ModelSpec spec = odd_spec();
  spec.num_hidden_layers = 1;
  spec.layer_types.resize(1);
  const Values values = random_values(spec, DType::kF32);
  HfWriteOptions options = kF32Native;
  options.max_file_bytes = 4000;
  int64_t calls = 0;
  for (bool finished = false; !finished; ++calls) {
    const auto memory = memory_files();
    memory->make_directories("/models");
    bool hit = false;
    const auto faulty =
        faulty_files(*memory, [&](int64_t call, std::string_view, const std::string&) {
          if (call != calls) return Fault::kNone;
          hit = true;
          return call % 2 == 0 ? Fault::kDiskFull : Fault::kIoError;
        });
    try {
      write_hf_model(*faulty, "/models/new", spec, values.pieces, options);
      finished = !hit;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kStorage);
    }
    EXPECT_FALSE(memory->stat("/models/new.tmp")) << "call " << calls;
    if (memory->stat("/models/new"))
      expect_equal(values, read_all(HfModel::open(*memory, "/models/new"), DType::kF32));
    else
      EXPECT_TRUE(hit);
  }
  EXPECT_GT(calls, 50);
}

TEST_F(HfModelTest, RemovesWhatAKilledExportLeft) {
  std::filesystem::create_directory(root / "new.tmp");
  spill(root / "new.tmp/model.safetensors", "half");
  const ModelSpec spec = odd_spec();
  const Values values = random_values(spec, DType::kF32);
  write("new", spec, values, kF32Native);
  EXPECT_FALSE(std::filesystem::exists(root / "new.tmp"));
  expect_equal(values, read_all(open("new"), DType::kF32));
}

// A config that states far more tensors than the files hold is refused before they are listed.
TEST_F(HfModelTest, HugeCountsAreRefusedEarly) {
  const ModelSpec spec = odd_spec();
  write("huge", spec, random_values(spec, DType::kF32), kF32Legacy);
  rewrite(root / "huge", [](std::vector<RawTensor>& tensors) {
    std::erase_if(tensors, [](const RawTensor& tensor) {  // nothing left to compare experts with
      return tensor.spec.name == "model.layers.1.zaya_block.router.router_mlp.4.weight";
    });
  });
  Json config = Json::parse(slurp(root / "huge/config.json"));
  config["num_experts"] = 4000;
  spill(root / "huge/config.json", config.dump());
  const std::string message = error_of(ErrorKind::kData, [&] { open("huge"); });
  EXPECT_NE(message.find("110 found; expected the 24093 of config.json"), std::string::npos)
      << message;
}

// Names are a foreign file's: they must not break the line or reach the terminal as control codes.
TEST_F(HfModelTest, NamesInMessagesArePrintable) {
  const ModelSpec spec = odd_spec();
  write("names", spec, random_values(spec, DType::kF32), kF32Native);
  rewrite(root / "names",
          [](std::vector<RawTensor>& tensors) { tensors.back().spec.name = "model.\n\x1b[31m"; });
  const std::string message = error_of(ErrorKind::kData, [&] { open("names"); });
  EXPECT_EQ(message.find('\x1b'), std::string::npos) << message;
}

// Damaged files either open or are refused as data; nothing else happens.
TEST_F(HfModelTest, FlippedBytesAreRefusedOrHarmless) {
  const ModelSpec spec = odd_spec();
  write("flip", spec, random_values(spec, DType::kF32), kF32Native);
  std::mt19937 rng(3);
  int refused = 0;
  for (const char* name : {"flip/config.json", "flip/model.safetensors"}) {
    const std::string path = root / name, good = slurp(path);
    const size_t reach = std::min(good.size(), size_t(8 + 12000));  // the header
    for (int round = 0; round < 300; ++round) {
      std::string bad = good;
      bad[rng() % reach] = char(rng());
      spill(path, bad);
      try {
        read_all(open("flip"), DType::kF32);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kData) << error.what();
        ++refused;
      }
    }
    spill(path, good);
  }
  EXPECT_GT(refused, 300);
}

}  // namespace
}  // namespace ashlar::checkpoint
