// Runs whose ranks find other files under the same paths: each is refused before its first step, by
// the name of the key, both values and both ranks.  Two folders stand for two machines.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;
using Keys = std::vector<std::string>;

class Machines : public testing::Test {
 protected:
  Machines() {
    for (const char* machine : {"a", "b"}) fs::create_directory(scratch_ / machine);
    texts_ = "";
    for (int i = 0; i < 3000; ++i)
      texts_ += "stone " + std::to_string(i) + " stands on stone " + std::to_string(i * i) + "\n\n";
  }
  fs::path at(const std::string& machine, const std::string& path) const {
    return scratch_ / machine / path;
  }
  // A dataset of byte tokens on one machine.
  void prepare(const std::string& machine, const std::string& text,
               const std::string& prefix = "text") {
    write_file(at(machine, prefix + ".txt"), text);
    run_ok(scratch_, {"data", "prepare", "--input", at(machine, prefix + ".txt"), "--tokenizer",
                      "byte", "--out", at(machine, prefix)});
  }
  void prepare_both(const std::string& prefix = "text") {
    for (const char* machine : {"a", "b"}) prepare(machine, texts_, prefix);
  }
  std::string other_texts() const {  // as long, document by document
    std::string other = texts_;
    for (char& c : other)
      if (c == 's') c = 'S';
    return other;
  }
  // Rank 0 in folder a, rank 1 in folder b.
  Result run_both(const Keys& keys, const Keys& program_of_b = {ASHLAR_BINARY}) {
    Keys all = {"data.train=text",     "train.run_dir=run",   "train.steps=2",
                "train.eval_every=0",  "train.micro_batch=1", "checkpoint.every=-1",
                "data.tokenizer=byte", "train.precision=fp32"};
    all.insert(all.end(), keys.begin(), keys.end());
    std::vector<std::string> launcher = mpirun(1), args = train_args(all);
    launcher.insert(launcher.end(), {"-wdir", at("a", "")});
    args.insert(args.end(), {":", "-n", "1", "-wdir", at("b", "")});
    args.insert(args.end(), program_of_b.begin(), program_of_b.end());
    for (const std::string& word : train_args(all)) args.push_back(word);
    return run(scratch_, args, {}, launcher);
  }
  // Both ranks are named with their hosts and with what they have, in one line.
  void expect_refused(const Result& result, const std::string& key, const std::string& what) {
    EXPECT_EQ(result.code, 2) << what << ": " << result.err;
    // A rank that the launcher ends may say that it was signalled.
    EXPECT_EQ(count_of(result.err, "ashlar: ") - count_of(result.err, "ashlar: TERM: "), 1)
        << result.err;
    const size_t first = result.err.find("rank 1 on "), second = result.err.find("rank 0 on ");
    EXPECT_LT(first, second) << result.err;
    EXPECT_NE(second, std::string::npos) << what << ": " << result.err;
    EXPECT_GE(count_of(result.err, key), key == "train.run_dir" ? 1 : 2) << result.err;
    EXPECT_FALSE(contains(result.err, "loss ")) << result.err;
    EXPECT_FALSE(contains(result.err, "damaged")) << result.err;
  }
  void expect_trains(const Result& result, const std::string& what) {
    EXPECT_EQ(result.code, 0) << what << ": " << result.err;
  }

  Scratch scratch_;
  std::string texts_;
};

TEST_F(Machines, TrainOnEqualCopiesAndOnLinksToThem) {
  prepare_both();
  expect_trains(run_both({}), "copies");
  for (const char* end : {".bin", ".idx", ".json"}) {
    fs::rename(at("b", std::string("text") + end), at("b", std::string("kept") + end));
    fs::create_symlink(std::string("kept") + end, at("b", std::string("text") + end));
  }
  expect_trains(run_both({}), "links");
}

