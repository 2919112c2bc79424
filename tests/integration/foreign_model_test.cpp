// Model directories of other programs in use: where they stop, how they draw, how their texts
// begin, and what is left of them after import, training and export.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/checkpoint/format/safetensors.h"
#include "tests/integration/chain_model.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Ids = std::vector<int64_t>;

constexpr const char* kByteModel = "ashlar byte tokenizer 1\n";

// 10 -> 11 -> 12 -> 13 (end of turn) -> 14 -> 15 -> 2 (end of text) -> 20 -> 21 -> ...
Follow turns() {
  Follow follow{{15, 2}, {2, 20}};
  for (int64_t id = 10; id < 15; ++id) follow[id] = id + 1;
  for (int64_t id = 20; id < 60; ++id) follow[id] = id + 1;
  return follow;
}

json generated(const Scratch& scratch, const std::string& model,
               const std::vector<std::string>& more = {"--max-tokens", "12"}) {
  std::vector<std::string> args{"generate", "--model", model,     "--ids",
                                "10",       "--json",  "--dtype", "fp32"};
  args.insert(args.end(), more.begin(), more.end());
  return json::parse(run_ok(scratch, args));
}

// The output of generate(max_new_tokens=12, do_sample=False) of transformers 5.24 on such files.
TEST(ForeignModel, StopsWhereTransformersStops) {
  const json absent, none = "none";
  const Ids text{10, 11, 12, 13, 14, 15, 2}, turn{10, 11, 12, 13};
  const Ids all{10, 11, 12, 13, 14, 15, 2, 20, 21, 22, 23, 24, 25};
  const struct {
    const char* name;
    json config, generation;  // eos_token_id, and the whole file
    Ids made;
  } cases[] = {
      {"config 2", 2, none, text},
      {"config [2, 13]", {2, 13}, none, turn},
      {"config [13, 2], generation [13, 2]", {13, 2}, {{"eos_token_id", {13, 2}}}, turn},
      {"config 2, generation [2, 13]", 2, {{"eos_token_id", {2, 13}}}, turn},
      {"config 2, generation 13", 2, {{"eos_token_id", 13}}, turn},
      {"config absent, generation 13", absent, {{"eos_token_id", 13}}, turn},
      {"config absent", absent, none, all},
      {"config []", json::array(), none, all},
      {"config -1", -1, none, all},
      {"config outside", 64, none, all},
      {"config [2, 99]", {2, 99}, none, text},
      {"config 2, generation {}", 2, json::object(), all},
      {"config 2, generation null", 2, {{"eos_token_id", nullptr}}, all},
      {"config 2, generation -1", 2, {{"eos_token_id", -1}}, all},
      {"config 2, generation [13, 99]", 2, {{"eos_token_id", {13, 99}}}, turn},
  };
  const Scratch scratch;
  for (const auto& each : cases) {
    SCOPED_TRACE(each.name);
    fs::remove_all(scratch / "m"), fs::remove_all(scratch / "root"),
        fs::remove_all(scratch / "out");
    write_chain(scratch / "m", 64, turns(), {{"eos_token_id", each.config}});
    if (each.generation != none)
      write_file(scratch / "m/generation_config.json", each.generation.dump());
    EXPECT_EQ(generated(scratch, "m")["ids"], each.made);
    run_ok(scratch, {"ckpt", "import", "m", "root"});
    EXPECT_EQ(generated(scratch, "root")["ids"], each.made);
    run_ok(scratch, {"ckpt", "export", "root", "out"});
    EXPECT_EQ(generated(scratch, "out")["ids"], each.made);
    EXPECT_EQ(generated(scratch, "out", {"--max-tokens", "12", "--ignore-eos"})["ids"], all);
  }
}

