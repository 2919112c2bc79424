#include "ashlar/core/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/errors.h"

namespace ashlar {
namespace {

std::string error_of_json(std::string_view text) {
  return testing_support::message_of(ErrorKind::kCorrupt,
                                     [&] { parse_json(text, "some.json", ErrorKind::kCorrupt); });
}

bool starts_with(const std::string& text, std::string_view start) {
  return text.starts_with(start) || (ADD_FAILURE() << text, false);
}

TEST(ParseJson, EqualsTheLibrary) {
  for (const std::string text :
       {R"({"a": [1, -2, 3.5, 1e3, true, false, null], "b": {"c": "d\u00e9\n", "": {}}, "e": []})",
        "0", "\"x\"", "null", "[[[], {}], 18446744073709551615, -9223372036854775808]",
        " {\n\t\"key\" : \"\xC3\xA9\xF0\x9F\x98\x80\" } \r\n",
        R"([{"a":1,"b":[2]},{"a":{"a":3}}])"})
    EXPECT_EQ(parse_json(text, "x", ErrorKind::kData), nlohmann::json::parse(text)) << text;
}

TEST(ParseJson, KeepsNumberTypes) {
  const Json value = parse_json("[1, -1, 1.0, 9007199254740993]", "x", ErrorKind::kData);
  EXPECT_TRUE(value[0].is_number_unsigned());
  EXPECT_TRUE(value[1].is_number_integer());
  EXPECT_TRUE(value[2].is_number_float());
  EXPECT_EQ(value[3].get<int64_t>(), 9007199254740993);
}

TEST(ParseJson, RefusesDuplicateKeysWithTheirPlace) {
  EXPECT_EQ(error_of_json(R"({"a": 1, "a": 2})"),
            "some.json: not valid JSON at byte 12: the key 'a' stands twice");
  EXPECT_EQ(error_of_json(R"([{"b": {"c": 1, "d": 2, "c": 3}}])"),
            "some.json: not valid JSON at byte 27: the key 'c' stands twice");
}

TEST(ParseJson, ValuesAreAtMostSoMany) {
  const auto parse = [](std::string_view text) { parse_json(text, "x", ErrorKind::kData, 4); };
  EXPECT_NO_THROW(parse("[1, {\"a\": 2}]"));
  EXPECT_EQ(testing_support::message_of(ErrorKind::kData, [&] { parse("[1, {\"a\": 2}, 3]"); }),
            "x: not valid JSON at byte 16: more than 4 values");
}

TEST(ParseJson, DepthIsAtMost32) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_NO_THROW(parse_json(nested(32), "x", ErrorKind::kData));
  EXPECT_EQ(error_of_json(nested(33)),
            "some.json: not valid JSON at byte 33: nested deeper than 32 levels");
  EXPECT_TRUE(starts_with(error_of_json(std::string(1000000, '[')),
                          "some.json: not valid JSON at byte 33"));
  std::string objects;
  for (int i = 0; i < 33; ++i) objects += "{\"a\":";
  EXPECT_TRUE(
      starts_with(error_of_json(objects), "some.json: not valid JSON at byte 161: nested deeper"));
}

TEST(ParseJson, RefusesTrailingBytes) {
  EXPECT_TRUE(starts_with(error_of_json("{} x"), "some.json: not valid JSON at byte 4: "));
  EXPECT_TRUE(starts_with(error_of_json("1 2"), "some.json: not valid JSON at byte 3: "));
  EXPECT_TRUE(starts_with(error_of_json(std::string_view("{}\0", 3)),
                          "some.json: not valid JSON at byte 3"));
}

TEST(ParseJson, RefusesInvalidUtf8) {
  EXPECT_TRUE(starts_with(error_of_json("[\"a\xFF\"]"), "some.json: not valid JSON at byte 4: "));
  for (const char* text : {"\"\xC0\xAF\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"",
                           "\"\xE2\x82\"", "\"\\ud800\"", "{\"\x80\": 1}"})
    EXPECT_TRUE(starts_with(error_of_json(text), "some.json: not valid JSON at byte "));
}

TEST(ParseJson, RefusesBrokenTextOnOneShortLine) {
  for (const std::string text :
       {"", " ", "{", "[1,]", "{\"a\"}", "{\"a\":}", "[1 2]", "nul", "01", "'a'", "NaN", "1e999",
        "\"a\nb\"", "// comment", "[1] // comment"}) {
    const std::string error = error_of_json(text);
    EXPECT_TRUE(starts_with(error, "some.json: not valid JSON at byte ")) << text;
    EXPECT_EQ(error.find('\n'), std::string::npos);
    EXPECT_EQ(error.find("json.exception"), std::string::npos);
  }
  EXPECT_LT(error_of_json("\"" + std::string(100000, 'a')).size(), 300u);
}

TEST(OneLine, ReplacesWhatIsNotUtf8) {
  const nlohmann::ordered_json json{{"path", "a\xff/b\n"}, {"n", 1.0}};
  EXPECT_EQ(one_line(json), "{\"path\":\"a\xEF\xBF\xBD/b\\n\",\"n\":1.0}");
}

}  // namespace
}  // namespace ashlar
