// The paths by which a model may be named, and what is said where there is none yet.
#include "ashlar/models/path.h"

#include <gtest/gtest.h>

#include "tests/checkpoint/state_test_util.h"
#include "tests/support/errors.h"

namespace ashlar::models {
namespace {

using ashlar::testing_support::message_of;

class ModelPath : public testing::Test {
 protected:
  void begin(const std::string& run, const std::string& more) {
    files_->make_directories(run + "/checkpoints/.lease");
    write_text(*files_, run + "/recipe.toml",
               "[model]\nvocab_size = 128\nhidden_size = 32\nnum_hidden_layers = 1\n"
               "num_attention_heads = 4\nnum_key_value_heads = 2\nhead_dim = 8\n"
               "intermediate_size = 8\nlayer_types = \"full_attention\"\n" +
                   more);
  }
  std::string told(const std::string& path) {
    return message_of(ErrorKind::kConfig, [&] { locate_model(*files_, path); });
  }
  std::unique_ptr<FileSystem> files_ = memory_files();
  Log log_{[](std::string_view) {}};
};

TEST_F(ModelPath, ARunStandsForItsCheckpoints) {
  begin("run", "");
  checkpoint::TinyRun tiny;
  tiny.fill(1);
  checkpoint::Checkpointer(*files_, "run/checkpoints", checkpoint::direct(10), log_)
      .save(tiny.request(1));
  const std::string root = "run/checkpoints", step = root + "/" + checkpoint::step_name(1);
  EXPECT_EQ(locate_model(*files_, "run"), root);
  EXPECT_EQ(locate_model(*files_, "run/"), "run/checkpoints");
  EXPECT_EQ(locate_model(*files_, root), root);
  EXPECT_EQ(locate_model(*files_, step), step);
  EXPECT_EQ(root_of_run(*files_, "run"), root);
  EXPECT_EQ(root_of_run(*files_, root), root);
  EXPECT_EQ(root_of_run(*files_, "nowhere"), "nowhere");
  files_->make_directories("hf");
  write_text(*files_, "hf/config.json", "{}");
  EXPECT_EQ(locate_model(*files_, "hf"), "hf");
}

TEST_F(ModelPath, BeforeTheFirstSaveItIsSaidWhenThatIsDue) {
  const struct {
    const char *recipe, *due;
  } cases[] = {
      {"[checkpoint]\nevery = 200\n", "; the first is due at step 200 (checkpoint.every is 200)"},
      {"[checkpoint]\nevery = 0\n", "; the first is due at step 1000 (checkpoint.every is 0)"},
      {"[checkpoint]\nevery = 500\n[train]\nsteps = 30\n",
       "; the first is due at step 30 (checkpoint.every is 500)"},
      {"[checkpoint]\nevery = -1\n", "; checkpoint.every is -1, so that none is saved"},
      {"[no_section]\n", ""}};
  int number = 0;
  for (const auto& c : cases) {
    const std::string run = "runs/" + std::to_string(number++);
    begin(run, c.recipe);
    for (const std::string& path : {run, run + "/checkpoints"})
      EXPECT_EQ(told(path), path + ": no checkpoint yet" + c.due);
  }
}

TEST_F(ModelPath, OtherDirectoriesAreNamed) {
  files_->make_directories("empty/checkpoints");
  for (const char* path : {"empty", "empty/checkpoints", "nowhere"})
    EXPECT_EQ(told(path),
              std::string(path) +
                  (path == std::string("nowhere") ? ": there is no such directory; expected"
                                                  : ": expected") +
                  " a Hugging Face directory (with config.json), a run's directory, a "
                  "checkpoint root or one step of it");
}

}  // namespace
}  // namespace ashlar::models
