#include "ashlar/core/lines.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace ashlar {
namespace {

std::string numbered(std::string_view text) {
  std::string all;
  for_each_line(text, [&](std::string_view line, int64_t number) {
    all += fmt::format("{}[{}]", number, line);
  });
  return all;
}

TEST(Lines, EndAtLineFeedsAndAtTheEnd) {
  EXPECT_EQ(numbered(""), "");
  EXPECT_EQ(numbered("a\nb"), "1[a]2[b]");
  EXPECT_EQ(numbered("a\nb\n"), "1[a]2[b]");
  EXPECT_EQ(numbered("\n\r\n\nc"), "1[]2[\r]3[]4[c]");
}

}  // namespace
}  // namespace ashlar
