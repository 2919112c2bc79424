// Several prompts at once: the tokens of each are those that it has alone, on every family.
#include "ashlar/eval/slots.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include "ashlar/core/rng.h"
#include "ashlar/core/statistics.h"
#include "ashlar/eval/score.h"
#include "tests/eval/small_model.h"
#include "tests/support/errors.h"

namespace ashlar::eval {
namespace {

using testing_support::message_of;

constexpr int64_t kSlotLength = 60, kSlotChunk = 8;

struct SlotsCase {
  const char* directory;
  DType compute;
  bool int8_weights = false;
};

struct SlotsModel {
  SlotsModel(const SlotsCase& c, int64_t num_places)
      : source(find_model(*files, std::string(ASHLAR_FIXTURES) + "/" + c.directory, log)),
        runtime(*files, source, c.compute,
                {.max_positions = kSlotLength,
                 .max_call = kSlotChunk,
                 .cached = true,
                 .num_places = num_places,
                 .int8_weights = c.int8_weights},
                2) {}
  Log log{[](std::string_view) {}};
  std::unique_ptr<FileSystem> files = posix_files();
  ModelSource source;
  Runtime runtime;
};

std::vector<int32_t> slot_prompt(int64_t length, int64_t number) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i)
    ids.push_back(int32_t(splitmix64(uint64_t(100 * number + i)) % 100));
  return ids;
}

// Shorter and longer than a chunk; one token behind whole chunks.
constexpr int64_t kLengths[] = {1, 17, 3, 30, 8, 2, 25, 9, 5};

GenerateSpec slot_spec(int64_t number, double temperature) {
  return {
      .max_tokens = 1 + number * 7 % 20,
      .sampling = {.temperature = temperature, .top_k = 40, .seed = 5, .prompt = uint64_t(number)},
      .stop_ids = {7, 40}};
}

std::map<int64_t, std::vector<int32_t>> run_out(PromptSlots& slots) {
  std::map<int64_t, std::vector<int32_t>> made;
  while (slots.num_left() > 0)
    for (const auto& token : slots.step()) made[token.request].push_back(token.id);
  EXPECT_TRUE(slots.step().empty());
  return made;
}

class OfSlots : public testing::TestWithParam<SlotsCase> {};

TEST_P(OfSlots, EveryPromptGetsTheTokensThatItHasAlone) {
  for (const double temperature : {0.0, 1.0}) {
    std::vector<std::vector<int32_t>> wanted;
    SlotsModel alone(GetParam(), 1);
    for (int64_t i = 0; i < int64_t(std::size(kLengths)); ++i) {
      Decoder decoder(alone.runtime.ctx, alone.runtime.allocator, alone.runtime.model, kSlotLength,
                      kSlotChunk);
      wanted.push_back(generate(decoder, slot_prompt(kLengths[i], i), slot_spec(i, temperature),
                                [](int32_t) {}));
    }
    for (const int64_t num_slots : {1, 3, 9}) {
      SlotsModel many(GetParam(), num_slots);
      PromptSlots slots(
          many.runtime.ctx, many.runtime.allocator, many.runtime.model,
          {.num_slots = num_slots, .max_tokens = kSlotLength, .max_chunk = kSlotChunk});
      for (int64_t i = 0; i < int64_t(std::size(kLengths)); ++i)
        EXPECT_EQ(slots.submit(slot_prompt(kLengths[i], i), slot_spec(i, temperature)), i);
      const auto made = run_out(slots);
      for (size_t i = 0; i < wanted.size(); ++i)
        EXPECT_EQ(made.at(int64_t(i)), wanted[i])
            << num_slots << " slots, temperature " << temperature << ", prompt " << i;
    }
  }
}