TEST_F(Machines, WithOtherTextsAreRefused) {
  prepare("a", texts_);
  prepare("b", other_texts());
  expect_refused(run_both({}), "data.train", "other texts");
  // Datasets of other programs have no checksum.
  for (const char* machine : {"a", "b"}) fs::remove(at(machine, "text.json"));
  expect_refused(run_both({}), "data.train", "other texts without a sidecar");
  prepare("b", texts_.substr(0, 20'000), "part");
  for (const char* end : {".bin", ".idx", ".json"})
    fs::copy_file(at("b", std::string("part") + end), at("b", std::string("text") + end),
                  fs::copy_options::overwrite_existing);
  expect_refused(run_both({}), "data.train", "fewer texts");
  EXPECT_FALSE(fs::exists(at("a", "run")));
}

TEST_F(Machines, WithAnotherLinkAreRefused) {
  prepare_both();
  prepare("b", other_texts(), "other");
  for (const char* end : {".bin", ".idx", ".json"}) {
    fs::remove(at("b", std::string("text") + end));
    fs::create_symlink(std::string("other") + end, at("b", std::string("text") + end));
  }
  expect_refused(run_both({}), "data.train", "another link");
}

TEST_F(Machines, WithOtherValidationDataAreRefused) {
  prepare_both();
  prepare("a", texts_, "held");
  prepare("b", other_texts(), "held");
  expect_refused(run_both({"data.validation=held"}), "data.validation", "other validation data");
}

TEST_F(Machines, WithAnotherTokenizerAreRefused) {
  prepare_both();
  for (const char* machine : {"a", "b"}) fs::remove(at(machine, "text.json"));
  write_file(at("a", "tok.model"), "ashlar byte tokenizer 1\n");
  run_ok(scratch_, {"tokenizer", "train", "--input", at("b", "text.txt"), "--vocab", "300", "--out",
                    at("b", "tok.model")});
  expect_refused(run_both({"data.tokenizer=tok.model"}), "data.tokenizer", "another tokenizer");
}

TEST_F(Machines, WithoutTheDatasetAreNamed) {
  prepare("a", texts_);
  const Result result = run_both({});
  EXPECT_EQ(result.code, 24) << result.err;
  EXPECT_TRUE(contains(result.err, "data.train: text.idx: there is no such file")) << result.err;
  EXPECT_TRUE(contains(result.err, "[rank 1 of 2, host ")) << result.err;
}

TEST_F(Machines, WithOtherFirstWeightsAreRefused) {
  prepare_both();
  for (const char* machine : {"a", "b"}) {
    const std::string root = at(machine, "donor");
    run_ok(scratch_, train_args({"data.train=" + at(machine, "text").string(),
                                 "train.run_dir=" + root, "train.steps=1", "train.eval_every=0",
                                 std::string("train.seed=") + (*machine == 'a' ? "1" : "2")}));
    run_ok(scratch_, {"ckpt", "export", root + "/checkpoints", at(machine, "hf")});
  }
  for (const char* model : {"hf", "donor/checkpoints"})
    expect_refused(run_both({std::string("init.model=") + model}), "init.model", model);
  for (const std::string model : {"hf", "donor"}) {
    fs::remove_all(at("b", model));
    fs::copy(at("a", model), at("b", model), fs::copy_options::recursive);
    const std::string path = model == "hf" ? model : model + "/checkpoints";
    expect_trains(run_both({"init.model=" + path}), path);
  }
}

TEST_F(Machines, WithOtherRunDirectoriesAreNamed) {
  prepare_both();
  const Keys saving = {"checkpoint.every=1"};
  expect_refused(run_both(saving), "train.run_dir", "nothing saved yet");
  for (const char* machine : {"a", "b"})
    run_ok(scratch_, train_args({"data.train=" + at(machine, "text").string(),
                                 "train.run_dir=" + at(machine, "run").string(), "train.steps=1",
                                 "train.eval_every=0"}));
  expect_refused(run_both(saving), "train.run_dir", "steps of two runs");
  expect_refused(run_both({}), "train.run_dir", "steps of two runs, and no saves");
  fs::remove_all(at("b", "run"));
  expect_refused(run_both(saving), "train.run_dir", "no directory");
  fs::create_directory_symlink("../a/run", at("b", "run"));
  expect_trains(run_both(saving), "a link to the other's");
}

// Every copy is read whole, not only that of rank 0.
TEST_F(Machines, EachCopyIsVerified) {
  for (int i = 0; i < 3; ++i) texts_ += texts_;
  prepare_both();
  const auto size = int64_t(fs::file_size(at("b", "text.bin")));
  ASSERT_GT(size, 600'000);
  {
    // Between the blocks by which copies are compared at the start.
    std::fstream bin(at("b", "text.bin"), std::ios::binary | std::ios::in | std::ios::out);
    bin.seekp((size - 4096) / 63 * 20 + 6000);
    bin.put('\x07');
  }
  const Result result = run_both({});
  EXPECT_EQ(result.code, 24) << result.err;
  EXPECT_TRUE(contains(result.err, "text.bin: checksum is ")) << result.err;
  EXPECT_TRUE(contains(result.err, "[rank 1 of 2, host ")) << result.err;
  EXPECT_EQ(run_both({"data.verify=off"}).code, 0);
}

TEST_F(Machines, WithAnotherProgramAreRefused) {
  prepare_both();
  fs::copy_file(ASHLAR_BINARY, scratch_ / "other");
  std::ofstream(scratch_ / "other", std::ios::app) << "built elsewhere";
  expect_refused(run_both({}, {scratch_ / "other"}), "program", "another build");
}

TEST_F(Machines, WithAnotherInstructionSetAreRefused) {
  if (contains(run_ok(scratch_, {"info"}), "in use        x86-64"))
    GTEST_SKIP() << "needs a CPU with more than one instruction set that kernels have paths for";
  prepare_both();
  const Keys lesser = {"/usr/bin/env", "ASHLAR_ISA=x86-64", ASHLAR_BINARY};
  expect_refused(run_both({}, lesser), "instruction set", "another instruction set");
}

}  // namespace
}  // namespace ashlar::integration
