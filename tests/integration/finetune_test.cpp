// The commands of docs/finetune.md on a small model, from chats to what PEFT reads.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "ashlar/checkpoint/format/safetensors.h"
#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kRank = 4;

// A small Llama with a chat template.
void write_foreign_model(const Scratch& scratch) {
  prepare_text(scratch);
  run_ok(scratch, train_args({"train.run_dir=first", "train.steps=2", "train.eval_every=0",
                              "train.precision=fp32", "model.layer_types=full_attention",
                              "model.intermediate_size=40"}));
  run_ok(scratch, {"ckpt", "export", "first", "model", "--dtype", "fp32"});
  write_file(scratch / "model/chat_template.jinja",
             "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}"
             "{% if add_generation_prompt %}[assistant]{% endif %}");
}

void write_chats(const Scratch& scratch) {
  std::string chats;
  for (int i = 0; i < 24; ++i)
    chats += json{{"messages",
                   {{{"role", "user"}, {"content", "Of what is wall " + std::to_string(i) + "?"}},
                    {{"role", "assistant"}, {"content", "Of stones."}}}}}
                 .dump() +
             "\n";
  write_file(scratch / "chats.jsonl", chats);
}

std::vector<std::string> lora_args(const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = {"train",
                                   kData + "/../../recipes/lora.toml",
                                   "init.model=model",
                                   "data.train=runs/chats",
                                   "train.run_dir=runs/lora",
                                   "data.sequence_length=128",
                                   "train.global_batch=2",
                                   "data.validation_fraction=0",
                                   "train.steps=12",
                                   "train.eval_every=0",
                                   "checkpoint.every=3",
                                   "train.precision=fp32",
                                   "lora.rank=" + std::to_string(kRank),
                                   "optim.warmup_steps=1",
                                   "optim.lr=0.03"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

// The names of adapter_model.safetensors with their shapes.
std::map<std::string, std::vector<int64_t>> shapes_in(const fs::path& file) {
  const std::string bytes = read_file(file);
  const auto header = checkpoint::parse_safetensors(
      std::as_bytes(std::span(bytes)), int64_t(bytes.size()), file.string(), ErrorKind::kCorrupt);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const checkpoint::TensorEntry& entry : header.entries) shapes[entry.name] = entry.shape;
  return shapes;
}

std::string scored(const Scratch& scratch, const std::string& model) {
  json score = json::parse(run_ok(
      scratch, {"score", "--model", model, "--ids", "10,72,105,46,50,51", "--dtype", "fp32"}));
  score.erase("model");
  return score.dump();
}

TEST(Finetune, FromChatsToAnExport) {
  const Scratch scratch;
  write_foreign_model(scratch);
  write_chats(scratch);
  run_ok(scratch, {"data", "prepare", "--format", "chat", "--input", "chats.jsonl", "--tokenizer",
                   "model", "--out", "runs/chats"});
  const Result trained = run(scratch, lora_args());
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.err.find("tuning the weights of model ("), std::string::npos) << trained.err;
  const Steps steps = read_steps(scratch / "runs/lora");
  EXPECT_LT(std::stod(steps.at(12)[0].loss), std::stod(steps.at(1)[0].loss));

  run_ok(scratch, {"ckpt", "export", "runs/lora", "runs/tuned"});
  run_ok(scratch, {"ckpt", "export", "runs/lora", "runs/adapter", "--adapter"});
  EXPECT_EQ(scored(scratch, "runs/lora"), scored(scratch, "runs/tuned"));
  EXPECT_NE(scored(scratch, "runs/lora"), scored(scratch, "model"));

  const json config = json::parse(read_file(scratch / "runs/adapter/adapter_config.json"));
  EXPECT_EQ(config.at("peft_type"), "LORA");
  EXPECT_EQ(config.at("r"), kRank);
  EXPECT_EQ(config.at("lora_alpha"), 32.0);
  EXPECT_EQ(config.at("base_model_name_or_path"), "model");
  const std::set<std::string> layers = config.at("target_modules");
  EXPECT_EQ(layers, (std::set<std::string>{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                                           "up_proj", "down_proj"}));
  const auto shapes = shapes_in(scratch / "runs/adapter/adapter_model.safetensors");
  EXPECT_EQ(shapes.size(), 2u * 2 * 7);
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.";
  EXPECT_EQ(shapes.at(q + "lora_A.weight"), (std::vector<int64_t>{kRank, 32}));
  EXPECT_EQ(shapes.at(q + "lora_B.weight"), (std::vector<int64_t>{32, kRank}));

  fs::rename(scratch / "model", scratch / "moved");
  const Result gone = run(scratch, {"score", "--model", "runs/lora", "--ids", "10,72"});
  EXPECT_EQ(gone.code, 2);
  EXPECT_NE(gone.err.find("holds what was trained of model, which is not there"), std::string::npos)
      << gone.err;
  // The same files under another name are the same model.
  run_ok(scratch, lora_args({"init.model=moved", "train.steps=13"}));
  run_ok(scratch, {"score", "--model", "runs/lora", "--ids", "10,72"});
}

}  // namespace
}  // namespace ashlar::integration
