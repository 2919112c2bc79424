// Losses over windows of a text, each way of counting, against numbers of another program.
#include <gtest/gtest.h>

#include "ashlar/eval/input.h"
#include "ashlar/eval/perplexity.h"
#include "tests/support/errors.h"

namespace ashlar::eval {
namespace {

using testing_support::message_of;

// Five documents, 85 tokens: lengths that end within windows and at their borders.
std::vector<std::vector<int32_t>> documents() {
  std::vector<std::vector<int32_t>> all;
  for (const int32_t length : {31, 1, 5, 30, 13}) {
    std::vector<int32_t>& document = all.emplace_back();
    const auto d = static_cast<int32_t>(all.size()) - 1;
    for (int32_t i = 0; i < length; ++i) document.push_back(3 + (7 * d + 5 * i + i * i) % 117);
    document.push_back(1);
  }
  return all;
}

struct WindowCase {
  int64_t length, samples;
  double one_sequence, documents_apart;
};

// transformers 5.24.0 in fp32 on tests/fixtures/hf_llama.  One sequence: windows of `length` + 1
// tokens that share one, the last of what is left.  Apart: each piece of a document in a window by
// itself, with the first token of the next document as its last target.
constexpr WindowCase kCases[] = {{16, 6, 5.4509266, 5.4096714},
                                 {32, 3, 5.4017104, 5.3841502},
                                 {80, 2, 5.3913500, 5.4787379},
                                 {200, 1, 5.3003878, 5.3798103}};

TEST(Windows, AreCountedAsAnotherProgramDoes) {
  const auto disk = posix_files(), files = memory_files();
  {
    Outputs outputs(*files, {"text.bin", "text.idx"}, {});
    data::IndexedWriter writer(outputs, "text", data::TokenType::kU16);
    for (const auto& document : documents()) writer.add(document);
    writer.seal();
    outputs.publish();
  }
  Log log([](std::string_view) {});
  const auto source = find_model(*disk, std::string(ASHLAR_FIXTURES) + "/hf_llama", log);
  Runtime runtime(*disk, source, DType::kF32, {.max_positions = 84, .max_call = 168}, 1);
  for (const WindowCase& c : kCases)
    for (const Counting counting : {Counting::kOneSequence, Counting::kDocumentsApart}) {
      const bool apart = counting == Counting::kDocumentsApart;
      const Input input =
          open_input(*files, source,
                     {.data = "text", .length = c.length, .all = true, .validation_fraction = {}});
      const Perplexity result = perplexity(runtime.ctx, runtime.allocator, runtime.model, "model",
                                           input.source, counting, 2, 0, log);
      EXPECT_NEAR(result.loss, apart ? c.documents_apart : c.one_sequence, 2e-6) << c.length;
      EXPECT_EQ(result.num_targets, 84) << "every token but the first";
      EXPECT_EQ(result.num_samples, c.samples);
      EXPECT_EQ(result.tokens, (data::TokenRange{0, 85}));
    }
}

}  // namespace
}  // namespace ashlar::eval
