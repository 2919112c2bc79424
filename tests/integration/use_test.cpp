// A model in use: what eval scores, how far generate goes, and what both say of numbers that are
// none.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

using nlohmann::json;

std::vector<std::string> eval_args(std::vector<std::string> more) {
  std::vector<std::string> args{"eval", "--model", "run/checkpoints", "--dtype", "fp32", "--json"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

// The run holds 5 % out, which is not what eval would take without the checkpoint's recipe, and
// states its loss over the first samples there.
TEST(Use, EvalScoresWhatTrainingHeldOut) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args({"train.steps=1", "train.eval_every=1", "train.precision=fp32"}));
  double stated = 0.0;
  std::istringstream metrics(read_file(scratch / "run" / "metrics.jsonl"));
  for (std::string line; std::getline(metrics, line);) {
    const json row = json::parse(line);
    if (row.contains("validation_loss")) stated = row["validation_loss"];
  }
  const json found = json::parse(
      run_ok(scratch, eval_args({"--data", "text", "--length", "32", "--max-samples", "4"})));
  EXPECT_NEAR(found["loss"].get<double>(), stated, 1e-5);
  EXPECT_EQ(found["end"].get<int64_t>() - found["begin"].get<int64_t>(), 4 * 32 + 1);
  const json whole = json::parse(run_ok(scratch, eval_args({"--data", "text"})));
  EXPECT_EQ(whole["begin"], found["begin"]);
  EXPECT_EQ(whole["length"], 256) << "max_position_embeddings";
  EXPECT_EQ(whole["targets"].get<int64_t>() + 1,
            whole["end"].get<int64_t>() - whole["begin"].get<int64_t>());
  EXPECT_EQ(whole["counting"], "documents apart");
  const json joined = json::parse(run_ok(scratch, eval_args({"--data", "text", "--one-sequence"})));
  EXPECT_EQ(joined["counting"], "one sequence");
  EXPECT_EQ(joined["targets"], whole["targets"]);
  EXPECT_NE(joined["loss"], whole["loss"]);

  const Result longer = run(scratch, eval_args({"--data", "text", "--length", "257"}));
  EXPECT_EQ(longer.code, 2);
  EXPECT_TRUE(contains(longer.err, "--length is 257 but run/checkpoints is meant for 256 tokens"))
      << longer.err;
  const Result allowed =
      run(scratch, eval_args({"--data", "text", "--length", "257", "--beyond-positions"}));
  EXPECT_EQ(allowed.code, 0);
  EXPECT_TRUE(contains(allowed.err, "warning: run/checkpoints is meant for 256 tokens"))
      << allowed.err;
  const json reaching = json::parse(
      run_ok(scratch, eval_args({"--data", "text", "--length", "2000", "--beyond-positions"})));
  EXPECT_EQ(reaching["begin"], found["begin"]) << "not into what was trained on";
  EXPECT_EQ(reaching["length"], reaching["targets"]);

  run_ok(scratch, train_args({"train.steps=1", "train.run_dir=none", "data.validation=text"}));
  const Result nothing =
      run(scratch, {"eval", "--model", "none/checkpoints", "--data", "./text", "--length", "32"});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_TRUE(contains(nothing.err,
                       "its recipe holds nothing of ./text out (data.validation is "
                       "text); give --part all"))
      << nothing.err;
  const json tail =
      json::parse(run_ok(scratch, {"eval", "--model", "none/checkpoints", "--data", "./text",
                                   "--length", "32", "--validation-fraction", "0.05", "--json"}));
  EXPECT_EQ(tail["begin"], whole["begin"]);
  EXPECT_EQ(json::parse(run_ok(scratch, {"eval", "--model", "none/checkpoints", "--data", "text",
                                         "--length", "32", "--json"}))["begin"],
            0);
}

