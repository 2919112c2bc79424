// Needs of a model before it runs, long prompts, and weights that are no numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ashlar/core/rng.h"
#include "ashlar/eval/generate.h"
#include "ashlar/eval/perplexity.h"
#include "ashlar/eval/score.h"
#include "ashlar/nn/init.h"
#include "tests/eval/small_model.h"
#include "tests/support/errors.h"

namespace ashlar::eval {
namespace {

using testing_support::message_of;

std::vector<int32_t> some_ids(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(int32_t(splitmix64(uint64_t(i)) % 128));
  return ids;
}

// Logits of the last token, from one pass over all.
std::vector<float> logits_of_one_pass(const SmallModel& small, DType compute,
                                      const std::vector<int32_t>& ids) {
  const auto T = int64_t(ids.size());
  Runtime runtime(*small.files, small.source, compute, {.max_positions = T, .max_call = T}, 2);
  const Scores scores = score(runtime.ctx, runtime.allocator, runtime.model, ids);
  const auto last = scores.logits.tensor.span<float>().last(128);
  return {last.begin(), last.end()};
}

TEST(LongPrompt, InChunksGivesTheLogitsOfOnePass) {
  const SmallModel small;
  for (const int64_t T : {5, 257, 3000})
    for (const auto& [compute, tolerance] :
         {std::pair{DType::kF32, 1e-4}, std::pair{DType::kBF16, 0.3}}) {
      const std::vector<int32_t> ids = some_ids(T);
      const std::vector<float> wanted = logits_of_one_pass(small, compute, ids);
      for (const int64_t chunk : {3, 100, 256, 4096}) {
        const int64_t call = std::min(chunk, T + 1);
        Runtime runtime(*small.files, small.source, compute,
                        {.max_positions = T + 1, .max_call = call, .cached = true}, 2);
        Decoder decoder(runtime.ctx, runtime.allocator, runtime.model, T + 1, chunk);
        const std::span<const float> found = decoder.feed(ids);
        for (size_t v = 0; v < 128; ++v)
          ASSERT_NEAR(found[v], wanted[v], tolerance) << T << " in " << chunk << " at " << v;
        decoder.feed(std::span(ids).first(1));
        const std::string full =
            message_of(ErrorKind::kConfig, [&] { decoder.feed(std::span(ids).first(1)); });
        EXPECT_NE(full.find("the cache holds " + std::to_string(T + 1)), std::string::npos) << full;
      }
    }
}

TEST(Runtime, MorePositionsThanTheMachineHoldsAreRefusedBeforeTheyAreTaken) {
  const SmallModel small;
  const Calls calls{.max_positions = kMaxTokens, .max_call = 256, .cached = true};
  // 4 blocks of keys and values of 2 heads of 8 channels; two tables of 4 angles: of all tokens,
  // but that two blocks slide.
  const int64_t bytes = kMaxTokens * 4 * (2 * 2 * 16 + 2 * 4);
  const int64_t total = footprint(small.source.spec, DType::kF32, calls).memory.total.peak_bytes;
  EXPECT_GT(total, bytes);
  EXPECT_LT(total, 3 * bytes) << "with keys and values packed for a call";
  if (total <= machine_memory_bytes()) GTEST_SKIP() << "a machine with memory for 2^30 tokens";
  const std::string message = message_of(
      ErrorKind::kMemory, [&] { Runtime(*small.files, small.source, DType::kF32, calls, 1); });
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_NE(message.find("model: the model with room for 1,073,741,824 tokens needs"),
            std::string::npos)
      << message;
}

TEST(Runtime, TheFirstWeightThatIsNotFiniteIsNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinite = std::numeric_limits<float>::infinity();
  for (const auto& [name, value, shown] :
       {std::tuple{"model.embed_tokens.weight", nan, "[7] is nan"},
        std::tuple{"model.layers.2.self_attn.qk_norm.temp", -infinite, "[1] is -inf"},
        std::tuple{"model.layers.3.mlp.gate.balancing_biases", nan, "[2] is nan"}}) {
    const SmallModel small(
        [&, &name = name, &value = value](const std::string& tensor, std::span<float> values) {
          if (tensor == name)
            values[tensor.ends_with("temp") ? 1 : tensor.ends_with("t") ? 7 : 2] = value;
          if (tensor == "model.norm.weight") values[0] = nan;  // visited last
        });
    for (const DType compute : {DType::kBF16, DType::kF64})
      EXPECT_EQ(message_of(ErrorKind::kNumeric,
                           [&] {
                             Runtime(*small.files, small.source, compute,
                                     {.max_positions = 4, .max_call = 4}, 1);
                           }),
                std::string("model: ") + name + shown + "; expected finite weights");
  }
}

// Embeddings are made longer than the vocabulary, and what fills them up need not be numbers.
TEST(Runtime, RowsOfAnEmbeddingThatNoTokenHasMayHoldAnything) {
  const auto load = [](const std::string& tensor, int64_t row, int64_t col, bool to_end) {
    const std::string source = std::string(ASHLAR_FIXTURES) + "/hf_llama";  // 120 rows of 32
    const auto files = posix_files();
    Log log{[](std::string_view) {}};
    const ModelSource model = find_model(*files, source, log);
    Allocator allocator(Device::kCpu);
    Threads threads(1);
    const kernels::Context ctx{.threads = &threads};
    std::vector<float> values(120 * 32, 1.0f);
    for (size_t i = size_t(row * 32 + col); i < values.size(); ++i) {
      values[i] = std::numeric_limits<float>::quiet_NaN();
      if (!to_end) break;
    }
    const LogicalTensor logical{tensor, DType::kF32, {120, 32}, Role::kParameter};
    const Piece piece{logical, Box::whole(logical.global_shape),
                      tensor_over(std::span(values)).view({120, 32})};
    const auto check = [&](int64_t num_tokens) {
      return testing_support::error_of(ErrorKind::kNumeric, [&] {
        nn::require_finite(ctx, {&piece, 1}, model.spec, "model", [&] { return num_tokens; });
      });
    };
    return std::pair(check(0), check(100));
  };
  const std::string embedding = "model.embed_tokens.weight";
  // The rows to the end hold no number, or a row that the tokenizer does not reach holds one.
  EXPECT_EQ(load(embedding, 100, 0, true), (std::pair<std::string, std::string>{}));
  EXPECT_EQ(load(embedding, 119, 0, true), (std::pair<std::string, std::string>{}));
  const auto one = load(embedding, 101, 5, false);
  EXPECT_EQ(one.first, "model: model.embed_tokens.weight[3237] is nan; expected finite weights");
  EXPECT_EQ(one.second, "");
  // A row that the tokenizer reaches.
  const auto reached = load(embedding, 99, 0, true);
  EXPECT_EQ(reached.first, "");
  EXPECT_EQ(reached.second,
            "model: model.embed_tokens.weight[3168] is nan; expected finite weights");
  // A damaged end of a row is no spare row, and the head computes with all of its rows.
  EXPECT_NE(load(embedding, 119, 31, true).first, "");
  EXPECT_NE(load("lm_head.weight", 100, 0, true).second, "");
}

TEST(Generate, StopsAfterTheEndOrTheLastToken) {
  const SmallModel small;
  const std::vector<int32_t> prompt = some_ids(5);
  const auto run = [&](const GenerateSpec& spec) {
    Runtime runtime(*small.files, small.source, DType::kF32,
                    {.max_positions = 30, .max_call = 30, .cached = true}, 1);
    Decoder decoder(runtime.ctx, runtime.allocator, runtime.model, 30);
    std::vector<int32_t> seen;
    const auto made = generate(decoder, prompt, spec, [&](int32_t id) { seen.push_back(id); });
    EXPECT_EQ(made, seen);
    // Values that the next token does not need are not computed.
    EXPECT_EQ(decoder.length(), int64_t(prompt.size() + made.size()) - 1);
    return made;
  };
  const SamplingSpec sampling{.temperature = 1, .seed = 3};
  const std::vector<int32_t> all = run({.max_tokens = 20, .sampling = sampling});
  ASSERT_EQ(all.size(), 20u);
  EXPECT_EQ(run({.max_tokens = 1, .sampling = sampling}).size(), 1u);
  const auto end = std::find(all.begin(), all.end(), all[7]);
  EXPECT_EQ(run({.max_tokens = 20, .sampling = sampling, .stop_ids = {all[7]}}),
            std::vector(all.begin(), end + 1));
  const auto first = std::find_first_of(all.begin(), all.end(), &all[5], &all[8]);
  EXPECT_EQ(run({.max_tokens = 20, .sampling = sampling, .stop_ids = {all[7], all[5], all[6]}}),
            std::vector(all.begin(), first + 1));
}

// Finite weights, but final values times embeddings pass the range of float.
TEST(Runtime, ResultsThatAreNotFiniteAreErrors) {
  const SmallModel small([](const std::string& name, std::span<float> values) {
    if (name == "model.norm.weight") std::fill(values.begin(), values.end(), 3e38f);
    if (name == "model.embed_tokens.weight")
      for (float& x : values) x *= 1e6f;
  });
  const Calls calls{.max_positions = 4, .max_call = 4, .cached = true};
  Runtime runtime(*small.files, small.source, DType::kF32, calls, 1);
  const std::vector<int32_t> ids{3, 7, 1};
  EXPECT_NE(message_of(ErrorKind::kNumeric,
                       [&] { score(runtime.ctx, runtime.allocator, runtime.model, ids); })
                .find("the logits after token 1 are not finite"),
            std::string::npos);
  Outputs outputs(*small.files, {"text.bin", "text.idx"}, {});
  data::IndexedWriter writer(outputs, "text", data::TokenType::kU16);
  writer.add(ids);
  writer.seal();
  outputs.publish();
  SmallModel silent;
  EXPECT_NE(message_of(ErrorKind::kNumeric,
                       [&] {
                         perplexity(runtime.ctx, runtime.allocator, runtime.model, "model",
                                    data::open_source(*small.files, "text", 2, Packing::kConcat,
                                                      128, "--data"),
                                    Counting::kDocumentsApart, 1, 0, silent.log);
                       })
                .find("model: the loss of sample 0 of text"),
            std::string::npos);
  Decoder decoder(runtime.ctx, runtime.allocator, runtime.model, 4);
  EXPECT_NE(message_of(ErrorKind::kNumeric, [&] { decoder.feed(ids); })
                .find("the logits after token 3 are not finite"),
            std::string::npos);
}

TEST(Ids, OutsideTheVocabularyNameTheModel) {
  const SmallModel small;
  check_ids(std::vector<int32_t>{0, 127}, small.source);
  for (const int32_t id : {-1, 128})
    EXPECT_EQ(message_of(ErrorKind::kData, [&] { check_ids(std::span(&id, 1), small.source); }),
              fmt::format("token id {} is outside the vocabulary of model; expected 0 to 127", id));
}

TEST(Positions, AWarningPastThem) {
  SmallModel small({}, [](ModelSpec& spec) { spec.max_positions = 100; });
  warn_past_positions(small.source, 100, small.log);
  EXPECT_EQ(small.lines.size(), 0u);
  warn_past_positions(small.source, 101, small.log);
  ASSERT_EQ(small.lines.size(), 1u);
  EXPECT_NE(small.lines[0].find("model is meant for 100 tokens"), std::string::npos);
}

}  // namespace
}  // namespace ashlar::eval
