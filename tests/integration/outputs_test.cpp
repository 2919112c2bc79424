// Every command that writes files under names of its user's choice: it loses no input, replaces no
// file unasked, and takes away no more than it made when it fails.
//
// Within a run's directory `ashlar train` goes on with files of its own: metrics.jsonl, LATEST, and
// recipe.toml, which it knows by its first line.
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <set>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;

struct Command {
  std::string name;
  std::vector<std::string> args;
  std::vector<std::string> outputs;  // names that it gives
  std::string input = "";            // a file that it reads; "": none that a name could be put to
  bool forces = false;               // knows --force
  bool cheap = true;                 // a run to its end takes little time
};

// In a scratch directory of prepare_all().
std::vector<Command> commands() {
  const std::string tiny = kData + "/recipes/tiny.toml";
  return {
      {"data prepare",
       {"data", "prepare", "--input", "corpus.txt", "--tokenizer", "tok.model", "--out", "set"},
       {"set.bin", "set.idx", "set.json", "set.tokenizer.model"},
       "tok.model",
       true},
      {"data prepare of chats",
       {"data", "prepare", "--format", "chat", "--input", "chats.jsonl", "--chat-template",
        "chat.jinja", "--tokenizer", "byte", "--out", "set"},
       {"set.bin", "set.idx", "set.json", "set.mask", "set.tokenizer.model"},
       "chat.jinja",
       true},
      {"data prepare of the input",
       {"data", "prepare", "--input", "corpus.txt", "--tokenizer", "byte", "--out", "set"},
       {"set.bin", "set.idx", "set.json", "set.tokenizer.model"},
       "corpus.txt",
       true},
      {"data prepare beside a tokenizer",
       {"data", "prepare", "--input", "corpus.txt", "--tokenizer", "hf/tokenizer.model", "--out",
        "set"},
       {"set.bin", "set.idx", "set.json", "set.tokenizer.model"},
       "hf/tokenizer_config.json",
       true},
      {"tokenizer train",
       {"tokenizer", "train", "--input", "corpus.txt", "--vocab", "320", "--out", "new.model"},
       {"new.model"},
       "corpus.txt",
       true},
      {"tokenizer train unigram for transformers",
       {"tokenizer", "train", "--input", "corpus.txt", "--vocab", "320", "--kind", "unigram",
        "--format", "hf", "--out", "new.json"},
       {"new.json"},
       "corpus.txt",
       true},
      {"tokenizer train for transformers",
       {"tokenizer", "train", "--input", "corpus.txt", "--vocab", "320", "--format", "hf", "--out",
        "new.json"},
       {"new.json"},
       "corpus.txt",
       true},
      {"ckpt import", {"ckpt", "import", "hf", "root"}, {"root"}},
      {"ckpt export", {"ckpt", "export", "run/checkpoints", "out"}, {"out"}},
      {"ckpt export of adapters",
       {"ckpt", "export", "lora/checkpoints", "out", "--adapter"},
       {"out"}},
      {"ckpt average",
       {"ckpt", "average", "run/checkpoints", "run/checkpoints", "--out", "mean"},
       {"mean"}},
      {"ckpt average to hf",
       {"ckpt", "average", "hf", "hf", "--out", "mean", "--to", "hf"},
       {"mean"}},
      {"score",
       {"score", "--model", "hf", "--ids", "5,6,7,8", "--logits", "logits.safetensors"},
       {"logits.safetensors"},
       "hf/model.safetensors",
       true},
      {"eval of a text",
       {"eval", "--model", "hf", "--text", "corpus.txt", "--length", "64", "--out", "rows.jsonl"},
       {"rows.jsonl"},
       "corpus.txt",
       true},
      {"plan dry-run",
       {"plan", "dry-run", "recipe.toml", "--ranks", "2", "--trace", "traces"},
       {"traces"}},
      {"plan simulate",
       {"plan", "simulate", "recipe.toml", "--ranks", "1", "--machine", "small.toml", "--perfetto",
        "step.json", "--json", "times.json"},
       {"step.json", "times.json"},
       "small.toml",
       true},
      {"plan search",
       {"plan", "search", "recipe.toml", "--ranks", "1", "--machine", "small.toml", "--simulate",
        "1", "--top", "1", "--fix", "train.micro_batch=1", "--json", "layouts.json"},
       {"layouts.json"},
       "small.toml",
       true},
      {"plan check",
       {"plan", "check", "recipe.toml", "--machine", "small.toml", "--json", "findings.json",
        "model.vocab_size=321", "data.sequence_length=62", "model.moe_intermediate_size=50",
        "model.shared_expert_intermediate_size=51"},
       {"findings.json"},
       "small.toml",
       true},
      {"plan estimate",
       {"plan", "estimate", "recipe.toml", "--ranks", "1", "--machine", "small.toml", "--layout",
        "train.micro_batch=1", "--layout", "train.micro_batch=2", "--layout",
        "train.recompute=true", "--json", "estimates.json"},
       {"estimates.json"},
       "small.toml",
       true},
      {"plan goodput",
       {"plan", "goodput", "recipe.toml", "--node-mtbf", "6336", "--ranks", "1", "--machine",
        "small.toml", "--step-seconds", "2", "--save-seconds", "30", "--replace-hours", "24",
        "--json", "goodput.json"},
       {"goodput.json"},
       "small.toml",
       true,
       false},  // its file is too small for a limit
      {"plan widths",
       {"plan", "widths", "recipe.toml", "--machine", "small.toml", "--machine", "h100",
        "--tolerance", "0.5", "--svg", "widths.svg", "--json", "widths.json"},
       {"widths.svg", "widths.json"},
       "small.toml",
       true},
      {"plan compare",
       {"plan", "compare", "run", "simulated.json", "--json", "parts.json"},
       {"parts.json"},
       "simulated.json",
       true},
      {"plan calibrate",
       {"plan", "calibrate", "recipe.toml", "--machine", "small.toml", "--json", "factors.json"},
       {"factors.json"},
       "small.toml",
       true,
       false},
      {"plan schedule",
       {"plan", "schedule", "--stages", "2", "--micro-batches", "4", "--svg", "plan.svg"},
       {"plan.svg"},
       "",
       true},
      {"report", {"report", "run", "--out", "run.html"}, {"run.html"}, "run/metrics.jsonl", true},
      {"bench report", {"bench", "report", "h100", "--out", "h100.html"}, {"h100.html"}, "", true},
      {"bench memory",
       {"bench", "memory", "recipe.toml", "--svg", "memory.svg", "--svg-times", "times.svg"},
       {"memory.svg", "times.svg"},
       "recipe.toml",
       true,
       false},
      {"bench collectives",
       {"bench", "collectives", "--ranks", "2", "--quick", "--json", "rows.json", "--csv",
        "rows.csv"},
       {"rows.json", "rows.csv"},
       "",
       true,
       false},
      {"bench smoke",
       {"bench", "smoke", "--quick", "--passing", "good.txt", "--failing", "bad.txt"},
       {"good.txt", "bad.txt"},
       "",
       true,
       false},
      {"bench products",
       {"bench", "products", "recipe.toml", "--quick", "--no-sweeps", "--json", "rows.json",
        "--csv", "rows.csv"},
       {"rows.json", "rows.csv"},
       "recipe.toml",
       true,
       false},
      {"bench checkpoint",
       {"bench", "checkpoint", "--dir", "disk", "--gib", "0.001", "--workload", "small"},
       {"disk"},
       "",
       false,
       false},
      {"train",
       {"train", tiny, "train.run_dir=new", "train.steps=1"},
       {"new/recipe.toml"},
       "",
       false,
       false},
      {"launch",
       {"launch", tiny, "train.run_dir=new", "train.steps=1"},
       {"new/recipe.toml"},
       "",
       false,
       false},
  };
}

