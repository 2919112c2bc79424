// Saving: what is on disk, in the background, with a small arena; retention; who may save.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "ashlar/checkpoint/save/retention.h"
#include "tests/checkpoint/safetensors_validator.h"
#include "tests/checkpoint/state_test_util.h"

namespace ashlar::checkpoint {
namespace {

TEST(Save, WritesTheDocumentedFiles) {
  const auto files = memory_files();
  Log log = quiet_log();
  Checkpointer checkpoints(*files, "runs/a", direct(), log);
  EXPECT_FALSE(checkpoints.newest());
  TinyRun run;
  run.fill(1);
  checkpoints.save(run.request(12000));
  const std::string step = "runs/a/step-000000012000";
  EXPECT_EQ(checkpoints.newest()->directory, step);
  EXPECT_EQ(read_all(*files, "runs/a/LATEST"), "step-000000012000\n");
  EXPECT_EQ(files->list(step), (std::vector<std::string>{"COMMIT", "extra", "index.bin", "loader",
                                                         "manifest.json", "model", "optim"}));
  EXPECT_EQ(
      files->list(step + "/extra"),
      (std::vector<std::string>{"empty.bin", "timing.json", "tokenizer.model", "trainer.json"}));
  for (const char* name :
       {"model/shard-00001-model-00001-of-00001.safetensors",
        "optim/shard-00001-model-00001-of-00001.safetensors", "loader/streams-00000.safetensors"}) {
    SafetensorsValidator validator;
    EXPECT_EQ(validator.validate(read_all(*files, join(step, name))), "") << name;
    EXPECT_EQ(validator.data_begin % 4096, 0u);
    EXPECT_EQ(validator.metadata["format"], "pt");
    EXPECT_EQ(validator.metadata["DCP_VERSION"], "1.0");
    EXPECT_EQ(validator.metadata["ashlar.step"], "12000");
    EXPECT_EQ(validator.metadata["ashlar.run_id"], "run");
    for (const auto& [tensor, entry] : validator.tensors)
      EXPECT_NE(
          validator.metadata["DCP_SHARDING_INFO"].find('"' + tensor + "\":{\"saved_offsets\":["),
          std::string::npos);
  }
  const auto stats = checkpoints.take_stats();
  ASSERT_EQ(stats.size(), 1u);
  EXPECT_EQ(stats[0].step, 12000);
  EXPECT_EQ(stats[0].bytes, StepReader(*files, step).commit().bytes);
  EXPECT_GT(stats[0].total_s, 0);
  EXPECT_TRUE(checkpoints.take_stats().empty());
}

// Memory that is not what the host reads, as a device's is: model and optimizer pass the source.
class Inverted final : public SnapshotSource {
 public:
  void read(const FilePlan::Source& source, int64_t offset, std::span<std::byte> out) override {
    HostSource().read(source, offset, out);
    for (std::byte& byte : out) byte = ~byte;
  }
};

TEST(Save, ReadsTensorsThroughItsSource) {
  const auto files = memory_files();
  Log log = quiet_log();
  Inverted source;
  CheckpointOptions options = direct();
  options.source = &source;
  Checkpointer checkpoints(*files, "root", options, log);
  TinyRun run;
  run.fill(1);
  for (State* state : {&run.model, &run.optim})
    for (const Piece& piece : state->pieces())
      for (int64_t i = 0; i < piece.data.bytes(); ++i) piece.data.data[i] = ~piece.data.data[i];
  checkpoints.save(run.request(1));
  expect_holds(*files, checkpoints.newest()->directory, 1);
}

// Fails at one of its reads, as a device that is gone.
class FailingSource final : public SnapshotSource {
 public:
  void begin(std::span<const FilePlan>) override { ++num_begun; }
  void read(const FilePlan::Source& source, int64_t offset, std::span<std::byte> out) override {
    ASHLAR_REQUIRE(reads_left-- != 0, kDevice, "the device is gone");
    HostSource().read(source, offset, out);
  }
  void end() noexcept override { ++num_ended; }
  int64_t reads_left = -1;  // negative: none fails
  int num_begun = 0, num_ended = 0;
};

TEST(Save, FailsWithItsSourceAndLeavesTheArenaToTheNext) {
  const auto files = memory_files();
  Log log = quiet_log();
  FailingSource source;
  CheckpointOptions options = direct();
  options.source = &source;
  options.arena_bytes = 2 * kChunkBytes;
  Checkpointer checkpoints(*files, "root", options, log);
  TinyRun run;
  for (const int64_t reads : {0, 1, 2, 3}) {
    source.reads_left = reads;
    EXPECT_EQ(message_of(ErrorKind::kDevice, [&] { checkpoints.save(run.request(1)); }),
              "step 1 is not saved: the device is gone");
  }
  source.reads_left = -1;
  run.fill(2);
  checkpoints.save(run.request(2));
  expect_holds(*files, checkpoints.newest()->directory, 2);
  EXPECT_EQ(source.num_begun, 5);
  EXPECT_EQ(source.num_ended, 5);
}

// Tensors change the moment that before_update() returns; what is stored is the saved step's.
TEST(Async, TheStoredBytesAreThoseOfTheSavedStep) {
  for (const int64_t arena_bytes : {int64_t(0), int64_t(8) << 20}) {  // ample, and two chunks
    const auto files = memory_files();
    Log log = quiet_log();
    CheckpointOptions options;
    options.keep = 100;
    options.arena_bytes = arena_bytes;
    State model, other;
    for (State* state : {&model, &other}) {
      state->add("w", DType::kF32, {700, 2001}, Role::kParameter);  // 5.6 MB
      state->add("v", DType::kBF16, {33}, Role::kParameter);
    }
    {
      Checkpointer checkpoints(*files, "root", options, log);
      for (int64_t step = 1; step <= 5; ++step) {
        checkpoints.before_update();
        model.fill(step);
        SaveRequest request;
        request.step = step;
        request.model = model.pieces();
        checkpoints.save(request);
      }
      checkpoints.before_update();
      model.clear();
      checkpoints.wait();
      EXPECT_EQ(checkpoints.take_stats().size(), 5u);
      EXPECT_EQ(checkpoints.arena_bytes(),
                arena_bytes ? arena_bytes : 2 * int64_t(2) * kChunkBytes);
    }
    for (int64_t step = 1; step <= 5; ++step) {
      State loaded;
      loaded.add("w", DType::kF32, {700, 2001}, Role::kParameter);
      loaded.add("v", DType::kBF16, {33}, Role::kParameter);
      StepReader(*files, join("root", step_name(step))).load(loaded.pieces());
      other.fill(step);
      ASSERT_EQ(loaded.bytes(), other.bytes()) << step;
    }
  }
}

TEST(Async, LoaderTensorsAreFreeAtOnce) {
  const auto files = memory_files();
  Log log = quiet_log();
  TinyRun run, expected;
  run.fill(3);
  expected.fill(3);
  CheckpointOptions options;
  Checkpointer checkpoints(*files, "root", options, log);
  checkpoints.save(run.request(3));
  run.loader.clear();
  checkpoints.wait();
  expect_holds(*files, checkpoints.newest()->directory, 3);
}

TEST(Async, AFailureIsToldAndTheNextSaveWorks) {
  const auto disk = memory_files();
  Log log = quiet_log();
  std::atomic<bool> failing = true;
  const auto files =
      faulty_files(*disk, [&](int64_t, std::string_view operation, const std::string& path) {
        return failing && operation == "sync" && path.find("model/") != path.npos ? Fault::kIoError
                                                                                  : Fault::kNone;
      });
  CheckpointOptions options;
  Checkpointer checkpoints(*files, "root", options, log);
  TinyRun run;
  run.fill(1);
  checkpoints.save(run.request(1));
  EXPECT_NE(message_of(ErrorKind::kStorage, [&] { checkpoints.wait(); })
                .find("step 1 is not saved: syncing"),
            std::string::npos);
  EXPECT_EQ(checkpoints.consecutive_failures(), 1);
  checkpoints.wait();  // said once
  checkpoints.save(run.request(1));
  checkpoints.drain(60);
  EXPECT_EQ(checkpoints.consecutive_failures(), 2);
  failing = false;
  run.fill(2);
  checkpoints.save(run.request(2));  // whatever became of the one before
  checkpoints.drain(60);
  EXPECT_EQ(checkpoints.consecutive_failures(), 0);
  expect_holds(*disk, join("root", step_name(2)), 2);
  EXPECT_EQ(committed_steps(*disk, "root").size(), 1u);
  const auto failures = checkpoints.take_failures();
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].step, 1);
  EXPECT_NE(std::string(failures[0].error.what()).find("step 1 is not saved: syncing"),
            std::string::npos);
  EXPECT_TRUE(checkpoints.take_failures().empty());
}

