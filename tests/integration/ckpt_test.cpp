// The checkpoint commands on what damage, careless paths and foreign names make of a root.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/checkpoint/save/checkpointer.h"
#include "ashlar/checkpoint/writers/timing.h"
#include "ashlar/core/checksum.h"
#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void flip_middle(const fs::path& path) {
  std::string text = read_file(path);
  text[text.size() / 2] = char(text[text.size() / 2] ^ 1);
  write_file(path, text);
}

// A root "run/checkpoints" of steps 10, 20, 30, and a model directory "hf" of the last with a
// tokenizer.
void make_root_and_model(const Scratch& scratch) {
  prepare_text(scratch);
  run_ok(scratch, train_args({"train.eval_every=0"}));
  run_ok(scratch, {"ckpt", "export", "run/checkpoints", "hf"});
  write_file(scratch / "hf/tokenizer.model", "ashlar byte tokenizer 1\n");
}

// A bit in the middle of the optimizer's file: sizes do not tell, and no reader needs it.
TEST(Ckpt, EveryCommandNamesTheNewestGoodStep) {
  const Scratch scratch;
  make_root_and_model(scratch);
  flip_middle(step_directory(scratch / "run", 30) /
              "optim/shard-00001-model-00001-of-00001.safetensors");
  const std::string root = "run/checkpoints", good = root + "/step-000000000020";
  const std::string quick = run_ok(scratch, {"ckpt", "list", root});
  EXPECT_TRUE(contains(quick, "complete")) << quick;
  EXPECT_TRUE(contains(quick, "<- is tried first")) << quick;
  EXPECT_FALSE(contains(quick, "good") || contains(quick, "continues")) << quick;
  const json deep =
      json::parse(run_ok(scratch, {"ckpt", "list", root, "--level", "deep", "--json"}));
  ASSERT_EQ(deep.size(), 3u);
  EXPECT_EQ(deep[1]["state"], "good");
  EXPECT_EQ(deep[1]["recovery_choice"], true);
  EXPECT_EQ(deep[2]["state"], "damaged");
  const std::string shown = run_ok(scratch, {"ckpt", "show", root});
  EXPECT_TRUE(shown.starts_with(good + "\n")) << shown;
  const std::string exported = run_ok(scratch, {"ckpt", "export", root, "again"});
  EXPECT_TRUE(contains(exported, "from " + good)) << exported;
  const std::vector<std::string> ids{"--ids", "1,2,3", "--dtype", "fp32"};
  const auto with = [&](std::vector<std::string> args) {
    args.insert(args.end(), ids.begin(), ids.end());
    return run_ok(scratch, args);
  };
  EXPECT_EQ(with({"score", "--model", root}), with({"score", "--model", good}));
  EXPECT_NE(with({"score", "--model", root}),
            with({"score", "--model", root + "/step-000000000030"}));
  const Result resumed = run(scratch, train_args({"train.steps=31"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(contains(resumed.err, "continuing after step 20 ")) << resumed.err;
}

TEST(Ckpt, AnExtraFileIsCheckedBeforeItIsCopied) {
  const Scratch scratch;
  make_root_and_model(scratch);
  run_ok(scratch, {"ckpt", "import", "hf", "root"});
  run_ok(scratch, {"ckpt", "export", "root", "whole"});
  EXPECT_EQ(read_file(scratch / "whole/tokenizer.model"), "ashlar byte tokenizer 1\n");
  const fs::path tokenizer = scratch / "root/step-000000000000/extra/tokenizer.model";
  flip_middle(tokenizer);
  for (const char* what : {"root", "root/step-000000000000"}) {
    const Result result = run(scratch, {"ckpt", "export", what, "damaged"});
    EXPECT_EQ(result.code, 26) << result.err;
    EXPECT_TRUE(contains(result.err, "extra/tokenizer.model")) << result.err;
    EXPECT_FALSE(fs::exists(scratch / "damaged"));
  }
}

TEST(Ckpt, ImportWritesNothingIntoTheModelDirectory) {
  const Scratch scratch;
  make_root_and_model(scratch);
  fs::create_directory_symlink("hf", scratch / "link");
  fs::create_directory(scratch / "hf/sub");
  const auto before = read_tree(scratch.path());
  for (const char* root : {"hf", "hf/", "./hf/../hf", "hf/new", "hf/sub/new", "link", "link/new"})
    for (const char* model : {"hf", "link"}) {
      const Result result = run(scratch, {"ckpt", "import", model, root});
      EXPECT_EQ(result.code, 2) << root << ": " << result.err;
      EXPECT_TRUE(contains(result.err, "choose a root outside")) << result.err;
    }
  EXPECT_EQ(read_tree(scratch.path()), before);
  EXPECT_FALSE(fs::exists(scratch / "hf/new"));
  run_ok(scratch, {"ckpt", "import", "hf", "hf-step"});
}

TEST(Ckpt, NothingIsWrittenIntoAStep) {
  const Scratch scratch;
  make_root_and_model(scratch);
  fs::create_directory_symlink("run/checkpoints/step-000000000030", scratch / "link");
  const auto before = read_tree(scratch.path());
  const std::string step = "run/checkpoints/step-000000000020";
  for (const std::string& out : {step + "/hf", step + "/model/deep/hf", step + "/hf/",
                                 std::string("link/hf"), step + "/../step-000000000010/hf"})
    for (const std::string verb : {"export", "import"}) {
      const Result result =
          run(scratch, {"ckpt", verb, verb == "export" ? "run/checkpoints" : "hf", out});
      EXPECT_EQ(result.code, 2) << verb << " " << out << ": " << result.err;
      EXPECT_TRUE(contains(result.err, out + " lies in the checkpoint step ")) << result.err;
      EXPECT_TRUE(contains(result.err, "choose a directory outside")) << result.err;
    }
  EXPECT_EQ(read_tree(scratch.path()), before);
  EXPECT_FALSE(fs::exists(scratch / step / "hf"));
  run_ok(scratch, {"ckpt", "export", step, "run/checkpoints-hf"});
}

// No name or string of a file reaches the terminal as a command.
TEST(Ckpt, NamesOfFilesArePrintedWithoutControlCharacters) {
  const Scratch scratch;
  const auto files = posix_files();
  Log log([](std::string_view) {});
  const std::string evil =
      "\x1b[2J\x07\r\xc2\x9b"
      "2J";
  int64_t value = 7;
  const LogicalTensor logical{"w" + evil, DType::kI64, {1}, Role::kParameter};
  const Piece piece{logical, Box::whole(logical.global_shape), tensor_over(std::span(&value, 1))};
  {
    checkpoint::CheckpointOptions options;
    options.async = false;
    options.run_id = "run" + evil;
    options.writer_version = "version" + evil;
    checkpoint::Checkpointer checkpoints(*files, scratch / "root", options, log);
    checkpoint::SaveRequest request;
    request.step = 1;
    request.model = std::span(&piece, 1);
    checkpoints.save(request);
  }
  fs::create_directory(scratch / ("root/.tmp-step-000000000002-" + evil));
  fs::rename(scratch / "root", scratch / ("root" + evil));
  const std::string root = "root" + evil, step = root + "/step-000000000001";
  for (const std::vector<std::string>& args : {std::vector<std::string>{"ckpt", "list", root},
                                               {"ckpt", "show", root, "--tensors"},
                                               {"ckpt", "verify", step}}) {
    const std::string out = run_ok(scratch, args);
    EXPECT_FALSE(out.empty());
    for (const char c : out) EXPECT_TRUE(c == '\n' || !(uint8_t(c) < ' ' || c == 127)) << out;
    EXPECT_FALSE(contains(out, "\xc2\x9b")) << out;
  }
}

// Equal is 0, different is 1; across layouts and formats, in words and as JSON.
TEST(Ckpt, DiffTellsWhatDiffers) {
  const Scratch scratch;
  make_root_and_model(scratch);
  const std::string root = "run/checkpoints", older = root + "/step-000000000020";
  run_ok(scratch, {"ckpt", "export", root, "fp32", "--dtype", "fp32"});
  const std::string same = run_ok(scratch, {"ckpt", "diff", root, "fp32", "--values"});
  EXPECT_TRUE(contains(same, "tensors are equal, bit for bit")) << same;
  EXPECT_TRUE(contains(same, "optim is not compared")) << same;
  EXPECT_EQ(count_of(same, "\n"), 1) << same;
  const Result names = run(scratch, {"ckpt", "diff", root, older});
  EXPECT_EQ(names.code, 0) << names.out;
  const Result values = run(scratch, {"ckpt", "diff", root, older, "--values"});
  EXPECT_EQ(values.code, 1);
  EXPECT_TRUE(contains(values.out, "model.norm.weight: 32 of 32 elements differ, by at most "))
      << values.out;
  const Result rounded = run(scratch, {"ckpt", "diff", root, "hf", "--json"});
  EXPECT_EQ(rounded.code, 1);
  const json rows = json::parse(rounded.out);
  EXPECT_EQ(rows["equal"], false);
  EXPECT_EQ(rows["not_compared"], json::parse("[\"optim\", \"loader\"]"));
  EXPECT_EQ(rows["tensors"][0]["a"]["dtype"], "F32");
  EXPECT_EQ(rows["tensors"][0]["b"]["dtype"], "BF16");
  EXPECT_EQ(run(scratch, {"ckpt", "diff", root, "hf", "--component", "all"}).code, 2);
}

TEST(Ckpt, AverageMakesAModelThatOthersRead) {
  const Scratch scratch;
  make_root_and_model(scratch);
  const std::string root = "run/checkpoints", older = root + "/step-000000000020";
  run_ok(scratch, {"ckpt", "average", root, "--out", "same", "--weights", "3"});
  const std::string same =
      run_ok(scratch, {"ckpt", "diff", "same", root, "--values", "--component", "model"});
  EXPECT_TRUE(contains(same, "tensors are equal, bit for bit")) << same;
  run_ok(scratch, {"ckpt", "average", root, older, "--weights", "1,3", "--out", "both"});
  run_ok(scratch, {"ckpt", "average", root, older, "--weights", "1,3", "--out", "both-hf", "--to",
                   "hf", "--dtype", "fp32"});
  run_ok(scratch, {"ckpt", "diff", "both", "both-hf", "--values"});
  run_ok(scratch, {"ckpt", "verify", "both/step-000000000000"});
  const json note = json::parse(read_file(scratch / "both/step-000000000000/extra/average.json"));
  EXPECT_EQ(note["models"][1]["source"], older);
  EXPECT_EQ(note["models"][1]["weight"], 3.0);
  const std::vector<std::string> ids{"--ids", "1,2,3", "--dtype", "fp32"};
  const auto score = [&](const std::string& model) {
    std::vector<std::string> args{"score", "--model", model};
    args.insert(args.end(), ids.begin(), ids.end());
    return run_ok(scratch, args);
  };
  EXPECT_EQ(score("both"), score("both-hf"));
  EXPECT_NE(score("both"), score(root));
  run_ok(scratch, train_args({"init.model=both", "train.run_dir=next", "train.steps=2"}));
  // tokenizer.model of the run, which the directory has with tokenizer.json beside it.
  run_ok(scratch, {"ckpt", "import", "hf", "imported"});
  run_ok(scratch, {"ckpt", "average", root, "imported", "--out", "with-imported"});
  run_ok(scratch, {"ckpt", "average", "hf", root, "--out", "with-hf"});
  fs::copy(scratch / "hf", scratch / "other", fs::copy_options::recursive);
  write_file(scratch / "other/tokenizer.model", "another");
  const Result other = run(scratch, {"ckpt", "average", root, "other", "--out", "none"});
  EXPECT_EQ(other.code, 2) << other.err;
  EXPECT_TRUE(contains(other.err, "different tokenizers")) << other.err;
  for (const auto& [out, args] : {std::pair<std::string, std::vector<std::string>>{"both", {root}},
                                  {older + "/average", {root}},
                                  {"hf/average", {"hf"}}}) {
    std::vector<std::string> command{"ckpt", "average", "--out", out};
    command.insert(command.end(), args.begin(), args.end());
    EXPECT_EQ(run(scratch, command).code, 2) << out;
  }
}

TEST(Ckpt, PinsAndPrunes) {
  const Scratch scratch;
  make_root_and_model(scratch);
  const std::string root = "run/checkpoints";
  EXPECT_TRUE(contains(run_ok(scratch, {"ckpt", "pin", root, "10"}), "is pinned"));
  const json listed = json::parse(run_ok(scratch, {"ckpt", "list", root, "--json"}));
  ASSERT_EQ(listed.size(), 3u);
  EXPECT_EQ(listed[0]["pinned"], true);
  EXPECT_EQ(listed[1]["pinned"], false);
  EXPECT_EQ(listed[1]["readers"], 0);
  EXPECT_TRUE(contains(run_ok(scratch, {"ckpt", "list", root}), "  pinned"));
  const json planned =
      json::parse(run_ok(scratch, {"ckpt", "prune", root, "--keep", "1", "--dry-run", "--json"}));
  ASSERT_EQ(planned.size(), 1u);
  EXPECT_EQ(planned[0]["step"], 20);
  EXPECT_GT(planned[0]["bytes"], 0);
  EXPECT_EQ(planned[0]["removed"], false);
  EXPECT_TRUE(fs::exists(step_directory(scratch / "run", 20)));
  const std::string pruned = run_ok(scratch, {"ckpt", "prune", root, "--keep", "1"});
  EXPECT_TRUE(contains(pruned, root + ": 1 of 3 steps removed")) << pruned;
  EXPECT_FALSE(fs::exists(step_directory(scratch / "run", 20)));
  run_ok(scratch, {"ckpt", "unpin", root, "step-000000000010"});
  run_ok(scratch, {"ckpt", "prune", root, "--keep", "1"});
  EXPECT_FALSE(fs::exists(step_directory(scratch / "run", 10)));
  run_ok(scratch, {"ckpt", "verify", root + "/step-000000000030"});
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"ckpt", "pin", root, "10"},
                                                {"ckpt", "unpin", root, "30"},
                                                {"ckpt", "prune", root, "--keep", "0"},
                                                {"ckpt", "prune", "nowhere", "--keep", "1"}})
    EXPECT_EQ(run(scratch, wrong).code, 2);
}

