// The state that training hands to the checkpoint engine, and how it takes what comes back.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <latch>
#include <set>
#include <thread>

#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/comm/self/self.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/start.h"
#include "ashlar/train/state.h"
#include "tests/checkpoint/crash_files.h"
#include "tests/data/support.h"

namespace ashlar::train {
namespace {

using checkpoint::CrashFiles;
using checkpoint::Survives;

Recipe tiny(std::vector<std::string> overrides) {
  return load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", overrides);
}

class OneRank {
 public:
  explicit OneRank(const Recipe& recipe)
      : plan_(plan_run(recipe, DType::kF32)),
        threads_(1),
        allocator_(Device::kCpu),
        world_(allocator_),
        trainer(recipe, DType::kF32, allocator_, threads_, world_.group(), plan_.step_memory) {
    trainer.initialize();
  }
  void run(function_ref<void(int64_t)> ended) {
    const Recipe& recipe = trainer.recipe();
    const int64_t length = recipe.data.sequence_length;
    std::vector<int32_t> ids(size_t(recipe.train.micro_batch * length));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i * i % 251);
    std::vector<Segment> segments;
    for (int64_t row = 0; row < recipe.train.micro_batch; ++row)
      segments.push_back({.row = row * length, .length = length, .position = 0, .document = row});
    const MicroBatch batch{ids, ids, segments};
    trainer.run(0, std::vector(size_t(trainer.model().micro_batches_per_step()), batch), ended);
  }

 private:
  RunPlan plan_;
  Threads threads_;
  Allocator allocator_;
  comm::SelfWorld world_;