// A tensor that nobody has, one too many, or another one in its place.
TEST(Save, RefusesWhatIsNotTheWholeState) {
  const auto files = memory_files();
  Log log = quiet_log();
  Checkpointer checkpoints(*files, "root", direct(), log);
  TinyRun run;
  std::vector<LogicalTensor> whole;
  for (State* state : {&run.model, &run.optim})
    for (const Piece& piece : state->pieces()) whole.push_back(piece.logical);
  const auto refusal = [&](const std::vector<LogicalTensor>& wanted) {
    SaveRequest request = run.request(1);
    request.whole = wanted;
    return message_of(ErrorKind::kCorrupt, [&] { checkpoints.save(request); });
  };
  std::vector<LogicalTensor> wanted = whole;
  wanted.push_back({"layers.1.bias", DType::kBF16, {3}, Role::kParameter});
  EXPECT_EQ(refusal(wanted), "step 1 is not saved: tensor 'layers.1.bias' [3]: no writer has it");
  wanted = whole;
  wanted[0].global_shape = {8, 16};
  EXPECT_EQ(
      refusal(wanted),
      "step 1 is not saved: tensor 'embed.weight' is F32 [7, 16] but F32 [8, 16] is expected");
  wanted = whole;
  wanted.pop_back();
  EXPECT_EQ(refusal(wanted),
            "step 1 is not saved: tensor 'optim.step.embed.weight' is not one of "
            "this model and its optimizer");
  EXPECT_TRUE(committed_steps(*files, "root").empty());
  SaveRequest request = run.request(1);
  request.whole = whole;
  checkpoints.save(request);
  EXPECT_EQ(checkpoints.newest()->step, 1);
}