TEST(Layouts, OfProcessesShowWhereTheTimeOfASaveWent) {
  const Scratch scratch;
  prepare_text(scratch);
  const Result result = run(scratch,
                            run_args("run", 1,
                                     {"train.eval_every=0", "train.steps=30", "checkpoint.every=10",
                                      "checkpoint.keep=1", "checkpoint.gather_mib=0"}),
                            {}, mpirun(2));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count_of(result.err, " s, slowest rank "), 3) << result.err;
  const std::string step = "run/checkpoints/step-000000000030";
  const std::string table = run_ok(scratch, {"ckpt", "show", "run/checkpoints", "--timeline"});
  EXPECT_TRUE(table.starts_with(step + ": 2 writers, seconds by rank and phase\n")) << table;
  for (const char* word : {"  rank  host", " copy ", " write ", "\n     1  ", "\nmedian  ", "█"})
    EXPECT_TRUE(contains(table, word)) << word << "\n" << table;
  const std::string printed = run_ok(scratch, {"ckpt", "show", step, "--timeline", "--json"});
  const json timing = json::parse(printed);
  EXPECT_EQ(timing["step"], 30);
  ASSERT_EQ(timing["writers"].size(), 2u);
  for (const json& writer : timing["writers"]) {
    EXPECT_GT(writer["phases"]["write"][1], 0.0);
    EXPECT_GT(writer["phases"]["write"][2], 0);
    EXPECT_FALSE(writer["files"].empty());
  }
  EXPECT_EQ(printed, read_file(scratch / step / "extra/timing.json") + "\n");
  EXPECT_EQ(run(scratch, {"ckpt", "show", step, "--timeline", "--tensors"}).code, 2);
  int saved = 0, read_back = 0;
  std::istringstream rows(read_file(scratch / "run/metrics.jsonl"));
  for (std::string line; std::getline(rows, line);) {
    const json row = json::parse(line);
    const std::string event = row.value("event", "");
    saved += event == "checkpoint";
    read_back += event == "checkpoint_read_back";
    if (!event.starts_with("checkpoint")) continue;
    const json& phase = row["phases"].at(event == "checkpoint" ? "write" : "verify");
    EXPECT_GE(phase["max_s"], phase["median_s"]);
    EXPECT_LT(phase["rank"], 2);
    EXPECT_TRUE(row["slow"].is_array());
    EXPECT_GT(row["bytes"], 0);
    if (event == "checkpoint_read_back") {
      EXPECT_GE(row["verify_s"], phase["max_s"]);
      EXPECT_GT(row["remove_s"], 0.0);
    }
  }
  EXPECT_EQ(saved, 3);
  EXPECT_GE(read_back, 1);
}