TEST(Use, EvalWantsTheModelsTokenizer) {
  const Scratch scratch;
  const std::string text = kData + "/vectors/stones.txt";
  prepare_text(scratch);
  run_ok(scratch, train_args({"train.steps=1"}));
  run_ok(scratch, {"tokenizer", "train", "--input", text, "--vocab", "320", "--out", "tok.model"});
  run_ok(scratch, {"data", "prepare", "--input", text, "--documents", "blank-line", "--tokenizer",
                   "tok.model", "--out", "other"});
  const Result refused = run(scratch, eval_args({"--data", "other", "--length", "32"}));
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.out, "");
  EXPECT_TRUE(contains(refused.err, "other was prepared with tokenizer")) << refused.err;
  const Result allowed =
      run(scratch, eval_args({"--data", "other", "--length", "32", "--any-tokenizer"}));
  EXPECT_EQ(allowed.code, 0) << allowed.err;
  // An export carries the tokenizer; a directory without one cannot tell.
  run_ok(scratch, {"ckpt", "export", "run/checkpoints", "hf"});
  const std::vector<std::string> args{"eval", "--model", "hf", "--data", "text", "--length", "32"};
  EXPECT_FALSE(contains(run(scratch, args).err, "warning"));
  for (const char* name : {"tokenizer.model", "tokenizer.json"})
    std::filesystem::remove(scratch / "hf" / name);
  const Result doubtful = run(scratch, args);
  EXPECT_EQ(doubtful.code, 0);
  EXPECT_TRUE(contains(doubtful.err,
                       "warning: text: nothing says that its tokenizer is the "
                       "model's: hf holds no tokenizer"))
      << doubtful.err;
}

// The model of a run goes on as another run: on other data, and with longer sequences.
TEST(Use, ARunBeginsWithTheWeightsOfAnother) {
  const Scratch scratch;
  prepare_text(scratch);
  const std::string fp32 = "train.precision=fp32", text = kData + "/vectors/stones.txt";
  run_ok(scratch, train_args({"train.steps=40", "optim.lr=5e-3", "train.run_dir=old", fp32}));
  const double before = std::stod(read_steps(scratch / "old").at(1)[0].loss);
  run_ok(scratch, {"ckpt", "export", "old/checkpoints", "hf", "--dtype", "fp32"});
  const Result begun =
      run(scratch, train_args({"train.steps=4", "init.model=hf", fp32, "optim.warmup_steps=2"}));
  ASSERT_EQ(begun.code, 0) << begun.err;
  EXPECT_TRUE(contains(begun.err, "starting from the weights of hf (Hugging Face, native layout)"))
      << begun.err;
  EXPECT_FALSE(contains(begun.err, "warning")) << begun.err;
  EXPECT_LT(std::stod(read_steps(scratch / "run").at(1)[0].loss), before - 1.0);

  run_ok(scratch, {"tokenizer", "train", "--input", text, "--vocab", "320", "--out", "tok.model"});
  run_ok(scratch, {"data", "prepare", "--input", text, "--documents", "blank-line", "--tokenizer",
                   "tok.model", "--out", "other"});
  const Result other =
      run(scratch, train_args({"train.steps=2", "optim.warmup_steps=1", "train.run_dir=other-run",
                               "data.train=other", "init.model=old/checkpoints",
                               "data.sequence_length=128", "model.rope_theta=40000.0"}));
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_EQ(count_of(other.err, "warning: "), 3) << other.err;
  EXPECT_TRUE(contains(other.err, "warning: other was prepared with tokenizer ")) << other.err;
  EXPECT_TRUE(contains(other.err, "starting from the weights of old/checkpoints (step 40 of run "))
      << other.err;
  EXPECT_TRUE(contains(other.err,
                       "warning: model.rope_theta is 40000.0 in the recipe but 10000.0 in "
                       "old/checkpoints; the recipe's value holds\n"))
      << other.err;

  std::filesystem::remove_all(scratch / "hf");
  std::filesystem::remove_all(scratch / "old");
  const Result on = run(scratch, train_args({"train.steps=6", "init.model=hf", fp32}));
  EXPECT_EQ(on.code, 0) << on.err;
  EXPECT_TRUE(contains(on.err, "continuing after step 4 ")) << on.err;
  const Result gone =
      run(scratch, train_args({"train.steps=6", "init.model=hf", "train.run_dir=new"}));
  EXPECT_EQ(gone.code, 2);
  EXPECT_EQ(gone.err,
            "ashlar: init.model is hf, which does not exist; expected a Hugging Face directory, a "
            "run's directory, a checkpoint root or one step of it\n");
  EXPECT_FALSE(std::filesystem::exists(scratch / "new"));
  run_ok(scratch, train_args({"init.model=hf", "--dry-run"}));
  run_ok(scratch, {"plan", "dry-run", kData + "/recipes/tiny.toml", "init.model=hf"});
}