TEST_P(OfSlots, LogitsOfATokenAreTheSameBitsBesideOthers) {
  constexpr int64_t kPlaces = 5, kSteps = 20;
  const auto next = [](int64_t place, int64_t step) {
    return int32_t(place * 31 + step * 7) % 100;
  };
  SlotsModel model(GetParam(), kPlaces);
  const auto decoder_of = [&](int64_t places) {
    return Decoder(model.runtime.ctx, model.runtime.allocator, model.runtime.model, kSlotLength,
                   kSlotChunk, places);
  };
  std::vector<std::vector<float>> wanted(kPlaces);  // of all steps
  for (int64_t p = 0; p < kPlaces; ++p) {
    Decoder alone = decoder_of(1);
    alone.feed(slot_prompt(kLengths[p], p));
    for (int64_t step = 0; step < kSteps; ++step) {
      const int32_t id = next(p, step);
      const std::span<const float> logits = alone.feed(std::span(&id, 1));
      wanted[size_t(p)].insert(wanted[size_t(p)].end(), logits.begin(), logits.end());
    }
  }
  Decoder together = decoder_of(kPlaces);
  for (int64_t p = 0; p < kPlaces; ++p) together.feed(slot_prompt(kLengths[p], p), p);
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<int32_t> ids;
    for (int64_t p = 0; p < kPlaces; ++p) ids.push_back(next(p, step));
    const std::span<const float> logits = together.feed_each(ids);
    const size_t V = logits.size() / kPlaces;
    for (size_t p = 0; p < kPlaces; ++p)
      ASSERT_EQ(std::memcmp(&wanted[p][size_t(step) * V], &logits[p * V], V * sizeof(float)), 0)
          << "step " << step << ", place " << p;
  }
}

// A sequence that is duplicated goes on as the first does, whatever place 0 reads afterwards.
TEST_P(OfSlots, ADuplicateGoesOnByItself) {
  SlotsModel model(GetParam(), 2);
  const auto logits_after = [](Decoder& decoder, int64_t place, int64_t number) {
    const std::span<const float> logits = decoder.feed(slot_prompt(11, number), place);
    return std::vector<float>(logits.begin(), logits.end());
  };
  Decoder twice(model.runtime.ctx, model.runtime.allocator, model.runtime.model, kSlotLength,
                kSlotChunk, 2);
  twice.feed(slot_prompt(9, 5), 1);
  twice.feed(slot_prompt(21, 4), 0);
  twice.duplicate(0, 1);
  const std::vector<float> first = logits_after(twice, 0, 7), second = logits_after(twice, 1, 8);
  EXPECT_EQ(twice.length(1), 32);
  for (const int64_t number : {7, 8}) {
    Decoder once(model.runtime.ctx, model.runtime.allocator, model.runtime.model, kSlotLength,
                 kSlotChunk);
    once.feed(slot_prompt(21, 4));
    EXPECT_EQ(logits_after(once, 0, number), number == 7 ? first : second);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, OfSlots,
    testing::Values(SlotsCase{"hf_small", DType::kF32}, SlotsCase{"hf_small", DType::kBF16},
                    SlotsCase{"hf_llama", DType::kF32}, SlotsCase{"hf_llama", DType::kBF16},
                    SlotsCase{"hf_qwen3", DType::kF32}, SlotsCase{"hf_qwen3", DType::kBF16},
                    SlotsCase{"hf_qwen3_moe", DType::kF32}, SlotsCase{"hf_qwen3_moe", DType::kBF16},
                    SlotsCase{"hf_mixtral", DType::kF32}, SlotsCase{"hf_mixtral", DType::kBF16},
                    SlotsCase{"hf_qwen3_next", DType::kF32},
                    SlotsCase{"hf_qwen3_next", DType::kBF16}, SlotsCase{"hf_minimax", DType::kF32},
                    SlotsCase{"hf_minimax", DType::kBF16},
                    SlotsCase{"hf_small", DType::kBF16, true},
                    SlotsCase{"hf_mixtral", DType::kF32, true},
                    SlotsCase{"hf_qwen3_next", DType::kBF16, true}),
    [](const auto& info) {
      return std::string(info.param.directory) +
             (info.param.compute == DType::kF32 ? "F32" : "BF16") +
             (info.param.int8_weights ? "Int8" : "");
    });

// The distance of the logits after a prompt from those of full weights, over the latter's norm.
double int8_error(const char* directory, DType compute, int64_t prompt) {
  std::vector<float> logits[2];
  for (const bool int8 : {false, true}) {
    SlotsModel model({directory, compute, int8}, 1);
    Decoder decoder(model.runtime.ctx, model.runtime.allocator, model.runtime.model, kSlotLength,
                    kSlotChunk);
    const std::span<const float> last = decoder.feed(slot_prompt(3, prompt));
    logits[int8].assign(last.begin(), last.end());
  }
  double error = 0, size = 0;
  for (size_t i = 0; i < logits[0].size(); ++i) {
    error += std::pow(double(logits[1][i]) - double(logits[0][i]), 2);
    size += std::pow(double(logits[0][i]), 2);
  }
  return std::sqrt(error / size);
}

// The weights of these models are random.  A router that chooses another expert moves logits by
// more, which happens in few prompts, but in most of Qwen3-Next's in bf16.
TEST(Int8Weights, GiveLogitsNearThoseOfTheFullOnes) {
  for (const std::string directory : {"hf_small", "hf_llama", "hf_mixtral", "hf_qwen3_next"})
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      std::vector<double> errors;
      for (int64_t prompt = 0; prompt < 8; ++prompt)
        errors.push_back(int8_error(directory.c_str(), compute, prompt));
      const Summary summary = summarize(errors);
      EXPECT_GT(summary.min, 0.0) << directory;
      EXPECT_LT(summary.median, directory == "hf_qwen3_next" ? 0.15 : 0.04)
          << directory << " " << name_of(compute);
    }
}

