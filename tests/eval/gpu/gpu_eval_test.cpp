// Scoring, losses and generation on a GPU, which is an emulator here: against transformers, against
// the CPU, and each way of cutting a text against the others.
#include <gtest/gtest.h>

#include <cmath>

#include "ashlar/core/rng.h"
#include "ashlar/eval/load.h"
#include "ashlar/eval/perplexity.h"
#include "ashlar/eval/score.h"
#include "ashlar/eval/slots.h"
#include "ashlar/kernels/gpu/emulator/mode.h"
#include "ashlar/spec/model_keys.h"
#include "tests/support/errors.h"
#include "tests/support/read_json.h"

namespace ashlar::eval {
namespace {

using kernels::ComputeDevice;
using testing_support::message_of;

// A model that transformers saved.
struct GoldenModel {
  explicit GoldenModel(const std::string& name)
      : source(find_model(*files, ASHLAR_FIXTURES "/" + name, log)),
        expected(testing_support::read_json(name + "/expected.json")) {}
  // The prompt and the last target.
  std::vector<int32_t> ids() const {
    auto ids = expected.at("ids").get<std::vector<int32_t>>();
    ids.push_back(expected.at("targets").back());
    return ids;
  }
  std::unique_ptr<Runtime> load(const Calls& calls, DType compute = DType::kF32) const {
    return std::make_unique<Runtime>(*files, source, compute, calls, 1, gpu);
  }
  std::unique_ptr<Runtime> load_on_cpu(const Calls& calls, DType compute = DType::kF32) const {
    return std::make_unique<Runtime>(*files, source, compute, calls, 1);
  }
  Footprint planned(const Calls& calls) const {
    return footprint(source.spec, DType::kF32, calls, 1, ComputeDevice::gpu(gpu));
  }

