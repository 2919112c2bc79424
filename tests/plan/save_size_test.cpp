// Planned sizes of a saved step, files, boxes, bytes of every writer's and of index.bin,
// against steps that ranks of many layouts really saved, as integers.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/core/json.h"
#include "ashlar/plan/json.h"
#include "ashlar/plan/print.h"
#include "ashlar/train/start.h"
#include "tests/data/support.h"
#include "tests/train/parity_models.h"

namespace ashlar::plan {
namespace {

using namespace train;
using checkpoint::StepSize;

struct SizeCase {
  std::string name;
  int num_ranks;
  Overrides keys;
};

void PrintTo(const SizeCase& c, std::ostream* out) {
  *out << c.name;
}

const Overrides kHybrid = {
    "model.layer_types=[\"linear+mlp\", \"linear+moe\", \"attention+mlp\", \"linear+moe\"]",
    "model.num_hidden_layers=4", "model.intermediate_size=40",
    "model.linear_recurrence=gated_delta", "model.linear_conv_kernel_dim=4"};

const std::vector<SizeCase> kSizeCases = {
    {"one_rank", 1, {}},
    {"dp2_zero0", 2, {"parallel.zero=0"}},
    {"dp4_zero1", 4, {}},
    {"dp3_zero2", 3, {"parallel.zero=2", "train.global_batch=6", "data.num_streams=6"}},
    {"dp4_zero3_adamw", 4, {"parallel.zero=3", "optim.matrices=adamw"}},
    {"dp2_zero1_bucketed", 2, {"parallel.zero_layout=bucketed", "parallel.bucket_bytes=20000"}},
    {"dp4_zero3_bucketed",
     4,
     {"parallel.zero=3", "parallel.zero_layout=bucketed", "parallel.bucket_bytes=20000"}},
    {"tp2", 2, {"parallel.tp=2"}},
    {"tp4_shared_keys", 4, {"parallel.tp=4"}},
    {"dp2_tp2_zero1", 4, {"parallel.tp=2"}},
    {"dp2_tp2_zero0", 4, {"parallel.tp=2", "parallel.zero=0"}},
    {"dp2_cp2_zero1", 4, {"parallel.cp=2"}},
    {"dp4_ep2_zero1", 4, {"parallel.ep=2"}},
    {"dp4_ep4_zero0", 4, {"parallel.ep=4", "parallel.zero=0"}},
    {"pp2_dp2_zero1", 4, {"parallel.pp=2"}},
    {"pp2_dp2_zero0_untied", 4, joined({"parallel.pp=2", "parallel.zero=0"}, kLlama)},
    {"tsp2", 2, {"parallel.tsp=2"}},
    {"dp2_tsp2_zero0", 4, {"parallel.tsp=2", "parallel.zero=0"}},
    {"tsp4_same_heads_zero2", 4, {"parallel.tsp=4", "parallel.zero=2"}},
    {"hybrid_dp2_zero1", 2, kHybrid},
    {"hybrid_tp2_dp2_zero3", 4, joined({"parallel.tp=2", "parallel.zero=3"}, kHybrid)},
    {"mixed_dp2_tp2_cp2_zero1", 8, joined({"parallel.tp=2", "parallel.cp=2"}, kMixed)}};

Recipe recipe_of(const Overrides& keys) {
  Overrides all = {"data.train=text",    "data.tokenizer=byte",     "data.num_streams=8",
                   "train.eval_every=0", "train.precision=fp32",    "train.global_batch=8",
                   "checkpoint.every=1", "train.micro_batch=1",     "train.steps=1",
                   "data.verify=off",    "data.sequence_length=48", "train.run_dir=run"};
  return load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", joined(all, keys));
}

// The size of a step as its directory and its index have it.
StepSize measured(FileSystem& files, const std::string& directory, int num_writers) {
  const checkpoint::StepReader reader(files, directory);
  const checkpoint::Index& index = reader.index();
  struct Writer {
    int64_t files = 0, boxes = 0, bytes = 0;
  };
  std::map<uint32_t, Writer> writers;
  const auto holds_data = [](const checkpoint::IndexFile& file) {
    return file.path.starts_with("model/") || file.path.starts_with("optim/");
  };
  StepSize size;
  for (const checkpoint::IndexFile& file : index.files) {
    ++size.files;
    EXPECT_EQ(files.stat(ashlar::join(directory, file.path))->size_bytes, file.size_bytes);
    if (!holds_data(file)) continue;
    Writer& writer = writers[file.writer];
    ++writer.files;
    writer.bytes += file.size_bytes;
  }
  for (const checkpoint::IndexTensor& tensor : index.tensors)
    for (const checkpoint::IndexBox& box : tensor.boxes) {
      ++size.boxes;
      const checkpoint::IndexFile& file = index.files[box.file];
      if (holds_data(file) && !tensor.alias) ++writers[file.writer].boxes;
    }
  for (const auto& [number, writer] : writers) {
    size.data_files += writer.files;
    size.data_bytes += writer.bytes;
    size.max_writer_files = std::max(size.max_writer_files, writer.files);
    size.max_writer_boxes = std::max(size.max_writer_boxes, writer.boxes);
    size.max_writer_bytes = std::max(size.max_writer_bytes, writer.bytes);
  }
  size.mean_writer_bytes = double(size.data_bytes) / num_writers;
  size.index_bytes = files.stat(ashlar::join(directory, "index.bin"))->size_bytes;
  return size;
}

class DryRunEqualsSave : public testing::TestWithParam<SizeCase> {
 protected:
  static void expect_equal(const Recipe& recipe, int num_ranks, int num_writers);
};

TEST_P(DryRunEqualsSave, InFilesBoxesAndBytes) {
  const SizeCase& c = GetParam();
  for (const bool gathered : {true, false}) {
    SCOPED_TRACE(gathered ? "one writer" : "every rank writes");
    auto keys = c.keys;
    if (!gathered) keys.push_back("checkpoint.gather_mib=0");
    expect_equal(recipe_of(keys), c.num_ranks, gathered ? 1 : c.num_ranks);
  }
}

void DryRunEqualsSave::expect_equal(const Recipe& recipe, int num_ranks, int num_writers) {
  const auto files = memory_files();
  data::write_documents(*files, "text", std::vector(300, std::vector<int32_t>(60, 7)), 256);
  Log log([](std::string_view) {});
  start_run(recipe, *files, log, {num_ranks, {}});
  const StepSize planned = plan_checkpoint(recipe, DType::kF32, num_ranks, 1);
  const StepSize real = measured(*files, "run/checkpoints/step-000000000001", num_writers);
  EXPECT_EQ(planned.files, real.files);
  EXPECT_EQ(planned.boxes, real.boxes);
  EXPECT_EQ(planned.index_bytes, real.index_bytes);
  EXPECT_EQ(planned.max_writer_files, real.max_writer_files);
  EXPECT_EQ(planned.max_writer_boxes, real.max_writer_boxes);
  EXPECT_EQ(planned.max_writer_bytes, real.max_writer_bytes);
  EXPECT_EQ(planned.mean_writer_bytes, real.mean_writer_bytes);
  EXPECT_EQ(planned, real);
}

INSTANTIATE_TEST_SUITE_P(Layouts, DryRunEqualsSave, testing::ValuesIn(kSizeCases),
                         [](const auto& info) { return info.param.name; });

TEST(DryRunOfSaves, IsPartOfThePlanOfAMesh) {
  const Recipe recipe = recipe_of({"parallel.tp=2"});
  const StepSize size = plan_checkpoint(recipe, DType::kF32, 4, 1);
  const MeshPlan plan = plan_mesh(recipe, DType::kF32, 4, {}, 1);
  EXPECT_EQ(plan.checkpoint, size);
  const auto json =
      parse_json(to_json(plan, recipe, DType::kF32), "plan", ErrorKind::kConfig).at("checkpoint");
  EXPECT_EQ(json.at("files_per_step"), size.files);
  EXPECT_EQ(json.at("max_files_per_writer"), size.max_writer_files);
  EXPECT_EQ(json.at("index_bytes"), size.index_bytes);
  EXPECT_EQ(json.at("max_writer_bytes"), size.max_writer_bytes);
  EXPECT_EQ(json.at("mean_writer_bytes"), size.mean_writer_bytes);
  EXPECT_NE(describe(plan, recipe, DType::kF32).find("index.bin"), std::string::npos);
  EXPECT_FALSE(plan_mesh(recipe, DType::kF32, 4, 1, 1).checkpoint);
}

}  // namespace
}  // namespace ashlar::plan