TEST(Int8Weights, AreAnOptionOfBf16AndFp32) {
  EXPECT_FALSE(parse_int8_weights("full", DType::kF64));
  EXPECT_TRUE(parse_int8_weights("int8", DType::kF32));
  EXPECT_EQ(message_of(ErrorKind::kConfig, [] { parse_int8_weights("int4", DType::kF32); }),
            "--weights is int4; expected full or int8");
  EXPECT_EQ(message_of(ErrorKind::kConfig, [] { parse_int8_weights("int8", DType::kF64); }),
            "--weights is int8 with --dtype fp64; expected auto, bf16 or fp32 with it");
}

TEST(Slots, RequestsMayComeWhileOthersRun) {
  const SlotsCase c{"hf_small", DType::kF32};
  SlotsModel model(c, 2);
  PromptSlots slots(model.runtime.ctx, model.runtime.allocator, model.runtime.model,
                    {.num_slots = 2, .max_tokens = kSlotLength, .max_chunk = kSlotChunk});
  std::map<int64_t, std::vector<int32_t>> made;
  for (int64_t i = 0; i < 6; ++i) {
    slots.submit(slot_prompt(kLengths[i], i), slot_spec(i, 1.0));
    for (const auto& token : slots.step()) made[token.request].push_back(token.id);
  }
  for (const auto& [request, ids] : run_out(slots))
    made[request].insert(made[request].end(), ids.begin(), ids.end());
  for (int64_t i = 0; i < 6; ++i) {
    Decoder decoder(model.runtime.ctx, model.runtime.allocator, model.runtime.model, kSlotLength,
                    kSlotChunk);
    EXPECT_EQ(made.at(i),
              generate(decoder, slot_prompt(kLengths[i], i), slot_spec(i, 1.0), [](int32_t) {}));
  }
}

std::vector<int32_t> made_alone(SlotsModel& model, int64_t number, const GenerateSpec& spec) {
  Decoder decoder(model.runtime.ctx, model.runtime.allocator, model.runtime.model, kSlotLength,
                  kSlotChunk);
  return generate(decoder, slot_prompt(kLengths[number], number), spec, [](int32_t) {});
}

// A prompt of four chunks takes four steps, so that answers in one step share them.
TEST(Slots, AnswersToOnePromptShareItsReading) {
  SlotsModel model({"hf_qwen3", DType::kF32}, 3);
  const std::vector<int32_t> prompt = slot_prompt(30, 1);
  const auto spec = [](uint64_t number) {
    return GenerateSpec{.max_tokens = number == 1 ? 1 : 12,
                        .sampling = {.temperature = 1.0, .seed = 5, .prompt = number}};
  };
  std::map<int64_t, std::vector<int32_t>> wanted;
  for (int64_t i = 0; i < 5; ++i) {
    SlotsModel alone({"hf_qwen3", DType::kF32}, 1);
    Decoder decoder(alone.runtime.ctx, alone.runtime.allocator, alone.runtime.model, kSlotLength,
                    kSlotChunk);
    wanted[i] = generate(decoder, prompt, spec(uint64_t(i)), [](int32_t) {});
  }
  PromptSlots slots(model.runtime.ctx, model.runtime.allocator, model.runtime.model,
                    {.num_slots = 3, .max_tokens = kSlotLength, .max_chunk = kSlotChunk});
  for (int64_t i = 0; i < 5; ++i) slots.submit(prompt, spec(uint64_t(i)));
  std::map<int64_t, std::vector<int32_t>> made;
  std::map<int64_t, int> first_step;
  for (int step = 0; slots.num_left() > 0; ++step)
    for (const auto& token : slots.step()) {
      made[token.request].push_back(token.id);
      first_step.try_emplace(token.request, step);
    }
  EXPECT_EQ(made, wanted);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(first_step[i], 3) << i;
  // The second ended with its first token: one slot is free, and the next prompt is read into it.
  EXPECT_EQ(first_step[3], 7);
  EXPECT_GT(first_step[4], 7);
}

