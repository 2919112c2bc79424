// What training hands to the checkpoint engine, and how it takes what comes back.
#include <gtest/gtest.h>

#include <latch>

#include "ashlar/checkpoint/recovery.h"
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
  return load_recipe(ASHLAR_TEST_DATA "/recipes/tiny.toml", overrides);
}

class OneRank {
 public:
  explicit OneRank(const Recipe& recipe)
      : plan_(plan_run(recipe, DType::kF32)),
        threads_(1),
        allocator_(Device::kCpu),
        world_(allocator_),
        trainer(recipe, DType::kF32, allocator_, threads_, world_.group(), plan_.workspace_bytes) {
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
  StateWriter writer(rank.trainer, "");
  StandingDisk disk;
  Log log([](std::string_view) {});
  checkpoint::CheckpointOptions options;
  options.max_arena_bytes = 2 * checkpoint::kChunkBytes;
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
  const auto found =
      checkpoint::find_newest(*after, "/new/runs/a/checkpoints", checkpoint::VerifyLevel::kDeep,
                              checkpoint::Who::kReader, log);
  ASSERT_TRUE(found.newest);
  EXPECT_EQ(found.newest->step, 3);
}

}  // namespace
}  // namespace ashlar::train
