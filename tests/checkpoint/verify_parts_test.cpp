// Several ranks verify one step, each a part of it: together they read every byte once.
#include <gtest/gtest.h>

#include "tests/checkpoint/state_test_util.h"

namespace ashlar::checkpoint {
namespace {

class Parts : public testing::Test {
 protected:
  Parts() {
    Checkpointer checkpoints(*files_, "root", direct(), log_);
    TinyRun run;
    big_.add("big", DType::kF32, {3, 1 << 20}, Role::kParameter);  // several chunks
    run.fill(1);
    SaveRequest request = run.request(1);
    std::vector<Piece> model = run.model.pieces();
    model.push_back(big_.pieces()[0]);
    request.model = model;
    checkpoints.save(request);
  }
  std::vector<VerifyReport> verify(int parts) {
    std::vector<VerifyReport> reports;
    for (int part = 0; part < parts; ++part)
      reports.push_back(verify_step(*files_, directory_, VerifyLevel::kDeep, log_, {part, parts}));
    return reports;
  }

  std::unique_ptr<FileSystem> files_ = memory_files();
  Log log_ = quiet_log();
  State big_;
  const std::string directory_ = "root/" + step_name(1);
};

TEST_F(Parts, AddUpToTheWhole) {
  const VerifyReport whole = verify(1)[0];
  EXPECT_TRUE(whole.ok());
  for (const int parts : {2, 3, 5, 40}) {
    VerifyReport sum;
    int64_t most = 0;
    for (const VerifyReport& report : verify(parts)) {
      EXPECT_TRUE(report.ok());
      sum.files += report.files;
      sum.chunks += report.chunks;
      sum.bytes += report.bytes;
      most = std::max(most, report.chunks);
    }
    EXPECT_EQ(sum.files, whole.files);
    EXPECT_EQ(sum.chunks, whole.chunks);
    EXPECT_EQ(sum.bytes, whole.bytes);
    EXPECT_LE(most, whole.chunks / parts + 1);
  }
}

TEST_F(Parts, DamageIsFoundByOneOfThem) {
  const StepReader reader(*files_, directory_);
  for (const IndexFile& file : reader.index().files) {
    if (file.size_bytes == 0) continue;
    SCOPED_TRACE(file.path);
    const std::string path = join(directory_, file.path), good = read_all(*files_, path);
    std::string bad = good;
    bad[bad.size() - 1] = char(bad.back() ^ 4);
    overwrite(*files_, path, bad);
    int found = 0;
    for (const VerifyReport& report : verify(4))
      for (const Finding& finding : report.findings) found += finding.chunk >= 0;
    EXPECT_EQ(found, 1);
    overwrite(*files_, path, good);
  }
}

}  // namespace
}  // namespace ashlar::checkpoint
