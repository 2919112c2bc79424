// State that a planner keeps from one save to the next, and state that it makes anew.
#include "ashlar/checkpoint/save/save_plan.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/checkpoint/safetensors_validator.h"
#include "tests/checkpoint/state_test_util.h"

namespace ashlar::checkpoint {
namespace {

Id id_of(uint8_t byte) {
  Id id;
  id.fill(byte);
  return id;
}

// The bytes of a planned file.
std::string bytes_of(const FilePlan& file) {
  std::string bytes(size_t(file.file.size_bytes), '\0');
  fill_from_plan(file, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

TEST(SavePlanner, ReusesFilesAndTakesMemoryStepAndIdsOfTheRequest) {
  SavePlanner planner("run", 0, 1);
  TinyRun runs[2];
  Id uuids[2];
  int64_t data_begin = 0;
  for (const int i : {0, 1}) {
    const int64_t step = i == 0 ? 7 : kMaxStep;
    runs[i].fill(step);
    SavePlan plan = planner.plan(runs[i].request(step), id_of(uint8_t(i)));
    fill_in(plan);
    int64_t total = 0;
    for (const FilePlan& file : plan.files) total += file.file.size_bytes;
    EXPECT_EQ(plan.bytes, total);  // plan() tells it before there are files
    const FilePlan& model = plan.files[0];
    SafetensorsValidator validator;
    const std::string bytes = bytes_of(model);
    ASSERT_EQ(validator.validate(bytes), "");
    EXPECT_EQ(validator.metadata["ashlar.step"], std::to_string(step));
    EXPECT_EQ(validator.metadata["ashlar.attempt"], to_text(id_of(uint8_t(i))));
    EXPECT_EQ(validator.metadata["ashlar.file_uuid"], to_text(model.file.uuid));
    uuids[i] = model.file.uuid;
    EXPECT_TRUE(i == 0 || model.file.data_begin == data_begin);
    data_begin = model.file.data_begin;
    // The embedding's bytes are those of this run.
    const Piece& embed = runs[i].model.pieces()[0];
    for (const IndexTensor& tensor : plan.index.tensors)
      if (tensor.logical.name == "embed.weight") {
        EXPECT_EQ(bytes.substr(size_t(tensor.boxes[0].byte_offset), size_t(embed.data.bytes())),
                  std::string(reinterpret_cast<const char*>(embed.data.data),
                              size_t(embed.data.bytes())));
      }
  }
  EXPECT_NE(uuids[0], uuids[1]);
  EXPECT_EQ(planner.num_made(), 1);
}

// Each change of what the request holds makes another hash, and other files.
TEST(SavePlanner, MakesFilesAnewWhenAPieceChanges) {
  const auto piece_of = [](int change) {
    static std::vector<int64_t> memory(64);
    Tensor data = tensor_over(std::span(memory).first(12));
    data.shape = {3, 4};
    Piece piece{{"w", DType::kI64, {6, 4}}, {{0, 0}, {3, 4}}, data, {}};
    if (change == 1) piece.logical.name = "v";
    if (change == 2) piece.logical.dtype = piece.data.dtype = DType::kF64;
    if (change == 3) piece.logical.global_shape = {7, 4};
    if (change == 4) piece.logical.role = Role::kBuffer;
    if (change == 5) piece.box.offset[0] = 1;
    if (change == 6) piece.box.length = piece.data.shape = {2, 4};
    if (change == 7) piece.strides = {8, 1};
    return piece;
  };
  std::set<Id> hashes;
  SavePlanner planner("run", 0, 2);
  const auto hash_of = [&](SavePlanner& planner, int change) {
    const Piece piece = piece_of(change);
    SaveRequest request;
    request.model = {&piece, 1};
    return planner.plan(request, id_of(1)).hash;
  };
  for (int change = 0; change < 8; ++change) {
    EXPECT_TRUE(hashes.insert(hash_of(planner, change)).second) << change;
    EXPECT_EQ(planner.num_made(), change + 1);
    hash_of(planner, change);
    EXPECT_EQ(planner.num_made(), change + 1);
  }
  SavePlanner second("run", 1, 2), of_three("run", 0, 3), of_another_run("other", 0, 2);
  for (SavePlanner* other : {&second, &of_three, &of_another_run})
    EXPECT_TRUE(hashes.insert(hash_of(*other, 0)).second);
  SavePlanner again("run", 0, 2);
  EXPECT_FALSE(hashes.insert(hash_of(again, 0)).second);
}

TEST(SavePlanner, KeepsNothingThatDoesNotCoverItsTensors) {
  TinyRun run;
  SaveRequest request = run.request(1);
  Piece half = run.model.pieces()[0];
  half.box.length[0] = half.data.shape[0] = 3;
  request.model = {&half, 1};
  SavePlanner planner("run", 0, 1);
  for (int i = 0; i < 2; ++i)
    EXPECT_NE(message_of(ErrorKind::kCorrupt, [&] { planner.plan(request, id_of(1)); })
                  .find("embed.weight"),
              std::string::npos);
  EXPECT_EQ(planner.num_made(), 2);
}

}  // namespace
}  // namespace ashlar::checkpoint