TEST(Slots, AnswersThatShareAPromptHaveItsScores) {
  SlotsModel model({"hf_llama", DType::kF32}, 2);
  PromptSlots slots(model.runtime.ctx, model.runtime.allocator, model.runtime.model,
                    {.num_slots = 2, .max_tokens = kSlotLength, .max_chunk = kSlotChunk});
  for (const int64_t max_tokens : {int64_t{0}, int64_t{3}}) {
    std::array<TokenScores, 3> scores;
    for (size_t i = 0; i < scores.size(); ++i) {
      scores[i].of_prompt = true;
      // The last one asks for more, and its prompt is read again.
      scores[i].num_likely = i == 2 ? 2 : 1;
      slots.submit(slot_prompt(17, 3),
                   {.max_tokens = max_tokens, .sampling = {}, .scores = &scores[i]});
    }
    run_out(slots);
    for (const TokenScores& each : scores) {
      ASSERT_EQ(int64_t(each.tokens.size()), 16 + max_tokens);
      for (size_t t = 0; t < each.tokens.size(); ++t) {
        EXPECT_EQ(each.tokens[t].id, scores[2].tokens[t].id) << t;
        EXPECT_EQ(each.tokens[t].logprob, scores[2].tokens[t].logprob) << t;
        EXPECT_EQ(int64_t(each.tokens[t].likely.size()), each.num_likely) << t;
      }
    }
  }
}

// Tokens of the short prompt are counted while the long one is read: one for each of its chunks.
TEST(Slots, ALongPromptLeavesTimeForTheOthers) {
  SlotsModel model({"hf_qwen3_next", DType::kF32}, 3);
  PromptSlots slots(model.runtime.ctx, model.runtime.allocator, model.runtime.model,
                    {.num_slots = 3, .max_tokens = kSlotLength, .max_chunk = kSlotChunk});
  const GenerateSpec spec{.max_tokens = 12, .sampling = {}};
  slots.submit(slot_prompt(3, 0), spec);
  EXPECT_EQ(slots.step().size(), 1u);
  slots.submit(slot_prompt(30, 1), spec);  // four chunks
  slots.submit(slot_prompt(2, 2), spec);
  std::vector<std::vector<int64_t>> requests;  // of the tokens of each step
  while (slots.num_left() > 0) {
    auto& of_step = requests.emplace_back();
    for (const auto& token : slots.step()) of_step.push_back(token.request);
    if (requests.size() == 2) {  // the short prompt waits
      EXPECT_EQ(slots.num_live(), 2);
    }
  }
  const std::vector<std::vector<int64_t>> begin{{0}, {0}, {0}, {0, 1, 2}, {0, 1, 2}};
  ASSERT_GT(requests.size(), begin.size());
  for (size_t step = 0; step < begin.size(); ++step) EXPECT_EQ(requests[step], begin[step]) << step;
}

TEST(Slots, ShortPromptsShareAStep) {
  SlotsModel model({"hf_llama", DType::kF32}, 5);
  PromptSlots slots(model.runtime.ctx, model.runtime.allocator, model.runtime.model,
                    {.num_slots = 5, .max_tokens = kSlotLength, .max_chunk = kSlotChunk});
  for (int64_t i = 0; i < 5; ++i)
    slots.submit(slot_prompt(3, i), {.max_tokens = 9, .sampling = {}});
  for (const size_t wanted : {2u, 4u, 5u, 5u}) EXPECT_EQ(slots.step().size(), wanted);
}

