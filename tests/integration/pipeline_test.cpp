// From text to samples over the command line: every subcommand on what the one before it left.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

using nlohmann::json;

json score(const Scratch& scratch, const std::string& model) {
  return json::parse(run_ok(
      scratch, {"score", "--model", model, "--ids", "40,7,100,9,41,200", "--dtype", "fp32"}));
}

TEST(Pipeline, InfoOfManyFilesIsShort) {
  const Scratch scratch;
  std::vector<std::string> args{"data",       "prepare", "--tokenizer", "byte",   "--documents",
                                "blank-line", "--out",   "many",        "--input"};
  for (int i = 0; i < 30; ++i) {
    args.push_back(fmt::format("{}.txt", i));
    write_file(scratch / args.back(), "one\n\ntwo\n");
  }
  const std::string info = run_ok(scratch, args);
  EXPECT_EQ(count_of(info, ".txt (9 B, 2 documents)"), 8) << info;
  EXPECT_TRUE(contains(info, "and from   22 more files (198 B, 44 documents)")) << info;
}

TEST(Pipeline, BadDocumentsAreLeftOutOnDemand) {
  const Scratch scratch;
  write_file(scratch / "a.jsonl", "{\"text\": \"one\"}\n{\"text\": null}\n{\"text\": \"two\"}\n");
  std::vector<std::string> args{"data",  "prepare", "--tokenizer", "byte",
                                "--out", "x",       "--input",     "a.jsonl"};
  const Result refused = run(scratch, args);
  EXPECT_EQ(refused.code, 24);
  EXPECT_TRUE(contains(refused.err, "--skip-bad")) << refused.err;
  args.push_back("--skip-bad");
  const Result result = run(scratch, args);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(contains(result.err, "1 bad documents were left out")) << result.err;
}

TEST(Pipeline, TokenizerDataTrainEvalGenerate) {
  const Scratch scratch;
  const std::string text = kData + "/vectors/stones.txt";
  run_ok(scratch, {"tokenizer", "train", "--input", text, "--vocab", "320", "--out", "tok.model"});
  const std::string prepared =
      run_ok(scratch, {"data", "prepare", "--input", text, "--documents", "blank-line",
                       "--tokenizer", "tok.model", "--out", "text"});
  EXPECT_TRUE(contains(prepared, "320 ids")) << prepared;
  EXPECT_EQ(run_ok(scratch, {"data", "info", "text"}), prepared);

  run_ok(scratch, train_args());
  const auto steps = read_steps(scratch / "run");
  ASSERT_EQ(steps.size(), 30u);
  const double first = std::stod(steps.at(1)[0].loss), last = std::stod(steps.at(30)[0].loss);
  EXPECT_NEAR(first, std::log(320.0), 0.5);
  EXPECT_LT(last, first - 0.3);

  const json listed = json::parse(run_ok(scratch, {"ckpt", "list", "run/checkpoints", "--json"}));
  ASSERT_EQ(listed.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(listed[i]["state"], "complete");
    EXPECT_EQ(listed[i]["recovery_choice"], i == 2) << listed.dump();
  }
  const std::string step = "run/checkpoints/step-000000000030";
  EXPECT_TRUE(contains(run_ok(scratch, {"ckpt", "show", step}), "step      30"));
  EXPECT_TRUE(
      contains(run_ok(scratch, {"ckpt", "show", step, "--tensors"}), "model.embed_tokens.weight"));
  for (const char* level : {"quick", "files", "deep"})
    EXPECT_TRUE(
        contains(run_ok(scratch, {"ckpt", "verify", step, "--level", level}), step + ": good"));

  const json perplexity = json::parse(
      run_ok(scratch, {"eval", "--model", "run/checkpoints", "--data", "text", "--length", "32",
                       "--part", "all", "--dtype", "fp32", "--json"}));
  EXPECT_NEAR(perplexity["perplexity"].get<double>(), std::exp(perplexity["loss"].get<double>()),
              1e-9);
  EXPECT_NEAR(perplexity["loss"].get<double>(), last, 0.5);

  const std::vector<std::string> generate{
      "generate", "--model", "run/checkpoints", "--prompt", "Plumb road",
      "--seed",   "3",       "--top-k",         "20",       "--temperature",
      "0.9",      "--json",  "--max-tokens",    "12",       "--ignore-eos"};
  const json made = json::parse(run_ok(scratch, generate));
  EXPECT_TRUE(made["text"].get<std::string>().starts_with("Plumb road")) << made.dump();
  EXPECT_GT(made["ids"].size(), 12u);
  EXPECT_EQ(json::parse(run_ok(scratch, generate)), made);
  EXPECT_TRUE(
      run_ok(scratch, {"generate", "--model", step, "--prompt", "Plumb road", "--max-tokens", "3"})
          .starts_with("Plumb road"));
  const json alone = json::parse(run_ok(scratch, {"generate", "--model", step, "--prompt", "",
                                                  "--max-tokens", "3", "--json", "--ignore-eos"}));
  EXPECT_EQ(alone["ids"].size(), 4u) << alone;
  EXPECT_EQ(alone["ids"][0], 2) << "bos of the byte tokenizer";
}

