// Peaks that the bench measures are those that the plan counts, and the plot shows them.
#include "ashlar/bench/memory.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace ashlar::bench {
namespace {

Recipe tiny_with(const std::vector<std::string>& more) {
  std::vector<std::string> overrides = {"train.precision=fp32", "train.threads=1"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", overrides);
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(MemoryBench, PeaksAreThePlans) {
  const MemoryOptions options{2, 2, {"parallel.zero=3", "parallel.cp=2 parallel.zero=1"}, {32, 64}};
  int num_told = 0;
  const auto cases = measure_memory(tiny_with, options, [&](const MemoryCase&) { ++num_told; });
  ASSERT_EQ(cases.size(), 4u);
  EXPECT_EQ(num_told, 4);
  for (const MemoryCase& c : cases) {
    EXPECT_EQ(c.counts.total.peak_bytes, c.planned_bytes) << c.layout << " " << c.sequence_length;
    EXPECT_GT(c.step.median, 0);
  }
  EXPECT_EQ(cases[1].layout, "parallel.cp=2 parallel.zero=1");
  EXPECT_EQ(cases[1].sequence_length, 32);
  EXPECT_EQ(cases[2].layout, "parallel.zero=3");
  EXPECT_EQ(cases[2].sequence_length, 64);
  EXPECT_GT(cases[2].planned_bytes, cases[0].planned_bytes);
  const std::string svg = to_svg(cases, "tiny");
  EXPECT_EQ(count(svg, "<polyline"), 2);
  EXPECT_EQ(count(svg, "<circle"), 4);
  EXPECT_EQ(count(svg, "parallel.cp=2 parallel.zero=1</text>"), 1);
}

TEST(MemoryBench, ALayoutThatCannotRunIsRefusedBeforeTheFirst) {
  int num_told = 0;
  const std::string message = testing_support::message_of(ErrorKind::kConfig, [&] {
    measure_memory(tiny_with, {2, 1, {"", "parallel.cp=3"}, {96}},
                   [&](const MemoryCase&) { ++num_told; });
  });
  EXPECT_NE(message.find("parallel.cp 3"), std::string::npos) << message;
  EXPECT_EQ(num_told, 0);
}

TEST(MemoryBench, TheFirstColumnIsAsWideAsTheLongestLayout) {
  const MemoryOptions options{2, 1, {"", std::string(60, 'x'), "parallel.zero=3"}, {}};
  const std::string head = memory_head(options);
  for (const std::string& layout : options.layouts) {
    MemoryCase c;
    c.layout = layout;
    c.sequence_length = 32;
    c.counts.total.peak_bytes = c.planned_bytes = 1 << 20;
    const std::string line = to_text(c, options);
    EXPECT_EQ(line.size(), head.size()) << line;
    EXPECT_EQ(line.find(" 32 ") + 3, head.find("length") + 6) << line;
  }
}

}  // namespace
}  // namespace ashlar::bench
