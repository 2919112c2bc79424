// Hugging Face directories: what is written, and that it is written whole or not at all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "tests/models/hf_directory.h"

namespace ashlar::models {
namespace {

class HfWriteTest : public HfDirectoryTest {};

TEST_F(HfWriteTest, ShardsAboveTheLimitAndListsThem) {
  const ModelKeys spec = odd_spec();
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

TEST_F(HfWriteTest, WritesFurtherFilesAndTheConfigs) {
  HfWriteOptions options = kF32Native;
  options.files = {{"tokenizer.model", std::string("\0\1binary", 8)}, {"more.json", "{}"}};
  const ModelKeys spec = odd_spec();
  write("new", spec, random_values(spec, DType::kF32), options);
  EXPECT_EQ(slurp(root / "new/tokenizer.model"), std::string("\0\1binary", 8));
  EXPECT_EQ(slurp(root / "new/more.json"), "{}");
  EXPECT_EQ(slurp(root / "new/config.json"),
            to_hf_config(model_of(spec), DType::kF32, HfLayout::kNative));
  EXPECT_EQ(slurp(root / "new/generation_config.json"), to_hf_generation_config(model_of(spec)));
  options.files["config.json"] = "{}";
  message_of(ErrorKind::kConfig,
             [&] { write("other", spec, random_values(spec, DType::kF32), options); });
  EXPECT_FALSE(std::filesystem::exists(root / "other"));
  EXPECT_FALSE(std::filesystem::exists(root / "other.tmp"));
}

TEST_F(HfWriteTest, EachTensorHasTheTypeThatIsAskedOfIt) {
  const ModelKeys spec = odd_spec();
  const Values values = random_values(spec, DType::kF32);
  HfWriteOptions options;
  options.types = ElementTypes{DType::kF16,
                               {{"model.embed_tokens.weight", DType::kF32},
                                {"model.norm.weight", DType::kBF16},
                                {"model.layers.0.mlp.experts.down_proj", DType::kF64}}};
  for (const HfLayout layout : {HfLayout::kNative, HfLayout::kLegacy}) {
    options.layout = layout;
    const std::string name(name_of(layout));
    write(name, spec, values, options);
    const HfModel model = open(name);
    for (const LogicalTensor& tensor : model.tensors())
      EXPECT_EQ(tensor.dtype, options.types->of(tensor.name)) << tensor.name;
    EXPECT_EQ(Json::parse(slurp(root / (name + "/config.json")))["dtype"], "float16");
    EXPECT_EQ(types_of(model.tensors()), *options.types);
  }
}

TEST_F(HfWriteTest, SaysWhatANarrowerTypeLoses) {
  const ModelKeys spec = odd_spec();
  const Values values = random_values(spec, DType::kF64);
  const auto set = [&](const std::string& name, std::vector<double> numbers) {
    for (const Piece& piece : values.pieces) {
      std::fill_n(piece.data.as<double>(), piece.data.numel(), 1.0);
      if (piece.logical.name == name)
        std::copy(numbers.begin(), numbers.end(), piece.data.as<double>());
    }
  };
  const auto stats = [&](const std::string& name, DType dtype) {
    HfWriteOptions options;
    options.dtype = dtype;
    return write_hf_model(*posix_files(), root / name, model_of(spec),
                          TensorsInMemory(values.pieces), options);
  };
  set("model.norm.weight", {1.0 + 0x1p-9, 1e-9, 0x1p-24, -0.0, 65504, 1.0 + 0x1p-30});
  const HfWriteStats half = stats("f16", DType::kF16);
  EXPECT_EQ(half.values, 3970 + 12);
  EXPECT_EQ(half.changed, 2);  // 1e-9 and the last; 1 + 2^-9 has ten bits behind the point
  EXPECT_EQ(half.vanished, 1);
  const HfWriteStats brain = stats("bf16", DType::kBF16);
  EXPECT_EQ(brain.changed, 4);  // 2^-24 and -0 stay
  EXPECT_EQ(brain.vanished, 0);
  EXPECT_EQ(stats("f32", DType::kF32).changed, 2);  // 1e-9 is no float
  EXPECT_EQ(stats("f64", DType::kF64).changed, 0);
  set("model.norm.weight", {1.0, 65520.0});
  const std::string message =
      message_of(ErrorKind::kConfig, [&] { stats("infinite", DType::kF16); });
  EXPECT_NE(message.find("model.norm.weight holds 65520, which is beyond the range of F16"),
            std::string::npos)
      << message;
  EXPECT_FALSE(std::filesystem::exists(root / "infinite"));
  // Nothing is lost where the source is not finite: rows that no token has may hold anything.
  set("model.norm.weight", {std::nan(""), -std::numeric_limits<double>::infinity()});
  EXPECT_EQ(stats("not-finite", DType::kF16).changed, 0);
}

TEST_F(HfWriteTest, NeverWritesOverAnything) {
  const ModelKeys spec = odd_spec();
  const Values values = random_values(spec, DType::kF32);
  std::filesystem::create_directory(root / "there");
  const std::string message =
      message_of(ErrorKind::kConfig, [&] { write("there/", spec, values, kF32Native); });
  EXPECT_NE(message.find("there exists already"), std::string::npos) << message;
  EXPECT_TRUE(std::filesystem::is_empty(root / "there"));
}

// Whichever call fails: the target is absent, or complete because only its last sync failed.
TEST_F(HfWriteTest, AFaultLeavesAllOrNothing) {
  ModelKeys spec = odd_spec();
  spec.num_hidden_layers = 1;
  spec.layer_types.resize(1);
  const Values values = random_values(spec, DType::kF32);
  HfWriteOptions options = kF32Native;
  options.max_file_bytes = 4000;
  options.num_threads = 1;  // so that calls have one order
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
      write_hf_model(*faulty, "/models/new", model_of(spec), values.pieces, options);
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

TEST_F(HfWriteTest, NamesWhatAKilledExportLeft) {
  std::filesystem::create_directory(root / "new.17.tmp");
  spill(root / "new.17.tmp/model.safetensors", "half");
  spill(root / "new.tmp", "of another program");
  std::vector<std::string> lines;
  Log log([&](std::string_view line) { lines.emplace_back(line); });
  const ModelKeys spec = odd_spec();
  const Values values = random_values(spec, DType::kF32);
  HfWriteOptions options = kF32Native;
  options.log = &log;
  write("new", spec, values, options);
  ASSERT_FALSE(lines.empty());
  EXPECT_TRUE(
      lines[0].ends_with("new.17.tmp was left by an export that was killed, or another one "
                         "is writing it"))
      << lines[0];
  EXPECT_EQ(slurp(root / "new.17.tmp/model.safetensors"), "half");
  EXPECT_EQ(slurp(root / "new.tmp"), "of another program");
  expect_equal(values, read_all(open("new"), DType::kF32));
}

}  // namespace
}  // namespace ashlar::models