TEST(Save, RefusesIncompleteTensorsAndOldSteps) {
  const auto files = memory_files();
  Log log = quiet_log();
  Checkpointer checkpoints(*files, "root", direct(), log);
  State model;
  model.add_box("w", DType::kF32, {4, 4}, {{0, 0}, {4, 3}}, Role::kParameter);
  SaveRequest request;
  request.step = 5;
  request.model = model.pieces();
  EXPECT_NE(message_of(ErrorKind::kCorrupt, [&] { checkpoints.save(request); })
                .find("tensor 'w' [4, 4]: element [0, 3] is in no box"),
            std::string::npos);
  model.add_box("w", DType::kF32, {4, 4}, {{0, 3}, {4, 1}}, Role::kParameter);
  request.model = model.pieces();
  checkpoints.save(request);
  EXPECT_NE(message_of(ErrorKind::kConfig, [&] { checkpoints.save(request); })
                .find("step 5 cannot be saved: root already holds step 5"),
            std::string::npos);
  request.step = 6;
  request.extra = {{"a", "", false}, {"a", "", false}};
  EXPECT_NE(message_of(ErrorKind::kConfig, [&] { checkpoints.save(request); }).find("named 'a'"),
            std::string::npos);
}

TEST(Retention, KeepsTheNewestAndEveryKth) {
  const auto files = memory_files();
  Log log = quiet_log();
  CheckpointOptions options = direct(2);
  options.keep_every = 4;
  Checkpointer checkpoints(*files, "root", options, log);
  TinyRun run;
  for (int64_t step = 1; step <= 10; ++step) {
    run.fill(step);
    checkpoints.save(run.request(step));
  }
  std::vector<int64_t> left;
  for (const StepRef& ref : committed_steps(*files, "root")) {
    left.push_back(ref.step);
    expect_holds(*files, ref.directory, ref.step);
  }
  EXPECT_EQ(left, (std::vector<int64_t>{4, 8, 9, 10}));
  for (const std::string& name : files->list("root"))
    EXPECT_FALSE(name.starts_with(".trash")) << name;
  for (const std::string& name : files->list("root/.verified"))  // none of a step that is gone
    EXPECT_NE(std::count(left.begin(), left.end(), std::stoll(name.substr(5, 12))), 0) << name;
}

TEST(Retention, RulesAlone) {
  using Steps = std::vector<int64_t>;
  EXPECT_EQ(steps_to_remove({{1, false}, {2, false}, {3, false}}, 2, 0), Steps{1});
  EXPECT_EQ(steps_to_remove({{1, false}, {2, false}}, 3, 0), Steps{});
  EXPECT_EQ(steps_to_remove({{10, false}, {15, false}, {20, false}, {25, false}}, 1, 10),
            Steps{15});
  // The newest verified step stays until a newer one is verified.
  EXPECT_EQ(steps_to_remove({{1, true}, {2, true}, {3, false}, {4, false}}, 1, 0), (Steps{3, 1}));
}