TEST(Pipeline, SeveralPromptsAreContinuedAtOnce) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args());
  const auto generate = [&](std::vector<std::string> args) {
    args.insert(args.begin(), {"generate", "--model", "run/checkpoints", "--max-tokens", "6",
                               "--temperature", "0", "--ignore-eos"});
    return run(scratch, args);
  };
  const std::vector<std::string> prompts{"Plumb road", "A", "The stones of the wall"};
  std::string lines, wanted, text;
  std::vector<std::string> flags;
  for (size_t i = 0; i < prompts.size(); ++i) {
    json one = json::parse(generate({"--prompt", prompts[i], "--json"}).out);
    wanted += R"({"index":)" + std::to_string(i) + "," + one.dump().substr(1) + "\n";
    text += std::string(i > 0 ? "\n" : "") + "==> " + std::to_string(i + 1) + " of 3 <==\n" +
            generate({"--prompt", prompts[i]}).out;
    lines += json{{"prompt", prompts[i]}, {"other", i}}.dump() + "\n";
    flags.insert(flags.end(), {"--prompt", prompts[i]});
  }
  write_file(scratch / "p.jsonl", lines);
  EXPECT_EQ(generate({"--prompt-file", "p.jsonl", "--json"}).out, wanted);
  EXPECT_EQ(generate({"--prompt-file", "p.jsonl", "--json", "--slots", "2"}).out, wanted);
  EXPECT_EQ(generate({"--prompt-file", "p.jsonl"}).out, text);
  EXPECT_EQ(generate(flags).out, text);
  // Any other file is one text.
  write_file(scratch / "p.json", prompts[0]);
  EXPECT_EQ(generate({"--prompt-file", "p.json"}).out, generate({"--prompt", prompts[0]}).out);

  const std::string long_line = json{{"prompt", std::string(5000, 'x')}}.dump();
  for (const auto& [content, message] :
       {std::pair<std::string, std::string>{"", "p.jsonl: it holds nothing"},
        {lines + "{\"text\": \"a\"}", "p.jsonl line 4: the object has no member \"prompt\""},
        {"Water", "p.jsonl line 1: not valid JSON at byte 1"},
        {lines + long_line + "\n" + lines, "p.jsonl line 4: the prompt has 5000 tokens; run"}}) {
    write_file(scratch / "p.jsonl", content);
    const Result refused = generate({"--prompt-file", "p.jsonl"});
    EXPECT_EQ(refused.code, 24) << refused.err;
    EXPECT_TRUE(refused.err.starts_with("ashlar: " + message)) << refused.err;
    EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
    EXPECT_EQ(refused.out, "");
  }
}

TEST(Pipeline, ExportsAndImportsScoreAsTheCheckpoint) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args());
  const json expected = score(scratch, "run/checkpoints");
  for (const std::string layout : {"native", "legacy"}) {
    SCOPED_TRACE(layout);
    run_ok(scratch,
           {"ckpt", "export", "run/checkpoints", layout, "--layout", layout, "--dtype", "fp32"});
    EXPECT_EQ(score(scratch, layout), expected);
    run_ok(scratch, {"ckpt", "import", layout, layout + "_root"});
    EXPECT_EQ(score(scratch, layout + "_root"), expected);
    run_ok(scratch, {"ckpt", "verify", layout + "_root/step-000000000000"});
  }
  // Through bf16 and back the weights no longer change.
  run_ok(scratch, {"ckpt", "export", "run/checkpoints", "half"});
  run_ok(scratch, {"ckpt", "import", "half", "half_root"});
  run_ok(scratch, {"ckpt", "export", "half_root", "half_again"});
  EXPECT_EQ(read_tree(scratch / "half"), read_tree(scratch / "half_again"));
  for (const std::string file : {"tokenizer.model", "tokenizer.json", "tokenizer_config.json",
                                 "special_tokens_map.json", "generation_config.json"})
    EXPECT_TRUE(std::filesystem::exists(scratch / "half" / file)) << file;
}