TEST(ForeignModel, GeneratesAsItsFileSays) {
  const Scratch scratch;
  write_chain(scratch / "m", 64, turns());
  const auto said = [&](const json& file, const std::vector<std::string>& flags = {}) {
    write_file(scratch / "m/generation_config.json", file.dump());
    std::vector<std::string> args{"generate", "--model", "m", "--ids", "10", "--dtype", "fp32"};
    args.insert(args.end(), flags.begin(), flags.end());
    const Result result = run(scratch, args);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.err;
  };
  const json draw{
      {"do_sample", true}, {"temperature", 0.6}, {"top_p", 0.9}, {"eos_token_id", {2, 13}}};
  const std::string place = "m/generation_config.json, and flags: ";
  EXPECT_TRUE(contains(said(draw), place +
                                       "temperature 0.6, top-k 50, top-p 0.9, at most 64 tokens, "
                                       "stops at 2, 13\n"));
  EXPECT_TRUE(contains(said(draw, {"--temperature", "0", "--max-tokens", "3"}),
                       place + "greedy, at most 3 tokens, stops at 2, 13\n"));
  EXPECT_TRUE(contains(said(draw, {"--top-k", "7", "--top-p", "1", "--ignore-eos"}),
                       place + "temperature 0.6, top-k 7, at most 64 tokens, nothing stops it\n"));
  EXPECT_TRUE(contains(said(draw, {"--min-p", "0.1", "--repetition-penalty", "1.5"}),
                       place +
                           "temperature 0.6, top-k 50, top-p 0.9, min-p 0.1, repetition penalty "
                           "1.5, at most 64 tokens, stops at 2, 13\n"));
  const json greedy{{"temperature", 0.6}, {"max_new_tokens", 5}, {"repetition_penalty", 1.0}};
  const std::string quiet = said(greedy);
  EXPECT_TRUE(contains(quiet, place + "greedy, at most 5 tokens, nothing stops it\n")) << quiet;
  EXPECT_FALSE(contains(quiet, "not followed")) << quiet;
  EXPECT_TRUE(contains(said({{"max_length", 4}}), "greedy, at most 3 tokens"));
  const std::string named = said({{"typical_p", 0.9}, {"no_such_member", "x"}, {"num_beams", 4}});
  EXPECT_TRUE(contains(named,
                       "m/generation_config.json: not followed: no_such_member \"x\", num_beams 4, "
                       "typical_p 0.9\n"))
      << named;
  write_file(scratch / "m/generation_config.json", R"({"temperature": "hot", "do_sample": true})");
  const Result bad = run(scratch, {"generate", "--model", "m", "--ids", "10"});
  EXPECT_EQ(bad.code, 24);
  EXPECT_TRUE(contains(bad.err, "temperature is \"hot\"; expected a number")) << bad.err;
}

// a -> b -> <|im_end|>, with byte tokens and two that were added behind them.
constexpr int64_t kA = 4 + 'a', kB = 4 + 'b', kEnd = 260, kStart = 261;

const std::map<std::string, std::string>& chat_files() {
  static const std::map<std::string, std::string> kFiles = {
      {"tokenizer.model", kByteModel},
      {"tokenizer_config.json",
       R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true, "bos_token": "<s>",
           "eos_token": "<|im_end|>", "model_max_length": 1000000000000000019884624838656,
           "added_tokens_decoder": {"260": {"content": "<|im_end|>", "special": true},
                                    "261": {"content": "<|im_start|>", "special": true}}})"},
      {"special_tokens_map.json", R"({"eos_token": "<|im_end|>"})"},
      {"added_tokens.json", R"({"<|im_end|>": 260, "<|im_start|>": 261})"},
      {"chat_template.jinja", "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.content }}"},
      {"generation_config.json",
       "{\"eos_token_id\": [260, 1],\n \"temperature\": 0.6, \"typical_p\": 0.9}"}};
  return kFiles;
}

void write_chat(const Scratch& scratch, const std::string& name, DType dtype = DType::kF32) {
  write_chain(scratch / name, 264, {{kA, kB}, {kB, kEnd}, {kEnd, kA}},
              {{"eos_token_id", {kEnd, 1}}, {"bos_token_id", 2}}, dtype);
  for (const auto& [file, content] : chat_files()) write_file(scratch / name / file, content);
}

void expect_chat_files(const fs::path& directory) {
  for (const auto& [file, content] : chat_files()) {
    ASSERT_TRUE(fs::exists(directory / file)) << directory / file;
    EXPECT_EQ(read_file(directory / file), content) << file;
  }
}