// While a prompt is read, a request before it ends, one is cancelled, and then the prompt itself.
TEST(Slots, ThePromptBeingReadMovesUpAndCanBeCancelled) {
  for (const bool cancels : {false, true}) {
    SlotsModel model({"hf_qwen3_next", DType::kF32}, 3);
    const GenerateSpec spec{.max_tokens = 12, .sampling = {}},
        brief{.max_tokens = 3, .sampling = {}};
    std::map<int64_t, std::vector<int32_t>> made;
    {
      PromptSlots slots(model.runtime.ctx, model.runtime.allocator, model.runtime.model,
                        {.num_slots = 3, .max_tokens = kSlotLength, .max_chunk = kSlotChunk});
      slots.submit(slot_prompt(kLengths[2], 2), brief);
      slots.submit(slot_prompt(kLengths[0], 0), spec);
      EXPECT_EQ(slots.step().size(), 2u);
      slots.submit(slot_prompt(kLengths[3], 3), spec);  // four chunks
      slots.submit(slot_prompt(kLengths[1], 1), spec);
      slots.step();
      if (cancels) slots.cancel(2);
      slots.step();  // request 0 ends
      slots.cancel(1);
      EXPECT_EQ(slots.num_live(), 1);
      made = run_out(slots);
    }
    EXPECT_EQ(made.contains(2), !cancels);
    if (!cancels) {
      EXPECT_EQ(made[2], made_alone(model, 3, spec));
    }
    EXPECT_EQ(made[3], made_alone(model, 1, spec));
  }
}