  Log log{[](std::string_view) {}};
  const std::unique_ptr<FileSystem> files = posix_files();
  const ModelSource source;
  const nlohmann::json expected;
  const DeviceSpec gpu = kernels::gpu::find_gpu();
};

std::vector<int32_t> drawn_ids(int64_t count, int64_t number = 0) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(int32_t(splitmix64(uint64_t(1000 * number + i)) % 100));
  return ids;
}

Calls calls_of_score(int64_t length) {
  return {.max_positions = length, .max_call = length, .all_logits = true};
}

Calls calls_of_decoder(int64_t length, int64_t chunk, int64_t places = 1) {
  return {.max_positions = length, .max_call = chunk, .cached = true, .num_places = places};
}

std::vector<float> logits_of(const Scores& scores) {
  const std::string bytes = logits_bytes(scores);
  std::vector<float> logits(bytes.size() / sizeof(float));
  std::copy_n(bytes.data(), bytes.size(), reinterpret_cast<char*>(logits.data()));
  return logits;
}

void expect_near(std::span<const float> got, std::span<const float> want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << i;
}

class GpuEval : public testing::TestWithParam<const char*> {
 protected:
  const GoldenModel golden_{GetParam()};
};

TEST_P(GpuEval, ScoresAreThoseOfTransformers) {
  const std::vector<int32_t> ids = golden_.ids();
  const Calls calls = calls_of_score(int64_t(ids.size()));
  const auto on_gpu = golden_.load(calls), on_cpu = golden_.load_on_cpu(calls);
  const Scores got = score(on_gpu->ctx, on_gpu->allocator, on_gpu->model, ids);
  const Scores cpu = score(on_cpu->ctx, on_cpu->allocator, on_cpu->model, ids);
  const double want = golden_.expected.at("loss");
  EXPECT_NEAR(got.loss, want, 1e-4 * want);
  EXPECT_EQ(got.argmax, cpu.argmax);
  EXPECT_EQ(got.experts, cpu.experts);
  const auto wanted = golden_.expected.at("logits").get<std::vector<std::vector<float>>>();
  const std::vector<float> logits = logits_of(got);
  for (size_t t = 0; t < wanted.size(); ++t)
    expect_near(std::span(logits).subspan(t * wanted[t].size(), wanted[t].size()), wanted[t], 1e-4);
}

// Sequences shorter and longer than a chunk, more of them than slots.
std::vector<std::vector<int32_t>> generate_all(Runtime& runtime, double temperature) {
  PromptSlots slots(runtime.ctx, runtime.allocator, runtime.model,
                    {.num_slots = 2, .max_tokens = 30, .max_chunk = 4});
  for (int64_t i = 0; i < 3; ++i)
    slots.submit(
        drawn_ids(1 + 5 * i, i),
        {.max_tokens = 9 - i, .sampling = {.temperature = temperature, .prompt = uint64_t(i)}});
  std::vector<std::vector<int32_t>> made(3);
  while (slots.num_left() > 0)
    for (const auto& token : slots.step()) made[size_t(token.request)].push_back(token.id);
  return made;
}

TEST_P(GpuEval, GeneratesTheTokensOfTheCpu) {
  const Calls calls = calls_of_decoder(30, 4, 2);
  for (const double temperature : {0.0, 1.0})
    EXPECT_EQ(generate_all(*golden_.load(calls), temperature),
              generate_all(*golden_.load_on_cpu(calls), temperature));
}

TEST_P(GpuEval, DecodingInChunksEqualsOnePass) {
  const int64_t T = 13;
  const std::vector<int32_t> ids = drawn_ids(T);
  const auto whole = golden_.load(calls_of_score(T));
  const std::vector<float> logits =
      logits_of(score(whole->ctx, whole->allocator, whole->model, ids));
  const size_t V = logits.size() / size_t(T);
  for (const int64_t chunk : {1, 4, 13}) {
    const auto runtime = golden_.load(calls_of_decoder(T, chunk));
    Decoder decoder(runtime->ctx, runtime->allocator, runtime->model, T, chunk);
    expect_near(decoder.feed(ids), std::span(logits).last(V), 1e-4);
  }
}

void expect_planned(const Allocator& real, const MemoryCounts& planned) {
  const MemoryCounts counts = real.counts();
  for (size_t tag = 0; tag < kNumTags; ++tag)
    EXPECT_EQ(counts.tags[tag].peak_bytes, planned.tags[tag].peak_bytes) << name_of(Tag(tag));
  EXPECT_EQ(counts.total.peak_bytes, planned.total.peak_bytes);
}

TEST_P(GpuEval, TakesTheMemoryOfItsPlan) {
  const std::vector<int32_t> ids = drawn_ids(20);
  const Calls scoring = calls_of_score(20), decoding = calls_of_decoder(30, 4, 2);
  const auto scored = golden_.load(scoring);
  score(scored->ctx, scored->allocator, scored->model, ids);
  expect_planned(scored->allocator, golden_.planned(scoring).memory);

  const Calls losing{.max_positions = 10, .max_call = 20};
  const auto lost = golden_.load(losing);
  const std::vector<Segment> rows = {{0, 10, 0, 0}, {10, 10, 0, 1}};
  std::vector<double> losses(ids.size());
  TokenLosses(lost->allocator, lost->model, 20)
      .run(lost->ctx, {.ids = ids, .targets = ids, .segments = rows}, losses);
  expect_planned(lost->allocator, golden_.planned(losing).memory);

  const auto decoded = golden_.load(decoding);
  generate_all(*decoded, 0.0);
  expect_planned(decoded->allocator, golden_.planned(decoding).memory);
  EXPECT_LE(decoded->ctx.workspace->peak_bytes(), golden_.planned(decoding).workspace_bytes);
}

// The host reads nothing but what it downloads: with memory that is closed to it, as a card's is,
// it would end by a signal.
TEST_P(GpuEval, WaitsOnceAToken) {
  const auto runtime = golden_.load(calls_of_decoder(30, 4));
  Decoder decoder(runtime->ctx, runtime->allocator, runtime->model, 30, 4);
  const int64_t before = runtime->ctx.stream->num_waits();
  const int64_t allocations = runtime->allocator.counts().num_allocations;
  device::emulator::close_to_host(true);
  decoder.feed(drawn_ids(9));  // three chunks
  for (int64_t made = 1; made <= 5; ++made) {
    EXPECT_EQ(runtime->ctx.stream->num_waits() - before, made);
    decoder.feed(drawn_ids(1, made));
  }
  device::emulator::close_to_host(false);
  EXPECT_EQ(runtime->allocator.counts().num_allocations, allocations);
}

INSTANTIATE_TEST_SUITE_P(Families, GpuEval,
                         testing::Values("hf_llama", "hf_qwen3", "hf_small", "hf_mixtral",
                                         "hf_qwen3_moe"),
                         [](const auto& info) { return std::string(info.param); });

// So long that several blocks share the keys of few queries: of one, and of the most.
TEST(GpuDecode, OfLongTextsIsThatOfTheCpu) {
  const GoldenModel golden("hf_llama");
  const std::vector<int32_t> ids = drawn_ids(640);
  const Calls calls = calls_of_decoder(int64_t(ids.size()), 256);
  const auto on_gpu = golden.load(calls), on_cpu = golden.load_on_cpu(calls);
  Decoder gpu(on_gpu->ctx, on_gpu->allocator, on_gpu->model, int64_t(ids.size()), 256);
  Decoder cpu(on_cpu->ctx, on_cpu->allocator, on_cpu->model, int64_t(ids.size()), 256);
  size_t begin = 0;
  for (const size_t count :
       {size_t(550), size_t(1), size_t(kernels::gpu::kFewQueries), size_t(1)}) {
    const auto part = std::span(ids).subspan(begin, count);
    expect_near(gpu.feed(part), cpu.feed(part), 1e-4);
    begin += count;
  }
}

TEST(GpuDecode, PlansForTheCallsThatTakeMost) {
  ModelKeys keys;
  keys.layer_types.assign(1, LayerType::kFullAttention), keys.num_hidden_layers = 1;
  keys.hidden_size = 64, keys.intermediate_size = 64, keys.vocab_size = 64;
  keys.num_attention_heads = 64, keys.num_key_value_heads = 8, keys.head_dim = 128;
  keys.residual = Residual::kPlain;
  const DeviceSpec gpu = kernels::gpu::find_gpu();
  const auto workspace = [&](int64_t chunk) {
    return footprint(model_of(keys), DType::kBF16, calls_of_decoder(8192, chunk), 1,
                     ComputeDevice::gpu(gpu))
        .workspace_bytes;
  };
  // 32 parts of the keys, each with a result of 64 queries in fp32.
  const int64_t bytes = 32 * kernels::gpu::kFewQueries * 64 * (128 + 1) * 4;
  EXPECT_GT(workspace(kernels::gpu::kFewQueries), bytes);
  EXPECT_GE(workspace(100), workspace(kernels::gpu::kFewQueries));
}

// Products in bf16 round at other places than on the CPU.
TEST(GpuScores, InBf16AreNearThoseOfTheCpu) {
  for (const char* name : {"hf_llama", "hf_qwen3"}) {
    const GoldenModel golden(name);
    const std::vector<int32_t> ids = golden.ids();
    const Calls calls = calls_of_score(int64_t(ids.size()));
    const auto on_gpu = golden.load(calls, DType::kBF16);
    const double want = golden.expected.at("loss");
    const Scores got = score(on_gpu->ctx, on_gpu->allocator, on_gpu->model, ids);
    EXPECT_NEAR(got.loss, want, 1e-2 * want) << name;
  }
}

TEST(GpuPerplexity, IsThatOfTheCpu) {
  const GoldenModel golden("hf_small");
  const auto files = memory_files();
  Outputs outputs(*files, {"text.bin", "text.idx"}, {});
  data::IndexedWriter writer(outputs, "text", data::TokenType::kU16);
  for (const int64_t length : {31, 5, 40, 13}) writer.add(drawn_ids(length, length));
  writer.seal();
  outputs.publish();
  Log silent([](std::string_view) {});
  const auto evaluate = [&](Runtime& runtime) {
    return perplexity(runtime.ctx, runtime.allocator, runtime.model, "model",
                      data::open_source(*files, "text", 20, Packing::kConcat, 128, "--data"),
                      Counting::kDocumentsApart, 3, 0, silent);
  };
  const Calls calls{.max_positions = 20, .max_call = 60};
  const Perplexity got = evaluate(*golden.load(calls)), want = evaluate(*golden.load_on_cpu(calls));
  EXPECT_EQ(got.num_targets, want.num_targets);
  EXPECT_NEAR(got.loss, want.loss, 1e-5 * want.loss);
}

TEST(GpuMemory, ThatDoesNotSufficeIsRefusedWithTheTable) {
  GoldenModel golden("hf_llama");
  const Calls calls = calls_of_decoder(30, 4);
  DeviceSpec gpu = golden.gpu;
  gpu.reserved_bytes = 1000;
  gpu.memory_bytes = golden.planned(calls).memory.total.peak_bytes + gpu.reserved_bytes;
  const auto load = [&] { Runtime(*golden.files, golden.source, DType::kF32, calls, 1, gpu); };
  load();
  --gpu.memory_bytes;
  const std::string message = message_of(ErrorKind::kMemory, load);
  EXPECT_NE(message.find("the model with room for 30 tokens takes"), std::string::npos) << message;
  EXPECT_NE(message.find("ask for fewer tokens, or choose --device cpu"), std::string::npos);
  EXPECT_NE(message.find("\ncache  "), std::string::npos) << message;
}

TEST(GpuFlags, AreRefusedForWhatGpusDoNotDo) {
  const GoldenModel llama("hf_llama"), next("hf_qwen3_next");
  std::vector<std::string> lines;
  Log log([&](std::string_view line) { lines.emplace_back(line); });
  const auto refusal = [&](ErrorKind kind, const GoldenModel& model, const char* dtype,
                           const Calls& calls) {
    return message_of(kind, [&] {
      choose_computing({.device = "gpu", .dtype = dtype}, model.source.spec, calls, log);
    });
  };
  Calls calls = calls_of_decoder(30, 4);
  EXPECT_EQ(refusal(ErrorKind::kConfig, llama, "fp64", calls),
            "--device is gpu, but --dtype is fp64, which GPUs do not compute here; choose --device "
            "cpu");
  const std::string linear = refusal(ErrorKind::kDevice, next, "fp32", calls);
  EXPECT_NE(linear.find("has no GPU path yet; the CPU has one; or choose --device cpu"),
            std::string::npos)
      << linear;
  EXPECT_FALSE(choose_computing({}, next.source.spec, calls, log).gpu);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("--device is auto: the CPU, for "), std::string::npos) << lines[0];
  calls.int8_weights = true;
  EXPECT_NE(refusal(ErrorKind::kDevice, llama, "fp32", calls).find("round_to_int8"),
            std::string::npos);
}

TEST(GpuFlags, ChooseTheGpuAndItsType) {
  const GoldenModel golden("hf_llama");
  const Calls calls = calls_of_score(8);
  Log silent([](std::string_view) {});
  const auto chosen = [&](const char* device, const char* dtype) {
    return choose_computing({.device = device, .dtype = dtype}, golden.source.spec, calls, silent);
  };
  for (const char* device : {"auto", "gpu"}) {
    EXPECT_TRUE(chosen(device, "auto").gpu);
    EXPECT_EQ(chosen(device, "auto").compute, DType::kBF16);
    EXPECT_EQ(chosen(device, "fp32").compute, DType::kF32);
  }
  EXPECT_FALSE(chosen("cpu", "auto").gpu);
  EXPECT_FALSE(chosen("auto", "fp64").gpu);
}

}  // namespace
}  // namespace ashlar::eval