 public:
  Trainer trainer;
};

// Bytes of a step's balancing biases and their moments.
std::vector<std::byte> balancing(const checkpoint::StepReader& reader, const Trainer& trainer) {
  std::vector<std::byte> all;
  for (const Piece& live : trainer.balancer().pieces()) {
    std::vector<std::byte> bytes(size_t(live.data.bytes()));
    Piece piece = live;
    piece.data.data = bytes.data();
    checkpoint::LoadOptions options;
    options.allow_unexpected = {"*"};
    reader.load({&piece, 1}, options);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

// A disk that stands still while it makes the first file of a model.
class StandingDisk : public CrashFiles {
 public:
  std::unique_ptr<File> create(const std::string& path) override {
    if (path.find("/model/") != path.npos) go.wait();
    return CrashFiles::create(path);
  }
  std::latch go{1};
};

// The arena is full of the step before, whose disk stands still; meanwhile the next step begins.
TEST(StateWriter, BalancingOfALaterMicroBatchGetsIntoNoStep) {
  const Recipe recipe = tiny({"moe.balance.scope=micro_batch"});
  OneRank rank(recipe);
  StateWriter writer(rank.trainer, {}, "avx2");
  StandingDisk disk;
  Log log([](std::string_view) {});
  checkpoint::CheckpointOptions options;
  options.arena_bytes = 2 * checkpoint::kChunkBytes;
  checkpoint::Checkpointer checkpoints(disk, "root", options, log);
  std::vector<std::byte> expected;
  rank.run([&](int64_t ended) {
    if (ended > 0) return;  // after the first micro-batch they are not zero
    for (const Piece& piece : rank.trainer.balancer().pieces())
      expected.insert(expected.end(), piece.data.data, piece.data.data + piece.data.bytes());
    checkpoints.save(writer.request({.step = 1}, {}, {}));
    checkpoints.save(writer.request({.step = 2}, {}, {}));
  });
  disk.go.count_down();
  checkpoints.wait();
  for (const int64_t step : {1, 2}) {
    const checkpoint::StepReader reader(disk, join("root", checkpoint::step_name(step)));
    EXPECT_EQ(balancing(reader, rank.trainer), expected) << step;
  }
}

// run_dir and all above it are made by the run: a power cut after it takes nothing away.
TEST(Saves, ANewRunDirectoryIsDurable) {
  CrashFiles disk;
  disk.make_directories("/data");
  disk.sync_directory("/");
  data::write_documents(disk, "/data/text", std::vector(40, std::vector<int32_t>(30, 7)), 256);
  Log log([](std::string_view) {});
  start_run(tiny({"data.train=/data/text", "data.tokenizer=byte", "train.run_dir=/new/runs/a",
                  "train.steps=3", "train.eval_every=0", "checkpoint.every=0"}),
            disk, log);
  const auto after = disk.after_crash(Survives::kSyncedOnly, 0);
  const auto found = checkpoint::find_newest(*after, "/new/runs/a/checkpoints",
                                             checkpoint::VerifyLevel::kDeep, log);
  ASSERT_TRUE(found.newest);
  EXPECT_EQ(found.newest->step, 3);
}

TEST(Saves, RanksThatMayNotShareSoMuchMemoryWriteAlone) {
  for (const bool enough : {true, false}) {
    const auto files = memory_files();
    data::write_documents(*files, "text", std::vector(40, std::vector<int32_t>(30, 7)), 256);
    std::string said;
    Log log([&](std::string_view line) { said.append(line) += '\n'; });
    start_run(tiny({"data.tokenizer=byte", "train.steps=2", "train.eval_every=0",
                    "checkpoint.every=0", "model.num_hidden_layers=16",
                    enough ? "checkpoint.arena_mib=100" : "checkpoint.arena_mib=1"}),
              *files, log, {2, {}});
    EXPECT_EQ(said.find("every rank writes its own part of checkpoints: rank 0: two snapshots of "
                        "this machine take ") == said.npos,
              enough)
        << said;
    const std::string second = "model/shard-00002-model-00001-of-00001.safetensors";
    EXPECT_EQ(files->stat("run/checkpoints/step-000000000002/" + second).has_value(), !enough);
  }
}

// The last words of a run whose saves all failed are of the last of them.
TEST(Saves, TheLastFailureIsTheError) {
  const auto disk = memory_files();
  data::write_documents(*disk, "text", std::vector(40, std::vector<int32_t>(30, 7)), 256);
  for (const bool async : {true, false}) {
    int64_t last = 0;
    const auto files =
        faulty_files(*disk, [&](int64_t, std::string_view operation, const std::string& path) {
          if (operation != "sync" || path.find("/.tmp-step-") == path.npos) return Fault::kNone;
          last = std::stoll(path.substr(path.find("/.tmp-step-") + 11, 12));
          std::this_thread::sleep_for(std::chrono::milliseconds(50));  // some steps long
          return Fault::kIoError;
        });
    Log log([](std::string_view) {});
    std::string error;
    try {
      start_run(tiny({"data.train=text", "data.tokenizer=byte", "train.run_dir=run",
                      "train.steps=1000000", "train.eval_every=0", "checkpoint.every=1",
                      fmt::format("checkpoint.async={}", async)}),
                *files, log);
    } catch (const Error& caught) {
      error = caught.what();
    }
    EXPECT_TRUE(error.starts_with(fmt::format("step {} is not saved: ", last)))
        << error << ", but " << last << " was the last";
  }
}

// The state of a step that was not saved is gone: that of the next step is saved in its stead.
TEST(Saves, AFailedSaveIsMadeUpForAtTheNextStep) {
  for (const int num_ranks : {1, 2}) {
    const auto disk = memory_files();
    data::write_documents(*disk, "text", std::vector(40, std::vector<int32_t>(30, 7)), 256);
    const auto files =
        faulty_files(*disk, [&](int64_t, std::string_view operation, const std::string& path) {
          return operation == "sync" && path.find("step-000000000010") != path.npos
                     ? Fault::kIoError
                     : Fault::kNone;
        });
    Log log([](std::string_view) {});
    start_run(tiny({"data.train=text", "data.tokenizer=byte", "train.run_dir=run", "train.steps=25",
                    "train.eval_every=0", "checkpoint.every=5", "checkpoint.keep=9"}),
              *files, log, {.num_ranks = num_ranks, .report = {}});
    std::set<int64_t> steps;
    for (const auto& ref : checkpoint::committed_steps(*disk, "run/checkpoints"))
      steps.insert(ref.step);
    ASSERT_EQ(steps.size(), 5u);
    for (const int64_t step : {5, 15, 20, 25}) EXPECT_EQ(steps.erase(step), 1u) << step;
    // How many steps pass until a failure in the background is known is a matter of time.
    EXPECT_GT(*steps.begin(), 10);
    EXPECT_LT(*steps.begin(), 20);
  }
}

// A rank that writes checkpoints for weeks takes no more memory than one that began today.
TEST(Saves, MemoryDoesNotGrowWithTheirNumber) {
  const char* asked = std::getenv("ASHLAR_TEST_SAVES");
  const int64_t saves = asked ? std::atoll(asked) : 2000;
  const auto disk = memory_files();
  Log log([](std::string_view) {});
  std::vector<float> values(1000);
  const Tensor tensor = tensor_over(std::span(values));
  const LogicalTensor logical{"w", DType::kF32, Shape{2000}, Role::kParameter};
  std::vector<std::unique_ptr<checkpoint::Checkpointer>> writers;
  for (int writer = 0; writer < 2; ++writer) {
    checkpoint::CheckpointOptions options;
    options.keep = 1;
    options.run_id = "run";
    options.writer_rank = writer;
    options.num_writers = 2;
    writers.push_back(std::make_unique<checkpoint::Checkpointer>(*disk, "root", options, log));
  }
  size_t early = 0;
  for (int64_t step = 1; step <= saves; ++step) {
    const checkpoint::Id attempt = checkpoint::random_id();
    for (int writer = 1; writer >= 0; --writer) {
      const Piece piece{logical, {Shape{1000 * writer}, Shape{1000}}, tensor};
      checkpoint::SaveRequest request;
      request.step = step;
      request.attempt = attempt;
      request.model = {&piece, 1};
      writers[size_t(writer)]->save(request);
      writers[size_t(writer)]->before_update();
    }
    for (auto& writer : writers) ASSERT_TRUE(writer->drain(60));
    ASSERT_EQ(writers[0]->take_stats().size(), 1u);
    ASSERT_LE(writers[0]->take_retired().size(), 1u);
    if (step == saves / 4) early = mallinfo2().uordblks;
  }
  EXPECT_LT(double(mallinfo2().uordblks), double(early) + 100e3);
}

}  // namespace
}  // namespace ashlar::train