// Two lines are a whole recipe; config.json says the rest, and for a dry run it is all that there
// must be.
TEST(Use, ADirectorySaysWhatTheRecipeLeavesOut) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args({"train.steps=1", "train.run_dir=old", "model.rope_theta=70000",
                              "model.eos_token_id=9", "checkpoint.every=0"}));
  run_ok(scratch, {"ckpt", "export", "old", "hf", "--dtype", "fp32"});
  write_file(scratch / "two.toml", "init.model = \"hf\"\ndata.train = \"text\"\n");
  const std::vector<std::string> more{"train.steps=2",
                                      "train.run_dir=new",
                                      "data.sequence_length=32",
                                      "optim.warmup_steps=0",
                                      "train.micro_batch=2",
                                      "train.threads=1",
                                      "data.validation_fraction=0.05"};
  const auto with = [&](std::vector<std::string> first, const std::vector<std::string>& last) {
    first.insert(first.end(), more.begin(), more.end());
    first.insert(first.end(), last.begin(), last.end());
    return run(scratch, first);
  };
  const Result begun = with({"train", "two.toml"}, {});
  ASSERT_EQ(begun.code, 0) << begun.err;
  EXPECT_FALSE(contains(begun.err, "warning")) << begun.err;
  const std::string saved = read_file(scratch / "new" / "recipe.toml");
  for (const char* line : {"rope_theta = 70000.0\n", "eos_token_id = 9\n", "hidden_size = 32\n"})
    EXPECT_TRUE(contains(saved, line)) << saved;

  std::filesystem::remove(scratch / "hf" / "model.safetensors");
  const Result dry = with({"train", "two.toml"}, {"train.run_dir=dry", "--dry-run"});
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_TRUE(contains(dry.out, "rope_theta = 70000.0\n")) << dry.out;
  const Result plan =
      with({"plan", "dry-run", "two.toml"}, {"train.run_dir=dry", "model.rope_theta=1e4"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(plan.err,
            "warning: model.rope_theta is 10000.0 in the recipe but 70000.0 in hf; the recipe's "
            "value holds\n");
  const Result other =
      with({"train", "two.toml"}, {"train.run_dir=dry", "model.hidden_size=64", "--dry-run"});
  EXPECT_EQ(other.code, 2);
  EXPECT_TRUE(contains(other.err, "model.hidden_size is 64 but hf has 32; ")) << other.err;

  // The run's own steps say it later.
  std::filesystem::remove_all(scratch / "hf");
  const Result on = with({"train", "two.toml"}, {"train.steps=3"});
  EXPECT_EQ(on.code, 0) << on.err;
  EXPECT_TRUE(contains(on.err, "changed since step 2:\n  train.steps was 2, is 3\n")) << on.err;
}

// Every rank reads the directory on its own machine.
TEST(Use, RanksWithOtherDirectoriesAreNamed) {
  const Scratch scratch;
  prepare_text(scratch);
  for (const std::string& rank : {std::string("0"), std::string("1")}) {
    run_ok(scratch, train_args({"train.steps=1", "train.run_dir=old" + rank,
                                "model.rope_theta=7000" + rank}));
    run_ok(scratch, {"ckpt", "export", "old" + rank, rank + "/hf"});
    write_file(scratch / rank / "two.toml", "init.model = \"hf\"\ndata.train = \"../text\"\n");
  }
  const std::vector<std::string> args{"train", "two.toml", "data.sequence_length=32"};
  std::vector<std::string> launcher = mpirun(1);
  launcher.insert(launcher.end(), {"-wdir", (scratch / "0").string(), ASHLAR_BINARY});
  launcher.insert(launcher.end(), args.begin(), args.end());
  launcher.insert(launcher.end(), {":", "-n", "1", "-wdir", (scratch / "1").string()});
  const Result result = run(scratch, args, {}, launcher);
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_TRUE(contains(result.err, " has model.rope_theta = 70001.0 but rank 0 on ")) << result.err;
}

// Wherever a model or a root is asked for, the directory of a run stands for its checkpoints.
TEST(Use, ARunsDirectoryStandsForItsCheckpoints) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args({"train.steps=2", "checkpoint.every=1", "train.eval_every=0"}));
  const std::string root = "run/checkpoints";
  const auto same = [&](std::vector<std::string> args) {
    const std::string of_run = run_ok(scratch, args);
    for (std::string& arg : args)
      if (arg == "run") arg = root;
    EXPECT_EQ(of_run, run_ok(scratch, args)) << args[0] << " " << args[1];
  };
  same({"score", "--model", "run", "--ids", "1,2,3"});
  same({"generate", "--model", "run", "--ids", "1,2,3", "--max-tokens", "3", "--temperature", "0"});
  same({"ckpt", "list", "run"});
  same({"ckpt", "show", "run"});
  same({"ckpt", "diff", "run", "run/checkpoints", "--values"});
  EXPECT_EQ(json::parse(run_ok(scratch, {"eval", "--model", "run", "--data", "text", "--length",
                                         "32", "--json"}))["loss"],
            json::parse(run_ok(scratch, {"eval", "--model", root, "--data", "text", "--length",
                                         "32", "--json"}))["loss"]);
  run_ok(scratch, {"ckpt", "export", "run", "hf"});
  run_ok(scratch, {"ckpt", "average", "run", root, "--out", "mean"});
  run_ok(scratch, {"ckpt", "pin", "run", "1"});
  run_ok(scratch, {"ckpt", "prune", "run", "--keep", "1"});
  EXPECT_TRUE(std::filesystem::exists(step_directory(scratch / "run", 1)));
  run_ok(scratch, {"ckpt", "unpin", "run", "1"});
  run_ok(scratch, train_args({"train.steps=1", "init.model=run", "train.run_dir=next"}));

  // A run that has saved nothing yet.
  std::filesystem::create_directories(scratch / "early/checkpoints");
  std::filesystem::copy(scratch / "run/recipe.toml", scratch / "early/recipe.toml");
  const std::vector<std::vector<std::string>> commands{
      {"score", "--model", "early", "--ids", "1,2"},
      {"generate", "--model", "early/checkpoints", "--ids", "1"},
      {"eval", "--model", "early", "--data", "text"},
      {"ckpt", "show", "early"},
      {"ckpt", "verify", "early"},
      {"ckpt", "verify", "early/checkpoints"},
      {"ckpt", "export", "early", "out"},
      {"ckpt", "diff", "early", "run"},
      train_args({"init.model=early", "train.run_dir=other"})};
  for (const std::vector<std::string>& args : commands) {
    const Result result = run(scratch, args);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_TRUE(contains(result.err,
                         ": no checkpoint yet; the first is due at step 1 (checkpoint.every is 1)"))
        << result.err;
  }
}

