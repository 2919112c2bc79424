// A model as step 0 of a root, streamed: what a save of the same tensors in memory gives, whole or
// not at all, and little memory.
#include "ashlar/models/write_step.h"

#include <gtest/gtest.h>

#include <atomic>

#include "ashlar/models/slabs.h"
#include "ashlar/models/step_model.h"
#include "tests/checkpoint/state_test_util.h"
#include "tests/models/hf_test_util.h"
#include "tests/support/errors.h"
#include "tests/support/write_hf_model.h"

namespace ashlar::models {
namespace {

using testing_support::message_of;

ModelStep step_of(const ModelKeys& keys) {
  return {.spec = model_of(keys),
          .extra = {{"note.json", "{\"of\": 1}", true}},
          .sections = {{"hf", "{\"source\":\"x\"}"}}};
}

void expect_same_tensors(const checkpoint::StepReader& a, const checkpoint::StepReader& b) {
  ASSERT_EQ(a.index().tensors.size(), b.index().tensors.size());
  for (const checkpoint::IndexTensor& tensor : a.index().tensors) {
    const LogicalTensor& logical = tensor.logical;
    const checkpoint::IndexTensor* other = b.find(logical.name);
    ASSERT_TRUE(other) << logical.name;
    EXPECT_EQ(other->alias, tensor.alias);
    EXPECT_EQ(other->logical.role, logical.role);
    EXPECT_EQ(other->boxes[0].byte_offset - b.index().files[other->boxes[0].file].data_begin,
              tensor.boxes[0].byte_offset - a.index().files[tensor.boxes[0].file].data_begin);
    Values x, y;
    x.add(logical, Box::whole(logical.global_shape), logical.dtype);
    y.add(logical, Box::whole(logical.global_shape), logical.dtype);
    checkpoint::LoadOptions options;
    options.allow_unexpected = {"*"};
    a.load(x.pieces, options);
    b.load(y.pieces, options);
    EXPECT_EQ(x.memory, y.memory) << logical.name;
  }
}

TEST(WriteModelStep, GivesTheStepThatASaveFromMemoryGives) {
  const auto files = memory_files();
  Log log = checkpoint::quiet_log();
  const ModelKeys keys = odd_spec();
  const Values values = random_values(keys, DType::kF32);
  const ModelStep model = step_of(keys);
  checkpoint::Checkpointer saved(*files, "saved", checkpoint::direct(), log);
  checkpoint::SaveRequest request;
  request.model = values.pieces;
  request.extra = model.extra;
  describe_model(model.spec, request);
  saved.save(request);
  const ModelStepStats stats =
      write_model_step(*files, "written", model, TensorsInMemory(values.pieces), 3, log);
  EXPECT_EQ(stats.tensors, int64_t(values.pieces.size()));
  const checkpoint::StepReader a = saved.open_newest(), b(*files, stats.directory);
  expect_same_tensors(a, b);
  EXPECT_EQ(b.step(), 0);
  EXPECT_EQ(stats.bytes, bytes_of(b.index()));
  EXPECT_EQ(b.manifest().sections.at("hf"), "{\"source\":\"x\"}");
  EXPECT_EQ(b.read_blob("note.json"), "{\"of\": 1}");
  EXPECT_EQ(b.read_blob(kModelFile), a.read_blob(kModelFile));
  EXPECT_TRUE(
      checkpoint::verify_step(*files, stats.directory, checkpoint::VerifyLevel::kDeep, log).ok());
  const ModelSource found = find_model(*files, "written", log);
  EXPECT_EQ(found.spec, model.spec);
}

TEST(WriteModelStep, RefusesARootThatHoldsSteps) {
  const auto files = memory_files();
  Log log = checkpoint::quiet_log();
  const ModelKeys keys = odd_spec();
  const Values values = random_values(keys, DType::kF32);
  const TensorsInMemory reader(values.pieces);
  write_model_step(*files, "root", step_of(keys), reader, 1, log);
  EXPECT_EQ(message_of(ErrorKind::kConfig,
                       [&] { write_model_step(*files, "root", step_of(keys), reader, 1, log); }),
            "root holds steps already; choose a new directory");
}

// Whichever call fails: no step and no remains, or a step that is whole.
TEST(WriteModelStep, AFaultLeavesAllOrNothing) {
  ModelKeys keys = odd_spec();
  keys.num_hidden_layers = 1;
  keys.layer_types.resize(1);
  const Values values = random_values(keys, DType::kF32);
  Log log = checkpoint::quiet_log();
  int64_t calls = 0;
  for (bool finished = false; !finished; ++calls) {
    const auto memory = memory_files();
    bool hit = false;
    const auto faulty =
        faulty_files(*memory, [&](int64_t call, std::string_view, const std::string&) {
          if (call != calls) return Fault::kNone;
          hit = true;
          return Fault::kDiskFull;
        });
    try {
      write_model_step(*faulty, "root", step_of(keys), TensorsInMemory(values.pieces), 1, log);
      finished = !hit;
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::kStorage) << error.what();
    }
    for (const checkpoint::StepRef& ref : checkpoint::committed_steps(*memory, "root"))
      EXPECT_TRUE(
          checkpoint::verify_step(*memory, ref.directory, checkpoint::VerifyLevel::kDeep, log).ok())
          << calls;
  }
  EXPECT_GT(calls, 30);
}

// Values that nobody holds in memory: element i of every tensor is i.  Counts what is read at once.
class Endless final : public TensorReader {
 public:
  void read(std::span<const Piece> pieces) const override {
    int64_t bytes = 0;
    for (const Piece& piece : pieces) {
      bytes += piece.data.bytes();
      const int64_t first = index_in_tensor(piece.logical.global_shape, piece.box, 0);
      for (int64_t i = 0; i < piece.data.numel(); ++i)
        if (piece.data.dtype == DType::kF32)
          piece.data.as<float>()[i] = float(first + i);
        else
          piece.data.as<bf16>()[i] = bf16(float(first + i));
    }
    most = std::max(most.load(), bytes);
  }
  DType type_of(const std::string&) const override { return DType::kF32; }
  BytePosition position_of(const std::string&) const override { return {}; }
  mutable std::atomic<int64_t> most = 0;
};

TEST(WriteModelStep, ModelsAreReadInSmallParts) {
  ModelKeys keys = odd_spec();
  keys.vocab_size = 400000;  // an embedding of 12.8 MB
  const ModelSpec spec = model_of(keys);
  Log log = checkpoint::quiet_log();
  const auto files = memory_files();
  const Endless root_reader, hf_reader;
  write_model_step(*files, "root", step_of(keys), root_reader, 2, log);
  EXPECT_LE(root_reader.most, checkpoint::kChunkBytes);
  HfWriteOptions options;
  options.num_threads = 2;
  options.dtype = DType::kF32;
  write_hf_model(*files, "hf", spec, hf_reader, options);
  EXPECT_LE(hf_reader.most, 4 * kSlabElements);
  const auto step = open_tensors(*files, "root", log);
  const auto hf = open_tensors(*files, "hf", log);
  Values a, b;
  for (const StoredTensor& tensor : step.tensors()) {
    a.add(tensor.logical, Box::whole(tensor.logical.global_shape), DType::kF32);
    b.add(tensor.logical, Box::whole(tensor.logical.global_shape), DType::kF32);
  }
  step.read(a.pieces);
  hf.read(b.pieces);
  EXPECT_EQ(a.memory, b.memory);
  EXPECT_EQ(a.pieces[0].data.as<float>()[3000000], 3000000.f);
}

}  // namespace
}  // namespace ashlar::models