TEST(ForeignModel, KeepsItsFilesFromImportToExport) {
  const Scratch scratch;
  write_chat(scratch, "m");
  write_file(scratch / "m/LICENSE", "free");
  const Result imported = run(scratch, {"ckpt", "import", "m", "root"});
  EXPECT_EQ(imported.code, 0) << imported.err;
  EXPECT_TRUE(contains(imported.err, "not kept: LICENSE\n")) << imported.err;
  EXPECT_TRUE(contains(imported.err, "not followed: typical_p 0.9")) << imported.err;
  expect_chat_files(scratch / "root/step-000000000000/extra");
  EXPECT_EQ(run(scratch, {"ckpt", "verify", "root/step-000000000000"}).code, 0);
  run_ok(scratch, {"ckpt", "export", "root", "out"});
  expect_chat_files(scratch / "out");
  run_ok(scratch, {"ckpt", "average", "root", "m", "--out", "mean"});
  run_ok(scratch, {"ckpt", "export", "mean", "out2"});
  expect_chat_files(scratch / "out2");
  run_ok(scratch, {"ckpt", "average", "root", "--to", "hf", "--out", "out3"});
  expect_chat_files(scratch / "out3");
  for (const char* name : {"out", "out2", "out3"}) {
    const json config = json::parse(read_file(scratch / name / "config.json"));
    EXPECT_EQ(config["eos_token_id"], (Ids{kEnd, 1}));
    EXPECT_EQ(config["dtype"], "float32");
    EXPECT_EQ(read_file(scratch / name / "model.safetensors"),
              read_file(scratch / "m/model.safetensors"));
  }
  // Every one of these files has a checksum.
  const fs::path extra = scratch / "root/step-000000000000/extra/chat_template.jinja";
  std::string text = read_file(extra);
  text[3] ^= 1;
  write_file(extra, text);
  EXPECT_EQ(run(scratch, {"ckpt", "verify", "root/step-000000000000"}).code, 1);
}