// A disk that loses what it was given: the older step must survive.
TEST(Retention, RemovesNothingWhenTheNewestDoesNotReadBack) {
  const auto files = memory_files();
  class Liar : public FileSystem {
   public:
    explicit Liar(FileSystem& inner) : inner_(inner) {}
    bool lies = false;
    std::unique_ptr<File> open(const std::string& path, LinkPolicy links) override {
      return inner_.open(path, links);
    }
    std::unique_ptr<File> create(const std::string& path) override { return inner_.create(path); }
    std::unique_ptr<File> append(const std::string& path) override { return inner_.append(path); }
    std::unique_ptr<Mapping> map(const std::string& path, LinkPolicy links) override {
      return inner_.map(path, links);
    }
    std::optional<FileInfo> stat(const std::string& path, LinkPolicy links) override {
      return inner_.stat(path, links);
    }
    std::vector<std::string> list(const std::string& path) override { return inner_.list(path); }
    void make_directories(const std::string& path) override { inner_.make_directories(path); }
    void rename_new(const std::string& from, const std::string& to) override {
      inner_.rename_new(from, to);
      if (!lies || !to.ends_with(step_name(2))) return;
      const std::string shard = to + "/model/shard-00001-model-00001-of-00001.safetensors";
      std::string text = read_all(inner_, shard);
      text[text.size() - 3] ^= 1;
      overwrite(inner_, shard, text);
    }
    void replace(const std::string& from, const std::string& to) override {
      inner_.replace(from, to);
    }
    void remove(const std::string& path) override { inner_.remove(path); }
    void remove_all(const std::string& path) override { inner_.remove_all(path); }
    void sync_directory(const std::string& path) override { inner_.sync_directory(path); }
    int64_t free_bytes(const std::string& path) override { return inner_.free_bytes(path); }

   private:
    FileSystem& inner_;
  } liar(*files);
  Log log = quiet_log();
  Checkpointer checkpoints(liar, "root", direct(1), log);
  TinyRun run;
  run.fill(1);
  checkpoints.save(run.request(1));
  liar.lies = true;
  EXPECT_NE(message_of(ErrorKind::kCorrupt, [&] { checkpoints.save(run.request(2)); })
                .find("step 2 does not read back"),
            std::string::npos);
  EXPECT_EQ(checkpoints.newest()->step, 1);
  expect_holds(*files, "root/" + step_name(1), 1);
  EXPECT_EQ(files->list("root/.bad").size(), 2u);  // the step and why
  liar.lies = false;
  run.fill(2);
  checkpoints.save(run.request(2));
  expect_holds(*files, "root/" + step_name(2), 2);
}

// A file that a step must not outlive is on disk by the time the step's data are.
TEST(Save, BeforeTheCommitTheCallerHasAWord) {
  const auto files = memory_files();
  Log log = quiet_log();
  for (const bool async : {false, true}) {
    SCOPED_TRACE(async);
    const std::string root = async ? "async" : "direct";
    CheckpointOptions options = direct();
    options.async = async;
    Checkpointer checkpoints(*files, root, options, log);
    TinyRun run;
    run.fill(1);
    SaveRequest request = run.request(1);
    int calls = 0;
    request.before_commit = [&] {
      ++calls;
      EXPECT_TRUE(committed_steps(*files, root).empty());
      ASHLAR_FAIL(kStorage, "sync other.txt: no");
    };
    const std::string message = message_of(ErrorKind::kStorage, [&] {
      checkpoints.save(request);
      checkpoints.wait();
    });
    EXPECT_EQ(message, "step 1 is not saved: before its commit: sync other.txt: no");
    EXPECT_EQ(calls, 1);
    EXPECT_FALSE(checkpoints.newest());
    EXPECT_EQ(files->list(root), std::vector<std::string>{".lease"});
    request.before_commit = [&] { ++calls; };
    checkpoints.save(request);
    checkpoints.wait();
    EXPECT_EQ(calls, 2);
    expect_holds(*files, join(root, step_name(1)), 1);
  }
}

}  // namespace
}  // namespace ashlar::checkpoint
