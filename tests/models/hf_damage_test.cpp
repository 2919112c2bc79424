// Hugging Face directories that are damaged, or another model's: refused as data.
#include <gtest/gtest.h>

#include "tests/models/hf_directory.h"

namespace ashlar::models {
namespace {

class HfDamageTest : public HfDirectoryTest {};

TEST_F(HfDamageTest, RefusesToReadAnotherModelsTensors) {
  const HfModel model = HfModel::open(*files, test_data("hf_small"));
  Values wanted = random_values(odd_spec(), DType::kF32);
  const std::string message = message_of(ErrorKind::kData, [&] { model.read(wanted.pieces[0]); });
  EXPECT_NE(message.find("[128, 32]; expected [11, 8]"), std::string::npos) << message;
  wanted.pieces[0].logical.name = "model.layers.9.input_layernorm.weight";
  message_of(ErrorKind::kData, [&] { model.read(wanted.pieces[0]); });
}

// A config that states far more tensors than the files hold is refused before they are listed.
TEST_F(HfDamageTest, HugeCountsAreRefusedEarly) {
  const ModelKeys spec = odd_spec();
  write("huge", spec, random_values(spec, DType::kF32), kF32Legacy);
  rewrite(root / "huge", [](std::vector<RawTensor>& tensors) {
    std::erase_if(tensors, [](const RawTensor& tensor) {  // nothing left to compare experts with
      return tensor.spec.name == "model.layers.1.zaya_block.router.router_mlp.4.weight";
    });
  });
  Json config = Json::parse(slurp(root / "huge/config.json"));
  config["num_experts"] = 4000;
  spill(root / "huge/config.json", config.dump());
  const std::string message = message_of(ErrorKind::kData, [&] { open("huge"); });
  EXPECT_NE(message.find("110 found; expected the 24093 of config.json"), std::string::npos)
      << message;
}

// Names are a foreign file's: they must not break the line or reach the terminal as control codes.
TEST_F(HfDamageTest, NamesInMessagesArePrintable) {
  const ModelKeys spec = odd_spec();
  write("names", spec, random_values(spec, DType::kF32), kF32Native);
  rewrite(root / "names",
          [](std::vector<RawTensor>& tensors) { tensors.back().spec.name = "model.\n\x1b[31m"; });
  const std::string message = message_of(ErrorKind::kData, [&] { open("names"); });
  EXPECT_EQ(message.find('\x1b'), std::string::npos) << message;
}

// Damaged files either open or are refused as data; nothing else happens.
TEST_F(HfDamageTest, FlippedBytesAreRefusedOrHarmless) {
  const ModelKeys spec = odd_spec();
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
}  // namespace ashlar::models
