#include "ashlar/core/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace ashlar {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

std::string encoded(uint32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800)
    return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
  if (code < 0x10000)
    return {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
            static_cast<char>(0x80 | (code & 63))};
  return {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 63)),
          static_cast<char>(0x80 | (code >> 6 & 63)), static_cast<char>(0x80 | (code & 63))};
}

TEST(Utf8, EveryCodePointButTheSurrogatesIsValid) {
  for (uint32_t code = 0; code < 0x110000; ++code) {
    const bool surrogate = code >= 0xD800 && code < 0xE000;
    ASSERT_EQ(check_utf8(encoded(code)).num_invalid == 0, !surrogate) << code;
  }
  EXPECT_EQ(check_utf8(encoded(0x110000)).first_invalid, 0);
}

TEST(Utf8, PrefixesOfACharacterAreIncomplete) {
  for (const uint32_t code : {0x80u, 0x7FFu, 0x800u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    const std::string text = "ab" + encoded(code);
    EXPECT_EQ(complete_utf8(text), text.size());
    for (size_t size = 3; size < text.size(); ++size)
      EXPECT_EQ(complete_utf8(text.substr(0, size)), 2u) << code << " cut to " << size;
  }
  EXPECT_EQ(complete_utf8("ab\xFF"), 3u) << "it can never become valid";
  EXPECT_EQ(complete_utf8("\x80\x80\x80\x80"), 4u);
  EXPECT_EQ(complete_utf8(""), 0u);
}

TEST(Utf8, ReplacesMaximalSubparts) {
  // Examples of the Unicode standard, chapter 3, "U+FFFD Substitution of Maximal Subparts".
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            kBad + kBad + kBad + kBad + kBad + kBad + kBad + kBad + "A");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            kBad + kBad + kBad + kBad + kBad + kBad + kBad + kBad + "A");
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"),
            kBad + kBad + kBad + kBad + "A");
  const std::string good = "plain, na\xC3\xAFve, \xE6\xBC\xA2, \xF0\x9F\xA7\xB1";
  EXPECT_EQ(replace_invalid_utf8(good), good);
}

TEST(Utf8, ReadsAndWritesEveryCharacter) {
  std::string all, written;
  int64_t count = 0;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    const std::string one = encoded(code);
    const CodePoint forward = code_point_at(one + "x", 0),
                    back = code_point_before("x" + one, one.size() + 1);
    ASSERT_TRUE(forward.value == code && forward.length == one.size()) << code;
    ASSERT_TRUE(back.value == code && back.length == one.size()) << code;
    all += one;
    append_code_point(written, code);
    ++count;
  }
  EXPECT_TRUE(written == all);
  EXPECT_EQ(num_characters(all), count);
}

TEST(Utf8, ReportsTheFirstPlaceInLongText) {
  std::string text(1000, 'x');
  text[777] = '\xE9';
  text[990] = '\xFF';
  const Utf8Report report = check_utf8(text);
  EXPECT_EQ(report.num_invalid, 2);
  EXPECT_EQ(report.first_invalid, 777);
}

}  // namespace
}  // namespace ashlar