TEST(Ckpt, AStepOfAnOlderProgramHasNoTimeline) {
  const Scratch scratch;
  const Result result =
      run(scratch, {"ckpt", "show", ASHLAR_FIXTURES "/golden_steps/three-writers", "--timeline"});
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err,
                       "three-writers has no extra/timing.json; it was saved by an "
                       "older program, which kept no times"))
      << result.err;
}

// A step of so many writers, whose times are made up: all alike, but for one that writes slowly.
std::string step_with_slow_writer(FileSystem& files, const std::string& root, int writers,
                                  int slow) {
  using namespace checkpoint;
  Log log([](std::string_view) {});
  Lease lease((files.make_directories(root), files), root, log);
  const Id attempt = random_id();
  std::vector<float> values(2);
  const LogicalTensor logical{"w", DType::kF32, {2 * writers}, Role::kParameter};
  AllParts all;
  std::string directory;
  for (int rank = writers - 1; rank >= 0; --rank) {
    const Piece piece{logical, {{2 * rank}, {2}}, tensor_over(std::span(values))};
    SaveRequest request;
    request.step = 1;
    request.attempt = attempt;
    request.model = std::span(&piece, 1);
    SavePlan plan = make_save_plan(request, "run", attempt, rank, writers);
    PhaseRecorder times(Clock::now());
    StepWriter writer(files, root, plan, 0, log, times, fmt::format("n{}\x1b[2J", rank / 8));
    writer.begin();
    std::vector<std::byte> bytes(size_t(plan.files[0].file.size_bytes));
    fill_from_plan(plan.files[0], 0, bytes);
    writer.write_chunk(0, 0, bytes, crc32c(bytes));
    times.add(Phase::kWrite, Clock::now() - std::chrono::seconds(rank == slow ? 10 : 2), 0,
              rank == slow ? 3 : 0);
    if (rank == 0) {
      directory = writer.publish(lease.fence(), std::move(all));
      continue;
    }
    all.parts.insert(all.parts.begin(), writer.make_part());
    all.cover += cover_of(all.parts[0].index);
  }
  return directory;
}