void prepare_all(const Scratch& scratch) {
  prepare_text(scratch);
  run_ok(scratch, train_args({"train.steps=2", "train.trace_steps=1"}));
  run_ok(scratch, {"ckpt", "export", "run/checkpoints", "hf"});
  run_ok(scratch, train_args({"train.run_dir=lora", "train.steps=1", "init.model=hf", "lora.rank=2",
                              "lora.targets=attention"}));
  fs::copy_file(kData + "/vectors/stones.txt", scratch / "corpus.txt");
  std::string chats;
  for (int i = 0; i < 300; ++i)
    chats += R"({"prompt": "Hi there", "completion": "Ho"})"
             "\n";
  write_file(scratch / "chats.jsonl", chats);
  write_file(scratch / "chat.jinja", "{% for m in messages %}{{ m.content }}</s>{% endfor %}");
  fs::copy_file(kData + "/recipes/tiny.toml", scratch / "recipe.toml");
  fs::copy_file(kData + "/recorded_steps/machine.toml", scratch / "small.toml");
  run_ok(scratch, {"plan", "simulate", "recipe.toml", "--ranks", "1", "--machine", "small.toml",
                   "--perfetto", "simulated.json"});
  run_ok(scratch,
         {"tokenizer", "train", "--input", "corpus.txt", "--vocab", "320", "--out", "tok.model"});
}

