// Steps of format 1 as they were written once (tests/fixtures/golden_steps): read, every byte, or
// refused exactly as stated, for ever.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/checksum.h"
#include "ashlar/core/json.h"
#include "tests/checkpoint/state_test_util.h"
#include "tests/support/whole_tensors.h"

namespace ashlar::checkpoint {
namespace {

class GoldenSteps : public testing::Test {
 protected:
  std::string step(const std::string& name) const {
    return std::string(ASHLAR_FIXTURES) + "/golden_steps/" + name;
  }
  std::string refusal(const std::string& name) {
    return message_of(ErrorKind::kCorrupt, [&] { StepReader(*files_, step(name)); });
  }
  std::unique_ptr<FileSystem> files_ = posix_files();
  Log log_ = quiet_log();
};

std::string hex(uint32_t crc) {
  return fmt::format("{:08x}", crc);
}

TEST_F(GoldenSteps, EveryByteIsRead) {
  const Json recorded =
      parse_json(read_text(*files_, step("hashes.json")), "hashes.json", ErrorKind::kData);
  EXPECT_EQ(recorded.size(), 4u);
  for (const auto& [name, hashes] : recorded.items()) {
    SCOPED_TRACE(name);
    const VerifyReport report = verify_step(*files_, step(name), VerifyLevel::kDeep, log_);
    EXPECT_TRUE(report.ok()) << report.findings.front().message;
    const StepReader reader(*files_, step(name));
    EXPECT_EQ(report.bytes, bytes_of(reader.index()));
    EXPECT_EQ(reader.step(), 3);
    testing_support::Values values;
    for (const IndexTensor& tensor : reader.index().tensors)
      if (!tensor.alias)
        values.add(tensor.logical, Box::whole(tensor.logical.global_shape), tensor.logical.dtype);
    reader.load(values.pieces);
    EXPECT_EQ(values.pieces.size(), hashes["tensors"].size());
    for (const Piece& piece : values.pieces) {
      const Json& expected = hashes["tensors"].at(piece.logical.name);
      EXPECT_EQ(expected["dtype"], name_of(piece.logical.dtype)) << piece.logical.name;
      EXPECT_EQ(expected["shape"], Json(piece.logical.global_shape.dims())) << piece.logical.name;
      EXPECT_EQ(expected["crc32c"], hex(crc32c(values.of(piece.logical.name))))
          << piece.logical.name;
    }
    EXPECT_EQ(reader.index().blobs.size(), hashes["extra"].size());
    for (const auto& [blob, crc] : hashes["extra"].items())
      EXPECT_EQ(crc, hex(crc32c(reader.read_blob(blob)))) << blob;
  }
}

// The layouts are what their names say.
TEST_F(GoldenSteps, HaveTheWritersAndBoxesOfTheirLayouts) {
  for (const auto& [name, writers, boxes] : {std::tuple("one-writer", 1u, 1u),
                                             {"three-writers", 3u, 3u},
                                             {"tp", 2u, 2u},
                                             {"bucketed", 2u, 6u}}) {
    const StepReader reader(*files_, step(name));
    uint32_t found_writers = 0;
    size_t found_boxes = 0;
    for (const IndexFile& file : reader.index().files)
      found_writers = std::max(found_writers, file.writer);
    for (const IndexTensor& tensor : reader.index().tensors)
      found_boxes = std::max(found_boxes, tensor.boxes.size());
    EXPECT_EQ(found_writers, writers) << name;
    EXPECT_EQ(found_boxes, boxes) << name;
  }
}

TEST_F(GoldenSteps, WhatNobodyKnowsIsRefusedByItsName) {
  EXPECT_EQ(refusal("unknown-feature"),
            step("unknown-feature/manifest.json") +
                ": required_features is [\"holograms\"]; this program knows none: use a newer "
                "version of it");
  EXPECT_EQ(refusal("unknown-flag"),
            step("unknown-flag/index.bin") +
                ": required feature flags 0x10000000000 are unknown; use a newer version of this "
                "program");
}

}  // namespace
}  // namespace ashlar::checkpoint
