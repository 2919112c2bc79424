#include "ashlar/bench/checkpoint.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/files.h"
#include "ashlar/core/json.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::bench {
namespace {

TEST(CheckpointWorkload, PiecesToWriteTileEveryTensorInEitherLayout) {
  for (const CheckpointWorkload& workload : checkpoint_workloads(int64_t(4) << 20, 2))
    for (const CheckpointLayout& layout : {workload.saved, workload.other}) {
      SCOPED_TRACE(workload.name + ", " + layout.text());
      int64_t written = 0;
      for (int rank = 0; rank < layout.ranks; ++rank) {
        CheckpointState state(workload, layout, rank);
        state.fill();
        EXPECT_EQ(state.wrong_elements(), 0);
        state.clear();
        EXPECT_GT(state.wrong_elements(), state.bytes() / 4 - 1000);
        for (const Piece& piece : state.pieces(true)) written += piece.data.bytes();
      }
      EXPECT_EQ(written, workload.bytes());
    }
}

TEST(Checkpoint, SavesAndLoadsEveryWorkload) {
  const testing_support::TemporaryDirectory scratch;
  CheckpointBenchOptions options;
  options.directory = scratch / "made";
  options.bytes = int64_t(4) << 20;
  options.repeats = 2;
  options.step_s = 0.01;
  int rows = 0;
  measure_checkpoints(options, [&](const CheckpointRow& row) {
    SCOPED_TRACE(row.workload.name);
    ++rows;
    EXPECT_EQ(row.wrong_elements, 0);
    EXPECT_GE(row.bytes, row.workload.bytes());
    EXPECT_GE(row.files, 1);
    for (const Summary& s : {row.ashlar.save, row.ashlar.load, row.ashlar.other_load,
                             row.plain.save, row.plain.load, row.plain.other_load, row.raw_write}) {
      EXPECT_EQ(s.count, 2u);
      EXPECT_GT(s.median, 0);
    }
    const Json json = parse_json(to_json_line(row, options), "row", ErrorKind::kCorrupt);
    EXPECT_EQ(json["unique_bytes"], row.workload.bytes());
  });
  EXPECT_EQ(rows, 7);
  EXPECT_FALSE(posix_files()->stat(options.directory));
  options.workloads = {"huge"};
  const std::string message = testing_support::message_of(
      ErrorKind::kConfig, [&] { measure_checkpoints(options, [](const CheckpointRow&) {}); });
  EXPECT_NE(message.find("--workload is huge"), std::string::npos) << message;
}

}  // namespace
}  // namespace ashlar::bench