TEST(Pipeline, MixturesOfSeveralExpertsATokenTrainScoreAndTravel) {
  const Scratch scratch;
  prepare_text(scratch);
  std::vector<std::string> overrides = {"model.layer_types=[\"attention+mlp\", \"attention+moe\"]",
                                        "model.intermediate_size=40",
                                        "model.qk_norm=rms",
                                        "model.router=linear",
                                        "model.num_experts_per_tok=2",
                                        "moe.router_aux_loss_coef=0.02",
                                        "moe.router_z_loss_coef=0.001"};
  run_ok(scratch, train_args(overrides));
  std::istringstream metrics(read_file(scratch / "run/metrics.jsonl"));
  int64_t num_rows = 0;
  for (std::string line; std::getline(metrics, line);) {
    const json row = json::parse(line);
    if (row.contains("event")) continue;
    ++num_rows;
    EXPECT_NEAR(row["aux_loss"].get<double>(), 0.04, 0.01);  // even loads: 0.02 x 2
    EXPECT_GT(row["z_loss"].get<double>(), 0.0);
    EXPECT_GT(row["load_entropy"].get<double>(), 0.5);
  }
  EXPECT_EQ(num_rows, 30);

  const json expected = score(scratch, "run/checkpoints");
  ASSERT_EQ(expected["experts"].size(), 1u);  // of the block that has some
  for (const json& chosen : expected["experts"][0]) {
    ASSERT_EQ(chosen.size(), 2u);
    EXPECT_LT(chosen[0], chosen[1]);
  }
  run_ok(scratch, {"ckpt", "export", "run/checkpoints", "hf", "--dtype", "fp32"});
  EXPECT_EQ(json::parse(read_file(scratch / "hf/config.json"))["architectures"][0],
            "Qwen3MoeForCausalLM");
  EXPECT_EQ(score(scratch, "hf"), expected);
  run_ok(scratch, {"ckpt", "import", "hf", "root"});
  EXPECT_EQ(score(scratch, "root"), expected);
  // On from the weights, with biases that they do not have: refused by the key's name.
  overrides.insert(overrides.end(), {"train.run_dir=more", "init.model=hf", "train.steps=2",
                                     "optim.warmup_steps=1", "train.eval_every=0"});
  run_ok(scratch, train_args(overrides));
  overrides.insert(overrides.end(), {"train.run_dir=biased", "model.router_expert_bias=true"});
  const Result refused = run(scratch, train_args(overrides));
  EXPECT_EQ(refused.code, 2);
  EXPECT_TRUE(contains(refused.err, "model.router_expert_bias is true but hf has false"))
      << refused.err;
}

TEST(Pipeline, AnExportNamesTheOptionsThatItCannotState) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args({"train.steps=1", "train.run_dir=usual"}));
  EXPECT_FALSE(contains(run(scratch, {"ckpt", "export", "usual/checkpoints", "usual_hf"}).err,
                        "config.json has no key"));
  run_ok(scratch,
         train_args({"train.steps=1", "moe.skip_output=identity", "model.qk_norm_eps=1e-6"}));
  const Result result = run(scratch, {"ckpt", "export", "run/checkpoints", "hf"});
  EXPECT_EQ(result.code, 0);
  for (const std::string option : {"moe.skip_output=identity", "model.qk_norm_eps=1e-06"})
    EXPECT_TRUE(contains(result.err, "warning: hf: config.json has no key for " + option + ";"))
        << result.err;
}

