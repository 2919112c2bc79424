// Runs on a GPU, which is an emulator here: checkpoints, resume, what they report.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/train/start.h"
#include "tests/data/support.h"
#include "tests/support/temporary_directory.h"
#include "tests/train/gpu/gpu_trainer.h"

namespace ashlar::train {
namespace {

using namespace testing_support;
using ashlar::testing_support::TemporaryDirectory;

class GpuRun : public testing::Test {
 protected:
  // Trains a tiny Llama in the directory; the lines that the start prints.
  std::vector<std::string> start(const std::string& directory, const Overrides& more) {
    write_text();
    Overrides all = {"model.vocab_size=256", "data.train=" + (root_ / "text").string(),
                     "data.tokenizer=byte",  "train.run_dir=" + (root_ / directory).string(),
                     "train.device=gpu",     "optim.schedule=constant",
                     "train.eval_every=2",   "train.eval_sequences=2",
                     "checkpoint.every=2"};
    all.insert(all.end(), more.begin(), more.end());
    std::vector<std::string> lines;
    Log log([&](std::string_view line) { lines.emplace_back(line); });
    EXPECT_EQ(start_run(tiny_llama(all), *files_, log), Outcome::kDone);
    return lines;
  }
  // Documents of 20 to 69 bytes without pattern: all gradients are larger than their rounding.
  void write_text() {
    std::vector<std::vector<int32_t>> documents;
    uint32_t seed = 1;
    for (size_t d = 0; d < 60; ++d) {
      documents.emplace_back(20 + d * 7 % 50);
      for (int32_t& id : documents.back()) {
        seed = seed * 1664525u + 1013904223u;
        id = int32_t(seed >> 26);
      }
    }
    data::write_documents(*files_, root_ / "text", documents, 256);
  }
  // Model and optimizer of a step, by name.
  Tensors state(const std::string& directory, int64_t number) {
    return stored_state(*files_,
                        root_ / fmt::format("{}/checkpoints/step-{:012}", directory, number));
  }

  const std::unique_ptr<FileSystem> files_ = posix_files();
  const TemporaryDirectory root_;
};

TEST_F(GpuRun, ContinuesFromACheckpointWithTheSameBits) {
  start("whole", {"train.steps=5"});
  start("parts", {"train.steps=3"});
  const std::vector<std::string> lines = start("parts", {"train.steps=5"});
  EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("continuing after step 3") != std::string::npos;
  }));
  const Tensors whole = state("whole", 5);
  EXPECT_GT(whole.size(), 30u);  // weights, and the optimizer's state of each
  expect_same_bits(state("parts", 5), whole);
}

// A step that the CPU saved continues on the GPU, and the other way round.
TEST_F(GpuRun, ContinuesWhereTheCpuStopped) {
  const auto run = [&](const std::string& directory, const char* device, const char* steps) {
    start(directory, {"train.precision=fp32", "optim.matrices=adamw", device, steps});
  };
  run("both", "train.device=cpu", "train.steps=2");
  run("alone", "train.device=gpu", "train.steps=2");
  expect_near(state("both", 2), state("alone", 2), 1e-3);
  run("both", "train.device=gpu", "train.steps=4");
  run("alone", "train.device=cpu", "train.steps=4");
  expect_near(state("both", 4), state("alone", 4), 1e-2);
}

TEST_F(GpuRun, SaysWhatItComputesOn) {
  const std::vector<std::string> lines = start("run", {"train.steps=1", "train.precision=bf16"});
  const auto found = std::find_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find(" parameters, ") != std::string::npos;
  });
  ASSERT_NE(found, lines.end());
  const DeviceSpec spec = kernels::gpu::find_gpu();
  EXPECT_NE(found->find("BF16 on " + spec.architecture), std::string::npos) << *found;
  EXPECT_NE(found->find("of its data sheet"), std::string::npos) << *found;
}

// A track of the file has the kernels as the GPU ran them, another one as the host launched them.
TEST_F(GpuRun, TracesWhatTheGpuDid) {
  start("run", {"train.steps=3", "train.trace_steps=2"});
  const auto trace =
      nlohmann::json::parse(read_text(*files_, root_ / "run/trace/steps-2-3-rank-0.json"));
  EXPECT_EQ(trace["otherData"]["device"], kernels::gpu::find_gpu().name);
  std::vector<std::string> launched, ran;
  std::vector<std::pair<double, double>> steps;
  double last_end_us = 0, on_device_us = 0, in_steps_us = 0;
  for (const auto& event : trace["traceEvents"]) {
    const std::string category = event.value("cat", "");
    if (category == "kernel") launched.push_back(event["name"]);
    if (category != "step" && category != "device") continue;
    const double start_us = event["ts"], duration_us = event["dur"];
    if (category == "step") {
      steps.emplace_back(start_us, start_us + duration_us);
      in_steps_us += duration_us;
      continue;
    }
    ran.push_back(event["name"]);
    EXPECT_EQ(event["args"]["launches"] == 0, ran.back() == "upload" || ran.back() == "download");
    EXPECT_GE(start_us, last_end_us);
    EXPECT_TRUE(std::any_of(steps.begin(), steps.end(), [&](const auto& step) {
      return step.first <= start_us && start_us + duration_us <= step.second;
    }));
    last_end_us = start_us + duration_us;
    on_device_us += duration_us;
  }
  EXPECT_GT(ran.size(), 200u);
  EXPECT_EQ(ran, launched);
  EXPECT_EQ(steps.size(), 2u);
  EXPECT_LE(on_device_us, in_steps_us);
}

}  // namespace
}  // namespace ashlar::train
