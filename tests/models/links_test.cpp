// Links: a Hugging Face cache is made of them, a checkpoint step holds none.
#include <gtest/gtest.h>

#include "tests/checkpoint/state_test_util.h"
#include "tests/models/hf_test_util.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/write_hf_model.h"

namespace ashlar::models {
namespace {

using testing_support::message_of;

namespace fs = std::filesystem;
using testing_support::TemporaryDirectory;

// blobs/N and snapshots/main/NAME -> ../../blobs/N, as huggingface_hub lays a model out.
void make_cache(const fs::path& model, const fs::path& cache) {
  fs::create_directories(cache / "blobs");
  fs::create_directories(cache / "snapshots/main");
  int number = 0;
  for (const auto& entry : fs::directory_iterator(model)) {
    const std::string blob = std::to_string(number++);
    fs::copy_file(entry.path(), cache / "blobs" / blob);
    fs::create_symlink("../../blobs/" + blob, cache / "snapshots/main" / entry.path().filename());
  }
}

void expect_same_model(const std::string& a, const std::string& b) {
  const auto files = posix_files();
  const HfModel first = HfModel::open(*files, a), second = HfModel::open(*files, b);
  EXPECT_EQ(first.spec(), second.spec());
  const Values expected = read_all(first, DType::kF32), found = read_all(second, DType::kF32);
  ASSERT_FALSE(expected.memory.empty());
  EXPECT_EQ(expected.memory, found.memory);
}

TEST(Links, HuggingFaceSnapshotsAreRead) {
  TemporaryDirectory root;
  make_cache(test_data("hf_small"), root / "cache");
  expect_same_model(test_data("hf_small"), root / "cache/snapshots/main");
}

TEST(Links, HuggingFaceSnapshotsOfShardsAreRead) {
  TemporaryDirectory root;
  const auto files = posix_files();
  const ModelKeys spec = odd_spec();
  HfWriteOptions options{HfLayout::kNative, DType::kF32};
  options.max_file_bytes = 2000;
  const Values values = random_values(spec, DType::kF32);
  write_hf_model(*files, root / "model", model_of(spec), values.pieces, options);
  make_cache(root / "model", root / "cache");
  expect_same_model(root / "model", root / "cache/snapshots/main");
}

TEST(Links, AStepWithALinkIsDamaged) {
  for (const std::string& name :
       {std::string(checkpoint::kCommitName), std::string(checkpoint::kManifestName),
        std::string(checkpoint::kIndexName), std::string("extra/trainer.json"),
        std::string("a shard")}) {
    TemporaryDirectory root;
    const auto files = posix_files();
    Log log = checkpoint::quiet_log();
    std::string step;
    {
      checkpoint::Checkpointer checkpoints(*files, root / "run", checkpoint::direct(), log);
      checkpoint::TinyRun run;
      run.fill(1);
      checkpoints.save(run.request(1));
      checkpoints.wait();
      step = checkpoints.newest()->directory;
    }
    checkpoint::expect_holds(*files, step, 1);
    std::string path = join(step, name);
    if (name == "a shard") {
      const checkpoint::StepReader reader(*files, step);
      path = join(step, reader.index().files.front().path);
    }
    ASSERT_TRUE(fs::is_regular_file(path)) << path;
    fs::rename(path, root / "outside");
    fs::create_symlink(root / "outside", path);
    const auto read = [&] {
      const checkpoint::StepReader reader(*files, step);
      checkpoint::TinyRun loaded;
      reader.load(loaded.all());
      reader.read_blob("trainer.json");
    };
    message_of(ErrorKind::kCorrupt, read);
  }
}

// A link that appears after the step was opened must not be followed either.
TEST(Links, AStepWhoseFileBecomesALinkIsNotFollowed) {
  TemporaryDirectory root;
  const auto files = posix_files();
  Log log = checkpoint::quiet_log();
  checkpoint::Checkpointer checkpoints(*files, root / "run", checkpoint::direct(), log);
  checkpoint::TinyRun run;
  run.fill(1);
  checkpoints.save(run.request(1));
  checkpoints.wait();
  const checkpoint::StepReader reader = checkpoints.open_newest();
  const std::string path = join(reader.directory(), reader.index().files.front().path);
  fs::rename(path, root / "outside");
  fs::create_symlink(root / "outside", path);
  EXPECT_NE(message_of(ErrorKind::kCorrupt, [&] { reader.open(0); }).find("link"),
            std::string::npos);
}

}  // namespace
}  // namespace ashlar::models