// All that stands in a directory: content of files, targets of links, and directories.
std::map<std::string, std::string> all_in(const fs::path& directory) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    const std::string name = fs::relative(entry.path(), directory);
    // relative() follows links: the name itself is wanted.
    const std::string own = entry.path().lexically_relative(directory);
    if (entry.is_symlink())
      all[own] = "-> " + fs::read_symlink(entry.path()).string();
    else
      all[own] = entry.is_directory() ? "directory" : read_file(entry.path());
  }
  return all;
}

void expect_refused(const Scratch& scratch, const std::vector<std::string>& args,
                    const std::string& word) {
  const auto before = all_in(scratch.path());
  const Result result = run(scratch, args);
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find(word), std::string::npos) << result.err;
  EXPECT_EQ(count_of(result.err, "\n"), 1) << result.err;
  EXPECT_TRUE(all_in(scratch.path()) == before);
}

std::vector<std::string> with_force(std::vector<std::string> args) {
  args.push_back("--force");
  return args;
}

TEST(Outputs, ANameInUseIsRefused) {
  const Scratch scratch;
  prepare_all(scratch);
  for (const Command& command : commands())
    for (const std::string& output : command.outputs) {
      SCOPED_TRACE(command.name + ": " + output);
      const fs::path path = scratch / output;
      fs::create_directories(path.parent_path());
      write_file(path, "precious");
      expect_refused(scratch, command.args, output);
      fs::remove(path);
      fs::create_directories(path);
      write_file(path / "note", "precious");
      if (output != "new/recipe.toml") expect_refused(scratch, command.args, output);
      fs::remove_all(path);
      if (command.forces) {
        fs::create_directories(path);
        expect_refused(scratch, with_force(command.args), "no regular file");
        fs::remove_all(path);
      }
      if (command.input.empty()) continue;
      for (const bool hard : {true, false}) {
        if (hard)
          fs::create_hard_link(scratch / command.input, path);
        else
          fs::create_symlink(scratch / command.input, path);
        expect_refused(scratch, command.args, output);
        expect_refused(scratch, with_force(command.args), "is the input ");
        fs::remove(path);
      }
    }
}

TEST(Outputs, FilesAreReplacedWhenAskedFor) {
  const Scratch scratch;
  prepare_all(scratch);
  for (const Command& command : commands()) {
    if (!command.forces || !command.cheap) continue;
    SCOPED_TRACE(command.name);
    auto want = all_in(scratch.path());
    for (const std::string& output : command.outputs) write_file(scratch / output, "old");
    run_ok(scratch, with_force(command.args));
    for (const std::string& output : command.outputs) {
      EXPECT_GT(read_file(scratch / output).size(), 3u) << output;
      fs::remove(scratch / output);
    }
    EXPECT_TRUE(all_in(scratch.path()) == want);
  }
}

// No file grows past 2,000 bytes: every command fails while it writes.
TEST(Outputs, AFailureTakesAwayItsOwnOnly) {
  const Scratch scratch;
  prepare_all(scratch);
  for (const Command& command : commands()) {
    if (!command.cheap) continue;
    SCOPED_TRACE(command.name);
    for (const std::string& output : command.outputs)
      for (const char* ending : {".tmp", ".old", "-1"})
        write_file(scratch / (output + ending), "precious");
    const auto before = all_in(scratch.path());
    const Result result = run(scratch, command.args, [] {
      const rlimit limit{2000, 2000};
      setrlimit(RLIMIT_FSIZE, &limit);
    });
    EXPECT_EQ(result.code, 25) << result.err;
    EXPECT_TRUE(all_in(scratch.path()) == before);
  }
}

TEST(Outputs, ARunReplacesItsOwnRecipeAlone) {
  const Scratch scratch;
  prepare_text(scratch);
  fs::create_directory(scratch / "run");
  write_file(scratch / "run/recipe.toml", read_file(kData + "/recipes/tiny.toml"));
  const std::vector<std::string> args{"train", "run/recipe.toml", "train.steps=2"};
  expect_refused(scratch, args, "run/recipe.toml was not written by a run");
  fs::remove(scratch / "run/recipe.toml");
  run_ok(scratch, train_args({"train.steps=1"}));
  EXPECT_TRUE(read_file(scratch / "run/recipe.toml").starts_with("# Written by `ashlar train`"));
  run_ok(scratch, args);
  EXPECT_NE(read_file(scratch / "run/recipe.toml").find("\nsteps = 2\n"), std::string::npos);
}

}  // namespace
}  // namespace ashlar::integration
