// Everything malformed that a user can hand to the program: one line on stderr that names it, the
// right exit code, nothing on stdout and nothing left on the disk.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;

struct BadCase {
  std::string name;
  std::vector<std::string> args;
  int code;
  std::vector<std::string> words;  // of the message
};

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    names.insert(fs::relative(entry.path(), directory).string());
  return names;
}

void expect_refused(const Scratch& scratch, const BadCase& c) {
  SCOPED_TRACE(c.name);
  const auto before = names_in(scratch.path());
  const Result result = run(scratch, c.args);
  EXPECT_EQ(result.signal, 0) << result.err;
  EXPECT_EQ(result.code, c.code) << result.err;
  EXPECT_TRUE(result.err.starts_with("ashlar: ")) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(count_of(result.err, "ashlar: "), 1) << result.err;
  EXPECT_EQ(result.out, "");
  for (const std::string& word : c.words)
    EXPECT_NE(result.err.find(word), std::string::npos) << "'" << word << "' in: " << result.err;
  EXPECT_EQ(names_in(scratch.path()), before);
}

std::vector<BadCase> flag_cases() {
  const std::string text = kData + "/vectors/stones.txt";
  const std::string model = kData + "/hf_small";
  return {
      {"subcommand", {"trian", "x.toml"}, 2, {"ashlar: unknown 'trian'", "did you mean 'train'?"}},
      {"nested", {"ckpt", "lst", "x"}, 2, {"'lst'", "'list'"}},
      {"group_alone", {"data"}, 2, {"ashlar data", "--help"}},
      {"flag",
       {"tokenizer", "train", "--input", text, "--vocabb", "300", "--out", "t"},
       2,
       {"'--vocabb'", "did you mean '--vocab'?"}},
      {"flag_with_equals", {"score", "--modle=x", "--ids", "1,2"}, 2, {"'--modle=x'", "'--model'"}},
      {"dry_run",
       {"train", kData + "/recipes/tiny.toml", "--dryrun"},
       2,
       {"'--dryrun'", "'--dry-run'"}},
      {"plan_ranks",
       {"plan", "dry-run", kData + "/recipes/tiny.toml", "parallel.tp=2", "--ranks", "3"},
       2,
       {"3 ranks, but parallel.pp 1 x parallel.cp 1 x parallel.tp 2 is 2; start one of: 2 4"}},
      {"plan_rank",
       {"plan", "dry-run", kData + "/recipes/tiny.toml", "--ranks", "2", "--rank", "2"},
       2,
       {"rank 2 of 2 ranks; expected 0 to 1"}},
      {"plan_no_ranks",
       {"plan", "dry-run", kData + "/recipes/tiny.toml", "--ranks", "0"},
       2,
       {"the number of ranks is 0"}},
      {"missing_flag", {"eval", "--model", model}, 2, {"--data"}},
      {"empty_path", {"train", ""}, 2, {"ashlar: train: RECIPE is \"\""}},
      {"empty_flag", {"eval", "--model", "", "--data", "x"}, 2, {"eval: --model is \"\""}},
      {"empty_out",
       {"data", "prepare", "--input", text, "--tokenizer", "byte", "--out", ""},
       2,
       {"--out is \"\""}},
      {"empty_of_many",
       {"data", "prepare", "--input", text, "", "--tokenizer", "byte", "--out", "x"},
       2,
       {"--input is \"\""}},
      {"missing_value", {"score", "--model", model, "--ids"}, 2, {"--ids"}},
      {"vocab_text",
       {"tokenizer", "train", "--input", text, "--vocab", "many", "--out", "t"},
       2,
       {"many"}},
      {"vocab_small",
       {"tokenizer", "train", "--input", text, "--vocab", "4", "--out", "t"},
       2,
       {"4"}},
      {"kind",
       {"tokenizer", "train", "--input", text, "--vocab", "300", "--out", "t", "--kind", "word"},
       2,
       {"--kind is word", "bpe or unigram"}},
      {"out_empty",
       {"data", "prepare", "--input", text, "--tokenizer", "byte", "--out", ""},
       2,
       {"--out is \"\""}},
      {"out_directory",
       {"data", "prepare", "--input", text, "--tokenizer", "byte", "--out", "d/"},
       2,
       {"--out is 'd/'", "ends in a name"}},
      {"out_here",
       {"data", "prepare", "--input", text, "--tokenizer", "byte", "--out", "."},
       2,
       {"--out is '.'"}},
      {"model_out_empty",
       {"tokenizer", "train", "--input", text, "--vocab", "320", "--out", ""},
       2,
       {"--out is \"\""}},
      {"model_out_directory",
       {"tokenizer", "train", "--input", text, "--vocab", "320", "--out", "d/"},
       2,
       {"--out is 'd/'"}},
      {"verify_absent", {"data", "verify", "gone"}, 24, {"gone: there is no gone.idx"}},
      {"input_absent",
       {"tokenizer", "train", "--input", "gone.txt", "--vocab", "300", "--out", "t"},
       24,
       {"gone.txt"}},
      {"recipe_absent", {"train", "gone.toml"}, 2, {"gone.toml"}},
      {"override_key",
       {"train", kData + "/recipes/tiny.toml", "train.stepz=3"},
       2,
       {"train.stepz", "'train.steps'"}},
      {"head_dim",
       {"train", kData + "/recipes/tiny.toml", "model.head_dim=258"},
       2,
       {"model.head_dim is 258", "from 1 to 256"}},
      {"override_shape", {"train", kData + "/recipes/tiny.toml", "steps"}, 2, {"steps"}},
      {"override_value",
       {"train", kData + "/recipes/tiny.toml", "train.precision=fp8"},
       2,
       {"'fp8'", "bf16"}},
      {"dataset_absent",
       {"train", kData + "/recipes/tiny.toml", "data.train=gone"},
       24,
       {"ashlar: data.train: gone.idx: there is no such file"}},
      {"eval_absent",
       {"eval", "--model", model, "--data", "gone"},
       24,
       {"ashlar: --data: gone.idx: there is no such file"}},
      {"no_dataset", {"train", kData + "/recipes/tiny.toml", "data.train="}, 2, {"data.train"}},
      {"ids_word", {"score", "--model", model, "--ids", "1,two"}, 2, {"'two'", "3,7,1,9"}},
      {"ids_negative", {"score", "--model", model, "--ids=1,-2"}, 2, {"'-2' is no token id"}},
      {"ids_large", {"score", "--model", model, "--ids", "1,999999"}, 24, {"999999", model}},
      {"ids_large_generate",
       {"generate", "--model", model, "--ids", "1,128"},
       24,
       {"token id 128 is outside the vocabulary of " + model + "; expected 0 to 127"}},
      {"seed",
       {"generate", "--model", model, "--ids", "1", "--seed", "-1"},
       2,
       {"--seed is -1; expected 0 to"}},
      {"seed_large",
       {"generate", "--model", model, "--ids", "1", "--seed", "18446744073709551615"},
       2,
       {"--seed"}},
      {"max_tokens_large",
       {"generate", "--model", model, "--ids", "1", "--max-tokens", "9223372036854775807"},
       2,
       {"--max-tokens is 9223372036854775807", "1 to 1073741824"}},
      {"max_tokens_with_prompt",
       {"generate", "--model", model, "--ids", "1", "--max-tokens", "1073741824"},
       2,
       {"--max-tokens is 1073741824 after 1 tokens of the prompt"}},
      {"top_k",
       {"generate", "--model", model, "--ids", "1", "--top-k", "-1"},
       2,
       {"--top-k is -1"}},
      {"top_p_0",
       {"generate", "--model", model, "--ids", "1", "--top-p", "0"},
       2,
       {"--top-p is 0"}},
      {"temperature_nan",
       {"generate", "--model", model, "--ids", "1", "--temperature", "nan"},
       2,
       {"--temperature is nan"}},
      {"no_prompt",
       {"generate", "--model", model},
       2,
       {"one of --prompt, --prompt-file, --chat and --ids"}},
      {"one_id", {"score", "--model", model, "--ids", "1"}, 2, {"1 token id", "at least 2"}},
      {"max_samples",
       {"eval", "--model", model, "--data", "x", "--max-samples", "-1"},
       2,
       {"--max-samples is -1"}},
      {"length_beyond",
       {"eval", "--model", model, "--data", "x", "--length", "131073"},
       2,
       {"--length is 131073", model, "at most 131072", "--beyond-positions"}},
      {"length_far_beyond",
       {"eval", "--model", model, "--data", "x", "--beyond-positions", "--length",
        "9223372036854775807"},
       2,
       {"--length is 9223372036854775807", "1 to 1073741824"}},
      {"dtype", {"score", "--model", model, "--ids", "1,2", "--dtype", "fp8"}, 2, {"fp8", "fp32"}},
      {"temperature",
       {"generate", "--model", model, "--ids", "1", "--temperature", "-1"},
       2,
       {"-1"}},
      {"top_p", {"generate", "--model", model, "--ids", "1", "--top-p", "2"}, 2, {"2"}},
      {"max_tokens",
       {"generate", "--model", model, "--ids", "1", "--max-tokens", "0"},
       2,
       {"--max-tokens is 0"}},
      {"two_prompts",
       {"generate", "--model", model, "--ids", "1", "--prompt", "a"},
       2,
       {"--prompt, --prompt-file, --chat and --ids"}},
      {"no_tokenizer", {"generate", "--model", model, "--prompt", "a"}, 2, {"tokenizer"}},
      {"threads", {"score", "--model", model, "--ids", "1,2", "--threads", "-3"}, 2, {"-3"}},
      {"layout",
       {"ckpt", "export", model, "out", "--layout", "old"},
       2,
       {"--layout is old", "native or legacy"}},
      {"model_absent",
       {"score", "--model", "gone", "--ids", "1,2"},
       2,
       {"ashlar: gone: there is no such directory; expected a Hugging Face directory",
        "checkpoint root"}},
      {"step_absent", {"ckpt", "show", "gone"}, 26, {"gone is neither a checkpoint step"}},
      {"level",
       {"ckpt", "verify", ".", "--level", "some"},
       2,
       {"--level is some", "quick, files or deep"}},
      {"root_absent", {"ckpt", "list", "gone"}, 2, {"gone"}},
      {"root_of_a_file", {"ckpt", "list", text}, 2, {"it is no directory"}},
      {"file_size",
       {"ckpt", "export", model, "out", "--max-file-gb", "1e300"},
       2,
       {"--max-file-gb is 1e+300; expected a number above 0, at most 1000000000"}},
      {"file_size_of_nothing",
       {"ckpt", "export", model, "out", "--max-file-gb", "1e-30"},
       2,
       {"--max-file-gb is 1e-30"}},
      {"no_number",
       {"tokenizer", "train", "--input", text, "--vocab", "many", "--out", "t"},
       2,
       {"tokenizer train: --vocab is many; expected a whole number", "--help"}},
      {"lines_of_words",
       {"tokenizer", "train", "--input", text, "--vocab", "300", "--format", "hf", "--max-lines",
        "9", "--out", "t"},
       2,
       {"--max-lines is for sentencepiece"}},
      {"no_fraction",
       {"eval", "--model", model, "--data", "x", "--validation-fraction", "half"},
       2,
       {"--validation-fraction is half; expected a number; see"}},
      {"directory_as_tokenizer",
       {"data", "prepare", "--input", text, "--tokenizer", model, "--out", "x"},
       24,
       {"the directory has neither tokenizer.model nor tokenizer.json"}},
      {"stages", {"plan", "schedule", "--stages", "99999999"}, 2, {"at most 1000000"}},
      {"micro_batches",
       {"plan", "schedule", "--micro-batches", "99999999"},
       2,
       {"--micro-batches 99999999"}},
      {"ranks_past_any_number",
       {"plan", "dry-run", kData + "/recipes/tiny.toml", "--ranks", "99999999999999"},
       2,
       {"--ranks is 99999999999999; expected a smaller number"}},
      {"ranks_per_node",
       {"plan", "dry-run", kData + "/recipes/tiny.toml", "--ranks-per-node", "0"},
       2,
       {"--ranks-per-node is 0; expected 1 or more"}},
      {"bench_length",
       {"bench", "memory", kData + "/recipes/tiny.toml", "--lengths", "64,0"},
       2,
       {"--lengths has 0; expected 1 or more"}},
      {"bench_delay",
       {"bench", "ranks", kData + "/recipes/tiny.toml", "--delay-bulk-ms", "1e300"},
       2,
       {"--delay-bulk-ms is 1e+300; expected 0 to 1000000"}},
      {"bench_step_seconds",
       {"bench", "checkpoint", "--gib", "0.001", "--step-seconds", "-1"},
       2,
       {"--step-seconds is -1; expected 0 to 1000"}},
      {"part", {"eval", "--model", model, "--data", "x", "--part", "none"}, 2, {"--part is none"}},
      {"length", {"eval", "--model", model, "--data", "x", "--length", "0"}, 2, {"--length is 0"}},
      {"info_extra", {"info", "more"}, 2, {"'more'"}},
      {"info_absent", {"data", "info", "gone"}, 24, {"gone.idx"}},
      {"bench_steps",
       {"bench", "step", kData + "/recipes/tiny.toml", "--steps", "0"},
       2,
       {"--steps is 0"}},
      {"bench_ranks_steps",
       {"bench", "ranks", kData + "/recipes/tiny.toml", "--steps", "0"},
       2,
       {"--steps is 0"}},
      {"bench_steps_many",
       {"bench", "step", kData + "/recipes/tiny.toml", "--steps", "9223372036854775807"},
       2,
       {"--steps is 9223372036854775807; expected 1 to 1000000"}},
      {"ranks_many",
       {"train", kData + "/recipes/tiny.toml", "--ranks", "2147483647"},
       2,
       {"2147483647 ranks", "choose one of: 1 2"}},
      {"bench_ranks_alone",
       {"bench", "ranks", kData + "/recipes/tiny.toml", "--overlap-study"},
       2,
       {"--overlap-study on one rank", "2 ranks or more"}},
      {"bench_ranks_share",
       {"bench", "ranks", kData + "/recipes/tiny.toml", "--ranks", "3"},
       2,
       {"3 ranks", "choose one of"}},
  };
}