// A dry run refuses in the same words whatever a start refuses before it reads weights or data.
TEST(Use, ADryRunRefusesWhatTheRunRefuses) {
  const Scratch scratch;
  prepare_text(scratch);
  const struct {
    std::vector<std::string> overrides;
    int ranks, code;
    std::string said;
  } cases[] = {
      {{"model.num_hidden_layers=8", "parallel.zero_layout=bucketed", "parallel.bucket_bytes=1024",
        "checkpoint.gather_mib=0"},
       2,
       2,
       "files"},
      {{"train.memory_limit_mib=1"}, 1, 22, "train.memory_limit_mib is 1, but a rank takes "},
      {{"train.memory_limit_mib=34"}, 4, 22, "train.memory_limit_mib is 34 for 4 ranks together"},
      {{"parallel.collectives=native"}, 1, 2, "parallel.collectives is native"},
      {{"parallel.tp=3"}, 3, 2, "parallel.tp is 3"},
      {{"train.global_batch=2"}, 4, 2, "4 ranks"},
      {{"init.model=nowhere"}, 1, 2, "init.model is nowhere, which does not exist"},
  };
  for (const auto& c : cases) {
    std::vector<std::string> args = train_args({"train.micro_batch=1"});
    args.insert(args.end(), c.overrides.begin(), c.overrides.end());
    args.insert(args.end(), {"--ranks", std::to_string(c.ranks)});
    const Result real = run(scratch, args);
    args.push_back("--dry-run");
    const Result dry = run(scratch, args);
    for (const Result* result : {&real, &dry}) {
      EXPECT_EQ(result->code, c.code) << c.said << result->err;
      EXPECT_TRUE(contains(result->err, c.said)) << result->err;
    }
    EXPECT_FALSE(std::filesystem::exists(scratch / "run"));
    EXPECT_EQ(dry.out, "");
  }
}

// Tokens of another program, which says nothing of its tokenizer: 320 ids, as the tiny model has.
TEST(Use, ForeignDataTrainsWithoutATokenizer) {
  const Scratch scratch;
  const std::string text = kData + "/vectors/stones.txt";
  run_ok(scratch, {"tokenizer", "train", "--input", text, "--vocab", "320", "--out", "tok.model"});
  run_ok(scratch, {"data", "prepare", "--input", text, "--tokenizer", "tok.model", "--out", "own"});
  for (const char* ending : {".bin", ".idx"})
    std::filesystem::copy_file(scratch / (std::string("own") + ending),
                               scratch / (std::string("text") + ending));
  const Result refused = run(scratch, train_args({"data.tokenizer=byte"}));
  EXPECT_EQ(refused.code, 24);
  EXPECT_TRUE(contains(refused.err, "the vocabulary of the byte tokenizer has 260")) << refused.err;
  EXPECT_FALSE(std::filesystem::exists(scratch / "run"));
  for (const char* steps : {"train.steps=2", "train.steps=3"}) {
    const Result trained = run(scratch, train_args({steps}));
    EXPECT_EQ(trained.code, 0) << trained.err;
    EXPECT_TRUE(contains(trained.err, "the data names no tokenizer")) << trained.err;
  }
  run_ok(scratch,
         {"generate", "--model", "run/checkpoints", "--ids", "5", "--max-tokens", "2", "--json"});
  const Result prompt = run(scratch, {"generate", "--model", "run/checkpoints", "--prompt", "a"});
  EXPECT_EQ(prompt.code, 2);
  EXPECT_TRUE(contains(prompt.err, "tokenizer")) << prompt.err;
  run_ok(scratch, train_args({"train.steps=2", "train.run_dir=named", "data.tokenizer=tok.model"}));
}