TEST(Slots, ACancelledRequestLeavesTheOthersAsTheyAre) {
  SlotsModel model({"hf_qwen3_next", DType::kF32}, 2);
  std::map<int64_t, std::vector<int32_t>> made;
  {
    PromptSlots slots(model.runtime.ctx, model.runtime.allocator, model.runtime.model,
                      {.num_slots = 2, .max_tokens = kSlotLength, .max_chunk = kSlotChunk});
    for (int64_t i = 0; i < 5; ++i) {
      GenerateSpec spec = slot_spec(i, 1.0);
      spec.max_tokens = 12, spec.stop_ids = {};
      slots.submit(slot_prompt(kLengths[i], i), spec);
    }
    for (int step = 0; step < 3; ++step)
      for (const auto& token : slots.step()) made[token.request].push_back(token.id);
    slots.cancel(0);   // in the first slot
    slots.cancel(3);   // waits
    slots.cancel(77);  // never was
    EXPECT_EQ(slots.num_left(), 3);
    EXPECT_EQ(slots.num_live(), 1);
    for (const auto& [request, ids] : run_out(slots))
      made[request].insert(made[request].end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(made[0].size(), 3u);
  EXPECT_FALSE(made.contains(3));
  for (const int64_t i : {1, 2, 4}) {
    GenerateSpec spec = slot_spec(i, 1.0);
    spec.max_tokens = 12, spec.stop_ids = {};
    EXPECT_EQ(made.at(i), made_alone(model, i, spec)) << i;
  }
}

TEST(Slots, ARepetitionPenaltyCountsPromptAndNewTokens) {
  SlotsModel model({"hf_llama", DType::kF32}, 1);
  const GenerateSpec plain{.max_tokens = 20, .sampling = {}};
  GenerateSpec penalized = plain;
  penalized.sampling.repetition_penalty = 1e6;
  const std::vector<int32_t> ids = made_alone(model, 1, penalized);
  EXPECT_NE(ids, made_alone(model, 1, plain));
  std::vector<int32_t> all = slot_prompt(kLengths[1], 1);
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  all.insert(all.end(), ids.begin(), ids.end());
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::adjacent_find(all), all.end()) << "an id came twice";
}

// Log-probabilities of prompt and new tokens are those of a pass over the whole text.
TEST(Slots, ScoresAreThoseOfTheWholeText) {
  for (const char* directory : {"hf_small", "hf_qwen3_next"}) {
    SlotsModel model({directory, DType::kF32}, 3);
    std::vector<TokenScores> scores(4, {.num_likely = 3, .of_prompt = true});
    std::map<int64_t, std::vector<int32_t>> made;
    {
      PromptSlots slots(model.runtime.ctx, model.runtime.allocator, model.runtime.model,
                        {.num_slots = 3, .max_tokens = kSlotLength, .max_chunk = kSlotChunk});
      for (int64_t i = 0; i < 4; ++i) {
        GenerateSpec spec{
            .max_tokens = i == 2 ? 0 : 5, .sampling = {}, .scores = &scores[size_t(i)]};
        slots.submit(slot_prompt(kLengths[i + 1], i + 1), spec);
      }
      made = run_out(slots);
    }
    EXPECT_EQ(made[2], std::vector<int32_t>{-1});
    made[2].clear();
    for (int64_t i = 0; i < 4; ++i) {
      std::vector<int32_t> ids = slot_prompt(kLengths[i + 1], i + 1);
      ids.insert(ids.end(), made[i].begin(), made[i].end());
      const Scores wanted =
          score(model.runtime.ctx, model.runtime.allocator, model.runtime.model, ids);
      const std::vector<TokenScore>& found = scores[size_t(i)].tokens;
      ASSERT_EQ(found.size(), ids.size() - 1) << directory << " " << i;
      for (size_t t = 0; t < found.size(); ++t) {
        EXPECT_EQ(found[t].id, ids[t + 1]);
        EXPECT_NEAR(found[t].logprob, wanted.logprobs[t], 1e-4);
        EXPECT_EQ(found[t].is_likeliest, wanted.argmax[t] == ids[t + 1]);
        ASSERT_EQ(found[t].likely.size(), 3u);
        EXPECT_EQ(found[t].likely[0].id, wanted.argmax[t]);
        EXPECT_GE(found[t].likely[0].logprob, found[t].likely[1].logprob);
        EXPECT_GE(found[t].likely[1].logprob, found[t].likely[2].logprob);
      }
    }
  }
}

TEST(Slots, NothingIsAllocatedWhileTheyRun) {
  SlotsModel model({"hf_small", DType::kBF16}, 3);
  PromptSlots slots(model.runtime.ctx, model.runtime.allocator, model.runtime.model,
                    {.num_slots = 3, .max_tokens = kSlotLength, .max_chunk = kSlotChunk});
  const auto before = model.runtime.allocator.counts().num_allocations;
  for (int64_t i = 0; i < 6; ++i) slots.submit(slot_prompt(kLengths[i], i), slot_spec(i, 0.0));
  run_out(slots);
  EXPECT_EQ(model.runtime.allocator.counts().num_allocations, before);
}

TEST(Slots, RefuseWhatTheirCachesCannotHold) {
  SlotsModel model({"hf_small", DType::kF32}, 2);
  PromptSlots slots(model.runtime.ctx, model.runtime.allocator, model.runtime.model,
                    {.num_slots = 2, .max_tokens = 20, .max_chunk = kSlotChunk});
  slots.submit(slot_prompt(15, 0), {.max_tokens = 5, .sampling = {}});
  EXPECT_EQ(
      message_of(ErrorKind::kConfig,
                 [&] { slots.submit(slot_prompt(15, 1), {.max_tokens = 6, .sampling = {}}); }),
      "the sequence reaches 21 tokens but the cache holds 20; ask for fewer tokens");
  EXPECT_EQ(slots.num_left(), 1);
}

TEST(Footprint, OfSeveralPlacesHoldsWhatTheyTake) {
  const SlotsCase c{"hf_qwen3_next", DType::kBF16};
  SlotsModel model(c, 4);
  const Calls calls{
      .max_positions = kSlotLength, .max_call = kSlotChunk, .cached = true, .num_places = 4};
  const Footprint counted = footprint(model.source.spec, c.compute, calls, 2);
  PromptSlots slots(model.runtime.ctx, model.runtime.allocator, model.runtime.model,
                    {.num_slots = 4, .max_tokens = kSlotLength, .max_chunk = kSlotChunk});
  for (int64_t i = 0; i < 8; ++i) slots.submit(slot_prompt(kLengths[i], i), slot_spec(i, 0.0));
  run_out(slots);
  EXPECT_EQ(model.runtime.allocator.counts().total.peak_bytes, counted.memory.total.peak_bytes);
  EXPECT_LE(model.runtime.ctx.workspace->peak_bytes(), counted.workspace_bytes);
}

}  // namespace
}  // namespace ashlar::eval