std::vector<std::string> tuned(const std::string& model,
                               const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = train_args(
      {"init.model=" + model, "train.steps=3", "train.eval_every=0", "checkpoint.every=2",
       "train.precision=fp32", "optim.matrices=adamw", "model.vocab_size=264",
       "model.hidden_size=264", "model.num_hidden_layers=1", "model.num_key_value_heads=4",
       "model.layer_types=full_attention", "model.intermediate_size=8",
       "model.tie_word_embeddings=false", "model.max_position_embeddings=256",
       "model.eos_token_id=[260, 1]", "model.bos_token_id=2", "model.rms_norm_eps=1e-5"});
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(ForeignModel, KeepsItsFilesThroughTraining) {
  const Scratch scratch;
  write_chat(scratch, "m", DType::kF16);
  write_file(scratch / "a.txt", read_file(fs::path(kData) / "vectors/stones.txt"));
  run_ok(scratch, {"data", "prepare", "--input", "a.txt", "--tokenizer", "m/tokenizer.model",
                   "--out", "text"});
  // The tokenizer's files say that texts begin with an id, and the data has it.
  const json sidecar = json::parse(read_file(scratch / "text.json"));
  EXPECT_EQ(sidecar["tokenizer"]["bos_id"], 2);
  const Result first = run(scratch, tuned("m", {"train.steps=2"}));
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_FALSE(contains(first.err, "begin with")) << first.err;
  fs::rename(scratch / "m", scratch / "gone");  // later starts have all from the checkpoint
  const Result second = run(scratch, tuned("m"));
  EXPECT_EQ(second.code, 0) << second.err;
  for (const int step : {2, 3}) expect_chat_files(step_directory(scratch / "run", step) / "extra");
  const Result exported = run(scratch, {"ckpt", "export", "run/checkpoints", "out"});
  EXPECT_EQ(exported.code, 0) << exported.err;
  expect_chat_files(scratch / "out");
  EXPECT_TRUE(contains(exported.out, "native layout, fp16, from")) << exported.out;
  EXPECT_TRUE(contains(exported.err, " values are rounded to fp16")) << exported.err;
  const json config = json::parse(read_file(scratch / "out/config.json"));
  EXPECT_EQ(config["eos_token_id"], (Ids{kEnd, 1}));
  EXPECT_EQ(config["dtype"], "float16");
  EXPECT_TRUE(contains(read_file(scratch / "out/model.safetensors"), "\"dtype\":\"F16\""));
}

TEST(ForeignModel, LeavesTheFilesOfAnotherTokenizer) {
  const Scratch scratch;
  write_chat(scratch, "m");
  fs::remove(scratch / "m/tokenizer.model");
  prepare_text(scratch);
  const Result trained = run(scratch, tuned("m", {"model.eos_token_id=1"}));
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_TRUE(contains(trained.err, "m has no tokenizer.model to compare")) << trained.err;
  const Result exported = run(scratch, {"ckpt", "export", "run/checkpoints", "out"});
  EXPECT_EQ(exported.code, 0) << exported.err;
  EXPECT_FALSE(fs::exists(scratch / "out/chat_template.jinja"));
  EXPECT_TRUE(contains(exported.err, "the tokenizer knows 260 ids but the embedding has 264 rows"))
      << exported.err;
  const json config = json::parse(read_file(scratch / "out/tokenizer_config.json"));
  EXPECT_EQ(config["add_bos_token"], false);
  EXPECT_EQ(config["eos_token"], "</s>");
  // The recipe states another stop id; all else of the file stays.
  const json generation = json::parse(read_file(scratch / "out/generation_config.json"));
  EXPECT_EQ(generation, json::parse(R"({"eos_token_id": 1, "temperature": 0.6,
                                        "typical_p": 0.9})"));
}

TEST(ForeignModel, WarnsWhereDataBeginOtherwise) {
  const Scratch scratch;
  write_chat(scratch, "m");
  write_file(scratch / "a.txt", read_file(fs::path(kData) / "vectors/stones.txt"));
  run_ok(scratch, {"data", "prepare", "--input", "a.txt", "--tokenizer", "m/tokenizer.model",
                   "--out", "text", "--no-bos"});
  const std::string differs =
      "text: its documents begin with nothing, but texts of the model with id 2 "
      "(m/tokenizer_config.json: add_bos_token); prepare it again with --bos\n";
  const Result trained = run(scratch, tuned("m", {"data.train=text"}));
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_TRUE(contains(trained.err, differs)) << trained.err;
  const Result eval = run(scratch, {"eval", "--model", "m", "--data", "text", "--length", "16",
                                    "--max-samples", "2", "--part", "all"});
  EXPECT_EQ(eval.code, 0) << eval.err;
  EXPECT_TRUE(contains(eval.err, differs)) << eval.err;
}

TEST(ForeignModel, DataSaysHowTextsOfARunFromASeedBegin) {
  const Scratch scratch;
  write_file(scratch / "a.txt", read_file(fs::path(kData) / "vectors/stones.txt"));
  for (const bool bos : {false, true}) {
    const std::string name = bos ? "with" : "without";
    run_ok(scratch, {"data", "prepare", "--input", "a.txt", "--tokenizer", "byte", "--out", name,
                     bos ? "--bos" : "--no-bos"});
    run_ok(scratch, train_args({"data.train=" + name, "train.run_dir=run-" + name,
                                "train.eval_every=0", "train.steps=1"}));
    const json made = json::parse(
        run_ok(scratch, {"generate", "--model", "run-" + name + "/checkpoints", "--prompt", "ab",
                         "--max-tokens", "1", "--json", "--ignore-eos"}));
    const Ids ids = made["ids"].get<Ids>();
    EXPECT_EQ(Ids(ids.begin(), ids.end() - 1), bos ? (Ids{2, kA, kB}) : (Ids{kA, kB}));
    run_ok(scratch, {"ckpt", "export", "run-" + name + "/checkpoints", "hf-" + name});
    const json config = json::parse(read_file(scratch / ("hf-" + name) / "tokenizer_config.json"));
    EXPECT_EQ(config["add_bos_token"], bos);
    const json tokenizer = json::parse(read_file(scratch / ("hf-" + name) / "tokenizer.json"));
    EXPECT_EQ(tokenizer["post_processor"].is_null(), !bos);
    const json again = json::parse(
        run_ok(scratch, {"generate", "--model", "hf-" + name, "--prompt", "ab", "--max-tokens", "1",
                         "--json", "--ignore-eos", "--dtype", "fp32"}));
    const Ids twice = again["ids"].get<Ids>();
    EXPECT_EQ(Ids(twice.begin(), twice.end() - 1), Ids(ids.begin(), ids.end() - 1));
  }
}

TEST(ForeignModel, BeginsThePromptAsItsFilesSay) {
  const Scratch scratch;
  write_chat(scratch, "m");
  const auto ids = [&](const std::vector<std::string>& prompt) {
    std::vector<std::string> args{"generate", "--model",       "m", "--max-tokens", "1",
                                  "--json",   "--temperature", "0"};
    args.insert(args.end(), prompt.begin(), prompt.end());
    const Ids made = json::parse(run_ok(scratch, args))["ids"].get<Ids>();
    return Ids(made.begin(), made.end() - 1);
  };
  EXPECT_EQ(ids({"--prompt", "ab"}), (Ids{2, kA, kB}));
  EXPECT_EQ(ids({"--prompt", ""}), (Ids{2}));
  EXPECT_EQ(ids({"--ids", "101,102"}), (Ids{kA, kB}));  // a user's own stay as they are
  write_file(scratch / "m/tokenizer_config.json", R"({"add_bos_token": false})");
  EXPECT_EQ(ids({"--prompt", "ab"}), (Ids{kA, kB}));
}

TEST(ForeignModel, ShowsAddedTokens) {
  const Scratch scratch;
  write_chat(scratch, "m");
  const std::vector<std::string> args{"generate",     "--model", "m",       "--ids", "101",
                                      "--max-tokens", "4",       "--dtype", "fp32"};
  std::vector<std::string> on = args;
  on.push_back("--ignore-eos");
  EXPECT_EQ(run_ok(scratch, on), "ab<|im_end|>ab\n");
  EXPECT_EQ(run_ok(scratch, args), "ab\n");
  const Result said = run(scratch, {"generate", "--model", "m", "--prompt", "<|im_start|>a",
                                    "--max-tokens", "1", "--dtype", "fp32"});
  EXPECT_TRUE(
      contains(said.err, "<|im_start|> in the prompt is read as characters, not as token 261"))
      << said.err;
}

// Standard output is a terminal, a pipe or a file.
TEST(ForeignModel, ControlCharactersDoNotReachATerminal) {
  const Scratch scratch;
  Follow follow;
  const std::string text = "a\x1b[m\tx\ny\x7f\r\xc2\x9bz";
  for (size_t i = 0; i + 1 < text.size(); ++i)
    follow[4 + uint8_t(text[i])] = 4 + uint8_t(text[i + 1]);
  follow[4 + 'z'] = 1;
  write_chain(scratch / "m", 264, follow, {{"eos_token_id", 1}});
  write_file(scratch / "m/tokenizer.model", kByteModel);
  const std::vector<std::string> args{"generate", "--model", "m", "--prompt", "a"};
  EXPECT_EQ(run_ok(scratch, args), text + "\n");
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(grantpt(terminal), 0);
  ASSERT_EQ(unlockpt(terminal), 0);
  char name[64] = {};
  ASSERT_EQ(ptsname_r(terminal, name, sizeof name), 0);
  const int other = open(name, O_RDWR | O_NOCTTY);
  ASSERT_GE(other, 0);
  const Result result = run(scratch, args, [other] { dup2(other, STDOUT_FILENO); });
  EXPECT_EQ(result.code, 0) << result.err;
  std::string shown(256, '\0');
  const ssize_t got = read(terminal, shown.data(), shown.size());
  close(other), close(terminal);
  ASSERT_GT(got, 0);
  shown.resize(size_t(got));
  std::erase(shown, '\r');  // a terminal ends its lines so
  EXPECT_EQ(shown, "a?[m\tx\ny????z\n");
}

TEST(ForeignModel, ExportKeepsTheTypeAndSaysWhatAnotherLoses) {
  const Scratch scratch;
  for (const auto& [dtype, name] : {std::pair{DType::kF16, "fp16"},
                                    {DType::kBF16, "bf16"},
                                    {DType::kF32, "fp32"},
                                    {DType::kF64, "fp64"}}) {
    const std::string model = std::string("m-") + name, root = model + "-root",
                      out = model + "-out";
    write_chain(scratch / model, 64, turns(), {}, dtype);
    run_ok(scratch, {"ckpt", "import", model, root});
    const Result exported = run(scratch, {"ckpt", "export", root, out});
    EXPECT_EQ(exported.code, 0) << exported.err;
    EXPECT_TRUE(contains(exported.out, std::string("native layout, ") + name)) << exported.out;
    EXPECT_FALSE(contains(exported.err, "rounded")) << exported.err;
    EXPECT_EQ(read_file(scratch / model / "model.safetensors"),
              read_file(scratch / out / "model.safetensors"));
    EXPECT_EQ(json::parse(read_file(scratch / out / "config.json"))["dtype"],
              json::parse(read_file(scratch / model / "config.json"))["dtype"]);
  }
  const Result bad = run(scratch, {"ckpt", "export", "m-fp32-root", "x", "--dtype", "fp8"});
  EXPECT_EQ(bad.code, 2);
  EXPECT_TRUE(contains(bad.err, "expected source, bf16, fp16, fp32 or fp64")) << bad.err;
}

}  // namespace
}  // namespace ashlar::integration
