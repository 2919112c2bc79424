// Plans for a GPU, which need none, and training on one, which this build does not have.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

const std::string kPlannedLlama = kData + "/../../recipes/llama-nano.toml";
const std::string kAdamW = "optim.matrices=adamw";
const std::string kPlannedLinear = kData + "/../../recipes/linear-nano.toml";

nlohmann::json plan_of(const Scratch& scratch, const std::string& device) {
  return nlohmann::json::parse(
      run_ok(scratch, {"plan", "dry-run", kPlannedLlama, kAdamW, "--device", device, "--json"}));
}

TEST(DevicePlan, SaysWhatIsTakenAndWhatIsLeft) {
  const Scratch scratch;
  const std::string text =
      run_ok(scratch, {"plan", "dry-run", kPlannedLlama, kAdamW, "--device", "h200"});
  EXPECT_TRUE(contains(text, "on h200 (sm_90):")) << text;
  EXPECT_TRUE(contains(text, "reserved            1,610,612,736     1.50 GiB  outside of the plan"))
      << text;
  // Lists take 64 MiB; a save goes through 64 slots of 4 MiB.
  EXPECT_TRUE(contains(text, "pinned memory of the host:\nlists                  67,108,864"))
      << text;
  EXPECT_TRUE(contains(text, "saves                 268,435,456")) << text;
  EXPECT_TRUE(contains(text, "precision                      bf16")) << text;  // auto
  EXPECT_FALSE(contains(text, "does not fit")) << text;
}