TEST(Ckpt, ATimelineOfManyRanksShowsTheSlowOnes) {
  const Scratch scratch;
  const auto files = posix_files();
  const std::string step = step_with_slow_writer(*files, scratch / "root", 100, 57);
  const std::string table = run_ok(scratch, {"ckpt", "show", step, "--timeline"});
  EXPECT_TRUE(contains(table, ": 100 writers, ")) << table;
  EXPECT_TRUE(contains(table, "16 of 100 ranks are shown: the slow ones\n")) << table;
  EXPECT_TRUE(contains(table, "rank 57 on n7?[2J is slow: writing took 10.0")) << table;
  EXPECT_TRUE(contains(table, " s, median 2.0")) << table;
  EXPECT_EQ(count_of(table, " is slow: writing"), 1) << table;
  const size_t row = table.find("\n    57  n7?[2J");
  ASSERT_NE(row, table.npos) << table;
  const std::string line = table.substr(row + 1, table.find('\n', row + 1) - row - 1);
  EXPECT_TRUE(contains(line, "██  10.0") && line.ends_with(" 3")) << line;  // tries
  EXPECT_TRUE(contains(table, "░░   2.0")) << table;
  run_ok(scratch, {"ckpt", "verify", step});
}

TEST(Ckpt, ARunContinuesFromAnOlderStepWhereAsked) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, train_args({"train.eval_every=0"}));
  const auto again = [&](std::vector<std::string> more) {
    std::vector<std::string> args = train_args({"train.eval_every=0"});
    args.insert(args.end(), more.begin(), more.end());
    return run(scratch, args);
  };
  const Result refused = again({"--from-step", "10"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_TRUE(contains(refused.err, "holds steps newer than 10: 20, 30; set them aside with"))
      << refused.err;
  EXPECT_EQ(again({"--from-step", "15"}).code, 2);
  EXPECT_NE(again({"--supersede"}).code, 0);
  const std::string before = read_file(step_directory(scratch / "run", 30) / "model" /
                                       "shard-00001-model-00001-of-00001.safetensors");
  const Result continued = again({"--from-step", "10", "--supersede"});
  EXPECT_EQ(continued.code, 0) << continued.err;
  EXPECT_TRUE(contains(continued.err, "continuing after step 10 ")) << continued.err;
  // Everything but the identifiers is what it was: the data begin at 4096 or later.
  const std::string after = read_file(step_directory(scratch / "run", 30) / "model" /
                                      "shard-00001-model-00001-of-00001.safetensors");
  ASSERT_EQ(after.size(), before.size());
  EXPECT_EQ(after.substr(after.size() / 2), before.substr(before.size() / 2));
}

}  // namespace
}  // namespace ashlar::integration