TEST(Use, AnImportedRootIsBegunFromAndNotContinued) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args({"train.steps=1", "train.run_dir=old"}));
  run_ok(scratch, {"ckpt", "export", "old/checkpoints", "hf"});
  run_ok(scratch, {"ckpt", "import", "hf", "imported/checkpoints"});
  const auto before = read_tree(scratch / "imported/checkpoints/step-000000000000");
  const Result refused = run(scratch, train_args({"train.run_dir=imported"}));
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_TRUE(contains(refused.err,
                       "init.model=imported/checkpoints/step-000000000000 and another "
                       "train.run_dir"))
      << refused.err;
  EXPECT_EQ(read_tree(scratch / "imported/checkpoints/step-000000000000"), before);
  run_ok(scratch, train_args({"train.steps=1", "init.model=imported/checkpoints"}));
}

TEST(Use, GenerateTakesLongPromptsAndManyTokens) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args({"train.steps=1"}));
  std::vector<std::string> args{"generate", "--model", "run/checkpoints", "--json", "--ids", ""};
  for (int i = 0; i < 3000; ++i) args.back() += fmt::format("{}{}", i ? "," : "", 4 + i % 256);
  args.insert(args.end(), {"--ignore-eos", "--max-tokens", "3"});
  const Result result = run(scratch, args);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["ids"].size(), 3003u);
  EXPECT_EQ(count_of(result.err, "warning: run/checkpoints is meant for 256 tokens"), 1)
      << result.err;
  const Result most = run(scratch, {"generate", "--model", "run/checkpoints", "--ids", "5",
                                    "--max-tokens", "1073741823"});
  EXPECT_EQ(most.signal, 0);
  EXPECT_EQ(most.code, 22);
  EXPECT_EQ(count_of(most.err, "\n"), 1) << most.err;
}

// The tiny model has 320 ids, its byte tokenizer 260.
TEST(Use, IdsWithoutTextAreShownAsUnknown) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args({"train.steps=1"}));
  const std::string out = run_ok(scratch, {"generate", "--model", "run/checkpoints", "--ids", "300",
                                           "--max-tokens", "40", "--temperature", "50"});
  EXPECT_TRUE(out.starts_with("\xef\xbf\xbd")) << out;
  // At such a temperature every id is nearly as likely, the end of a document too.
  std::vector<std::string> args{"generate",     "--model", "run/checkpoints", "--ids", "300",
                                "--max-tokens", "6000",    "--temperature",   "1e6",   "--json"};
  const json stopped = json::parse(run_ok(scratch, args))["ids"];
  EXPECT_LT(stopped.size(), 6001u);
  EXPECT_EQ(stopped.back(), 1) << "eos of the byte tokenizer";
  args.push_back("--ignore-eos");
  EXPECT_EQ(json::parse(run_ok(scratch, args))["ids"].size(), 6001u);
}

TEST(Use, HugeTemperaturesDoNotAbort) {
  const Scratch scratch;
  prepare_text(scratch);
  for (const char* temp : {"1e9", "1e35", "1e300"})
    for (const char* precision : {"fp32", "bf16"}) {
      const Result trained =
          run(scratch,
              train_args({"train.steps=1", "optim.lr=0", "optim.lr_min=0",
                          fmt::format("init.temp={}", temp), fmt::format("train.run_dir={}", temp),
                          fmt::format("train.precision={}", precision)}));
      EXPECT_EQ(trained.signal, 0) << temp << trained.err;
    }
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"score", "--model", "1e9/checkpoints", "--ids", "5,6,7"},
        {"generate", "--model", "1e9/checkpoints", "--ids", "5,6,7", "--max-tokens", "3"},
        {"eval", "--model", "1e9/checkpoints", "--data", "text"}})
    EXPECT_EQ(run(scratch, args).code, 0) << args[0];
}

}  // namespace
}  // namespace ashlar::integration