TEST(DevicePlan, IsTheSameOnChipsOfOneKindAndFitsByTheirMemory) {
  const Scratch scratch;
  const nlohmann::json h100 = plan_of(scratch, "h100"), h200 = plan_of(scratch, "h200");
  EXPECT_EQ(h100.at("classes"), h200.at("classes"));
  EXPECT_EQ(h100.at("device").at("memory_bytes"), 80'000'000'000);
  EXPECT_EQ(h100.at("device").at("fits"), true);
  // Weights, gradients and moments in fp32, and matrices in bf16 once: no form for backward.
  const auto& memory = h100.at("classes")[0].at("memory_bytes");
  const double parameters = h100.at("model").at("parameters");
  EXPECT_NEAR(double(memory.at("weights")), 6.0 * parameters, 0.02 * 6.0 * parameters);
  EXPECT_NEAR(double(memory.at("gradients")), 4.0 * parameters, 0.02 * 4.0 * parameters);

  const int64_t taken = memory.at("total");
  const auto file = [&](int64_t bytes) {
    write_file(scratch.path() / "chip.toml",
               "name = 'chip'\narchitecture = 'sm_90'\nreserved_bytes = 1000\nmemory_bytes = " +
                   std::to_string(bytes) + "\n");
    return plan_of(scratch, "chip.toml").at("device").at("fits");
  };
  EXPECT_EQ(file(taken + 1000), true);
  EXPECT_EQ(file(taken + 999), false);
}

// A driver that shows an H200 and a chip that is not known by name.
TEST(DevicePlan, TakesTheFileThatInfoPrintsOfACard) {
  const Scratch scratch;
  std::filesystem::create_symlink(ASHLAR_FAKE_CUDA, scratch / "libcuda.so.1");
  const std::vector<std::string> driver = {"/usr/bin/env",
                                           "LD_LIBRARY_PATH=" + scratch.path().string()};
  const auto info = [&](std::vector<std::string> args) {
    args.insert(args.begin(), "info");
    return run(scratch, args, {}, driver);
  };
  const std::string all = info({}).out;
  EXPECT_TRUE(contains(all, "NVIDIA H200, sm_90, 132 compute units")) << all;
  EXPECT_TRUE(contains(all, "no known chip: `ashlar info --gpu 1 >FILE`")) << all;
  EXPECT_EQ(count_of(all, "no known chip"), 1) << all;
  const Result known = info({"--gpu", "0"}), unknown = info({"--gpu", "1"});
  write_file(scratch.path() / "known.toml", known.out);
  write_file(scratch.path() / "unknown.toml", unknown.out);
  const nlohmann::json h200 = plan_of(scratch, "h200");
  const nlohmann::json of_known = plan_of(scratch, "known.toml");
  EXPECT_EQ(of_known.at("classes"), h200.at("classes"));
  EXPECT_EQ(of_known.at("device").at("memory_bytes"), 150'109'880'320);
  const nlohmann::json of_unknown = plan_of(scratch, "unknown.toml").at("device");
  EXPECT_EQ(of_unknown.at("name"), "NVIDIA Something");
  EXPECT_EQ(of_unknown.at("memory_bytes"), 16'000'000'000);
  const Result beyond = info({"--gpu", "2"});
  EXPECT_EQ(beyond.code, 2);
  EXPECT_TRUE(contains(beyond.err, "--gpu is 2; expected 0 to 1")) << beyond.err;
}

TEST(DevicePlan, RefusesWhatGpusDoNotDo) {
  const Scratch scratch;
  const auto refusal = [&](std::vector<std::string> args, int code) {
    args.insert(args.begin(), {"plan", "dry-run"});
    const Result result = run(scratch, args);
    EXPECT_EQ(result.code, code) << result.err;
    return result.err;
  };
  EXPECT_TRUE(contains(
      refusal({kPlannedLlama, "train.micro_batch=2", "--device", "h200", "--ranks", "2"}, 2),
      "2 ranks on GPUs"));
  EXPECT_TRUE(
      contains(refusal({kPlannedLlama, "--device", "h300"}, 2), "expected a100, h100, h200"));
  EXPECT_TRUE(contains(refusal({kPlannedLinear, "--device", "h200"}, 29), "has no GPU path yet"));
}

TEST(DevicePlan, TracesTheLaunchesOfAStep) {
  const Scratch scratch;
  const Result result =
      run(scratch, {"plan", "dry-run", kPlannedLlama, "--device", "h200", "--trace", "new"});
  EXPECT_EQ(result.code, 0) << result.err;
  const auto trace = nlohmann::json::parse(read_file(scratch.path() / "new" / "dry-rank-0.json"));
  EXPECT_EQ(trace.at("otherData").at("device"), "h200");
  int64_t launches = 0;
  for (const auto& event : trace.at("traceEvents"))
    if (event.value("cat", "") == "kernel") launches += event.at("args").at("launches").get<int>();
  EXPECT_GT(launches, 100);
}

TEST(DeviceFlag, IsRefusedWithoutAGpu) {
  const Scratch scratch;
  const std::string model = kData + "/hf_llama";
  for (const char* command : {"score", "generate"}) {
    std::vector<std::string> args{command, "--model", model, "--ids", "1,2", "--device", "gpu"};
    const Result result = run(scratch, args);
    EXPECT_EQ(result.code, 29) << result.err;
    EXPECT_TRUE(contains(result.err, "--device is gpu, but this build has no kernels for GPUs"))
        << result.err;
    EXPECT_TRUE(contains(result.err, "or choose --device cpu")) << result.err;
    args.back() = "auto";  // without a word about GPUs where there is none
    EXPECT_FALSE(contains(run(scratch, args).err, "GPU"));
    args.back() = "tpu";
    const Result unknown = run(scratch, args);
    EXPECT_EQ(unknown.code, 2);
    EXPECT_TRUE(contains(unknown.err, "--device is tpu; expected auto, cpu or gpu")) << unknown.err;
  }
}

TEST(DeviceTraining, IsRefusedWithoutAGpu) {
  const Scratch scratch;
  prepare_text(scratch);
  const Result result = run(scratch, train_args({"train.device=gpu"}));
  EXPECT_EQ(result.code, 29) << result.err;
  EXPECT_TRUE(contains(result.err,
                       "train.device is gpu, but this build has no kernels for GPUs: build with "
                       "--preset cuda or --preset hip"))
      << result.err;
  EXPECT_TRUE(contains(result.err, "train.device=cpu")) << result.err;
}

}  // namespace
}  // namespace ashlar::integration