// A name as long as the system hands over is cut, so that what to do stays in sight.
TEST(BadInput, HugeNamesAreCut) {
  const Scratch scratch;
  const std::string name(100'000, 'x');
  for (const BadCase& c : std::vector<BadCase>{
           {"path", {"train", name}, 25, {"bytes ...]", "File name too long"}},
           {"flag", {"info", "--" + name}, 2, {"unknown", "bytes ...]"}},
           {"value", {"score", "--model", "x", "--ids", name}, 2, {"whole numbers such as"}},
           {"key", {"train", kData + "/recipes/tiny.toml", name + "=1"}, 2, {"no such key"}}}) {
    expect_refused(scratch, c);
    EXPECT_LT(run(scratch, c.args).err.size(), 5000u);
  }
}

TEST(BadInput, FlagsAndSubcommands) {
  const Scratch scratch;
  for (const BadCase& c : flag_cases()) expect_refused(scratch, c);
}

// A variable that earlier versions read is named with the key that took its place.
TEST(BadInput, AFormerVariable) {
  const Scratch scratch;
  const Result result =
      run(scratch, train_args(), {}, {"/usr/bin/env", "ASHLAR_CONTROL_INTERFACE=eth0"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(
      result.err.find("ASHLAR_CONTROL_INTERFACE is eth0 in the environment, which is not read "
                      "any more; unset it, and choose checkpoint.control_interface=eth0"),
      std::string::npos)
      << result.err;
}

// Every file below tests/fixtures/bad/KIND: the same checks, the message naming the file.
TEST(BadInput, Recipes) {
  const Scratch scratch;
  int cases = 0;
  for (const auto& entry : fs::directory_iterator(kData + "/bad/recipes")) {
    const std::string path = entry.path().string();
    std::vector<std::string> args = {"train", path};
    // These begin with a model, which is looked for first.
    if (entry.path().filename().string().starts_with("lora_"))
      args.push_back("init.model=" + kData + "/hf_small");
    expect_refused(scratch, {path, args, 2, {path}});
    ++cases;
  }
  EXPECT_GE(cases, 30);
}

TEST(BadInput, DatasetsAndTexts) {
  const Scratch scratch;
  std::set<std::string> prefixes;
  int texts = 0, tokenizers = 0;
  for (const auto& entry : fs::directory_iterator(kData + "/bad/data")) {
    const std::string path = entry.path().string(), ending = entry.path().extension();
    if (ending == ".idx") prefixes.insert(path.substr(0, path.size() - 4));
    if (ending == ".jsonl" || ending == ".txt" || ending == ".gz") {
      expect_refused(scratch,
                     {path,
                      {"data", "prepare", "--input", path, "--tokenizer", "byte", "--out", "made"},
                      24,
                      {path}});
      ++texts;
    }
    if (ending == ".model") {
      expect_refused(scratch, {path,
                               {"data", "prepare", "--input", kData + "/vectors/stones.txt",
                                "--tokenizer", path, "--out", "made"},
                               24,
                               {path}});
      ++tokenizers;
    }
  }
  EXPECT_GE(texts, 10);
  EXPECT_GE(tokenizers, 4);
  EXPECT_GE(prefixes.size(), 25u);
  // Ids outside the vocabulary show only where the ids are read.
  for (const std::string& prefix : prefixes)
    expect_refused(scratch, {prefix,
                             {"eval", "--model", kData + "/hf_small", "--data", prefix, "--part",
                              "all", "--length", "2"},
                             24,
                             {prefix}});
}

TEST(BadInput, HuggingFaceDirectories) {
  const Scratch scratch;
  int cases = 0;
  for (const auto& entry : fs::directory_iterator(kData + "/bad/hf")) {
    if (!entry.is_directory()) continue;
    const std::string path = entry.path().string();
    // Without config.json nothing says that it is a model directory at all: the argument is wrong.
    const int code = fs::exists(entry.path() / "config.json") ? 24 : 2;
    expect_refused(scratch, {path, {"ckpt", "import", path, "root"}, code, {path}});
    ++cases;
  }
  EXPECT_GE(cases, 40);
}

// Each malformed file takes the place of a good one in a committed step.
TEST(BadInput, Checkpoints) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args({"train.steps=1"}));
  const fs::path good = step_directory(scratch / "run", 1), bad = scratch / "bad";
  int cases = 0;
  for (const auto& entry : fs::directory_iterator(kData + "/bad/ckpt")) {
    const std::string ending = entry.path().extension();
    std::string place;
    if (ending == ".COMMIT") place = "COMMIT";
    if (ending == ".index") place = "index.bin";
    if (ending == ".manifest") place = "manifest.json";
    if (ending == ".safetensors") place = "model/shard-00001-model-00001-of-00001.safetensors";
    if (place.empty()) continue;
    fs::remove_all(bad);
    fs::copy(good, bad, fs::copy_options::recursive);
    fs::copy_file(entry.path(), bad / place, fs::copy_options::overwrite_existing);
    const std::string name = entry.path().filename().string();
    expect_refused(scratch, {name, {"score", "--model", "bad", "--ids", "1,2"}, 26, {"bad"}});
    expect_refused(scratch, {name, {"ckpt", "export", "bad", "made"}, 26, {"bad"}});
    EXPECT_EQ(run(scratch, {"ckpt", "verify", "bad"}).code, 1) << name;
    ++cases;
  }
  EXPECT_GE(cases, 20);
  expect_refused(scratch, {"a root", {"ckpt", "verify", "run/checkpoints"}, 2, {"--level deep"}});
  expect_refused(scratch, {"a file", {"ckpt", "verify", "run/recipe.toml"}, 2, {"no such step"}});
}

}  // namespace
}  // namespace ashlar::integration
