// ashlar plan calibrate and compare, on a profile of this machine.
#include <gtest/gtest.h>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

bool measured(const Result& result) {
  constexpr int kDisturbed = 7;
  return result.code == 0 || result.code == kDisturbed;
}

TEST(PlanCalibrate, FactorsServeLaterSimulations) {
  const Scratch scratch;
  const std::string tiny = kData + "/recipes/tiny.toml";
  Result result =
      run(scratch, {"bench", "kernels", tiny, "--ranks", "2", "--steps", "1", "--layout",
                    "parallel.zero=0", "--layout", "parallel.zero=1", "--layout", "parallel.tp=2",
                    "--profile", "m.toml", "train.micro_batch=1", "train.threads=1"});
  ASSERT_TRUE(measured(result)) << result.err;
  result = run(scratch, {"bench", "collectives", "--ranks", "2", "--quick", "-e", "64K", "-d",
                         "float", "--profile", "m.toml"});
  ASSERT_TRUE(measured(result)) << result.err;
  // The largest size that was measured, rounded up.
  result = run(scratch, {"plan", "dry-run", tiny, "--ranks", "2", "parallel.bucket_bytes=auto",
                         "train.machine=m.toml"});
  EXPECT_NE(result.out.find("bucket_bytes 65536"), std::string::npos) << result.out << result.err;
  result = run(scratch, {"train", tiny, "--dry-run", "--ranks", "2", "parallel.bucket_bytes=auto",
                         "train.machine=m.toml"});
  EXPECT_NE(result.out.find("bucket_bytes = 65536"), std::string::npos) << result.out << result.err;
  run_ok(scratch, {"plan", "simulate", tiny, "--ranks", "2", "--machine", "m.toml",
                   "parallel.bucket_bytes=auto", "train.micro_batch=1"});
  result = run(scratch, {"plan", "calibrate", tiny, "--ranks", "2", "--machine", "m.toml", "--runs",
                         "3", "--steps", "2", "--rounds", "1", "--json", "factors",
                         "train.micro_batch=1", "train.threads=1"});
  ASSERT_TRUE(measured(result)) << result.err;
  // Below the table, layouts are named again whose rounds other programs disturbed.
  const std::string table = result.out.substr(0, result.out.find("not calm:"));
  EXPECT_EQ(count_of(table, "train.micro_batch=1 parallel."), 3);
  EXPECT_NE(read_file(scratch / "factors").find("\"left_out_s\""), std::string::npos);
  EXPECT_NE(read_file(scratch / "m.toml").find("[calibration.factors]"), std::string::npos);
  result = run(scratch, {"plan", "simulate", tiny, "--ranks", "2", "--machine", "m.toml",
                         "--perfetto", "simulated.json", "train.micro_batch=1"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("calibrated on 20"), std::string::npos) << result.out;

  prepare_text(scratch);
  run_ok(scratch, run_args("run", 2, {"train.steps=3", "train.trace_steps=1"}));
  result = run(scratch, {"plan", "compare", "run", "simulated.json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("mean of 2 ranks and 1 recorded steps"), std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("outside of the plan"), std::string::npos) << result.out;
}

TEST(PlanCalibrate, OtherMachinesAreRefused) {
  const Scratch scratch;
  const std::string tiny = kData + "/recipes/tiny.toml";
  Result result = run(scratch, {"plan", "calibrate", tiny, "--ranks", "2", "--machine", "h100"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("give the file of its profile"), std::string::npos) << result.err;
  result = run(scratch, {"plan", "calibrate", tiny, "--ranks", "2", "--machine",
                         kData + "/recorded_steps/machine.toml"});
  EXPECT_EQ(result.code, 2) << result.err;
}

}  // namespace
}  // namespace ashlar::integration