TEST(Pipeline, AnExportNamesWhatTransformersCannotFollowOfTheTokenizer) {
  const Scratch scratch;
  std::filesystem::copy(kData + "/hf_small", scratch / "model");
  for (const auto& [tokenizer, setting] : std::vector<std::pair<std::string, std::string>>{
           {"bpe_no_prefix", ""}, {"unigram_default", "model_type=unigram"}}) {
    std::filesystem::copy_file(kData + "/vectors/" + tokenizer + ".model",
                               scratch / "model/tokenizer.model",
                               std::filesystem::copy_options::overwrite_existing);
    const Result result = run(scratch, {"ckpt", "export", "model", tokenizer});
    EXPECT_EQ(result.code, 0);
    if (setting.empty())
      EXPECT_FALSE(contains(result.err, "cannot follow")) << result.err;
    else
      EXPECT_TRUE(contains(result.err,
                           "warning: " + tokenizer + ": tokenizer.json cannot follow " + setting))
          << result.err;
  }
}

// The name of a directory is bytes, not text; JSON holds it as well as it can.
TEST(Pipeline, DirectoriesMayHaveAnyName) {
  const Scratch scratch;
  const std::string model = "hf_\xff", root = "root_\xff";
  std::filesystem::copy(kData + "/hf_small", scratch / model);
  run_ok(scratch, {"ckpt", "import", model, root});
  const json steps = json::parse(run_ok(scratch, {"ckpt", "list", root, "--json"}));
  EXPECT_EQ(steps.size(), 1u) << steps;
  run_ok(scratch, {"ckpt", "show", root});
}

TEST(Pipeline, LogitsFileAgreesWithTheScores) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args({"train.steps=2"}));
  const json scored =
      json::parse(run_ok(scratch, {"score", "--model", "run/checkpoints", "--ids", "40,7,100",
                                   "--dtype", "fp64", "--logits", "logits.safetensors"}));
  const std::string bytes = read_file(scratch / "logits.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  const json header = json::parse(bytes.substr(8, header_bytes));
  ASSERT_EQ(header["logits"]["shape"], json({3, 320}));
  ASSERT_EQ(header["logits"]["dtype"], "F64");
  std::vector<double> logits(3 * 320);
  std::memcpy(logits.data(), bytes.data() + 8 + header_bytes, logits.size() * 8);
  const int32_t ids[] = {40, 7, 100};
  for (int t = 0; t < 2; ++t) {
    double sum = 0.0;
    for (int v = 0; v < 320; ++v) sum += std::exp(logits[size_t(t * 320 + v)]);
    EXPECT_NEAR(logits[size_t(t * 320 + ids[t + 1])] - std::log(sum),
                scored["logprobs"][size_t(t)].get<double>(), 1e-9);
  }
}

TEST(Pipeline, TrainingContinuesByItself) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args({"train.steps=20"}));
  const Result again = run(scratch, train_args({"train.steps=30"}));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(contains(again.err, "continuing after step 20")) << again.err;
  const auto steps = read_steps(scratch / "run");
  ASSERT_EQ(steps.size(), 30u);
  for (const auto& [step, lines] : steps) EXPECT_EQ(lines.size(), 1u) << step;
  // A finished run has nothing left to do and says so by exit code 0.
  const auto before = read_tree(scratch / "run/checkpoints");
  run_ok(scratch, train_args({"train.steps=30"}));
  EXPECT_EQ(read_tree(scratch / "run/checkpoints"), before);
}

TEST(Pipeline, BlendsSecondDatasetAndOtherPrecisions) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, {"data", "prepare", "--input", kData + "/vectors/stones.txt", "--documents",
                   "blank-line", "--tokenizer", "byte", "--out", "more"});
  int run_index = 0;
  for (const char* precision : {"fp32", "fp64", "bf16", "auto"}) {
    SCOPED_TRACE(precision);
    const std::string directory = "run" + std::to_string(run_index++);
    run_ok(scratch,
           train_args({"data.train=text:0.7,more:0.3", std::string("train.precision=") + precision,
                       "train.steps=6", "data.packing=best_fit", "data.sequence_length=256",
                       "train.recompute=true", "model.layer_types=alternate",
                       "model.sliding_window=9", "train.run_dir=" + directory}));
    EXPECT_EQ(read_steps(scratch / directory).size(), 6u);
  }
}

}  // namespace
}  // namespace ashlar::integration
