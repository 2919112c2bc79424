#include "ashlar/core/fields.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/support/errors.h"

namespace ashlar {
namespace {

const Json kObject = Json::parse(R"({
  "count": 7, "negative": -1, "large": 18446744073709551615, "number": 1.5, "flag": true, "text": "x",
  "hex": "00ff", "list": [1, 2], "hexes": ["00ff", "0001"], "mixed": [1, "00ff", -2],
  "object": {"inner": 3}, "zero\u0000key": 4})");

std::string error_of_fields(const std::function<void(const Fields&)>& read,
                            ErrorKind kind = ErrorKind::kCorrupt) {
  return testing_support::message_of(kind, [&] { read(Fields(kObject, "f.json", kind)); });
}

TEST(Fields, GivesMembersOfTheirTypes) {
  const Fields fields(kObject, "f.json");
  EXPECT_TRUE(fields.has("count"));
  EXPECT_FALSE(fields.has("other"));
  EXPECT_EQ(fields.count("count"), 7);
  EXPECT_EQ(fields.integer("negative", -1, 5), -1);
  EXPECT_EQ(fields.number("number"), 1.5);
  EXPECT_EQ(fields.number("count"), 7.0);
  EXPECT_TRUE(fields.boolean("flag"));
  EXPECT_EQ(fields.text("text"), "x");
  EXPECT_EQ(fields.hex("hex", 4), 255u);
  EXPECT_EQ(fields.counts("list"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(fields.hexes("hexes", 4), (std::vector<uint64_t>{255, 1}));
  EXPECT_EQ(fields.object("object").count("inner"), 3);
  EXPECT_EQ(fields.count(std::string_view("zero\0key", 8)), 4);
}

TEST(Fields, NamesPlaceKeyAndWhatWasExpected) {
  const std::pair<std::function<void(const Fields&)>, std::string> cases[] = {
      {[](const Fields& f) { f.at("other"); }, "key 'other' is missing"},
      {[](const Fields& f) { f.count("negative"); },
       "negative is -1; expected an integer from 0 to 2^63-1"},
      {[](const Fields& f) { f.count("large"); },
       "large is 18446744073709551615; expected an integer from 0 to 2^63-1"},
      {[](const Fields& f) { f.count("number"); },
       "number is 1.5; expected an integer from 0 to 2^63-1"},
      {[](const Fields& f) { f.integer("count", 1, 6); },
       "count is 7; expected an integer from 1 to 6"},
      {[](const Fields& f) { f.number("text"); }, "text is \"x\"; expected a number"},
      {[](const Fields& f) { f.boolean("count"); }, "count is 7; expected true or false"},
      {[](const Fields& f) { f.text("count"); }, "count is 7; expected a string"},
      {[](const Fields& f) { f.hex("hex", 6); },
       "hex is \"00ff\"; expected 6 lower-case hex digits"},
      {[](const Fields& f) { f.hex("count", 1); }, "count is 7; expected 1 lower-case hex digits"},
      {[](const Fields& f) { f.array("object"); }, "object is {\"inner\":3}; expected a list"},
      {[](const Fields& f) { f.counts("mixed"); },
       "mixed holds \"00ff\"; expected an integer from 0 to 2^63-1"},
      {[](const Fields& f) { f.hexes("mixed", 4); },
       "mixed holds 1; expected 4 lower-case hex digits"},
      {[](const Fields& f) { f.object("list"); }, "list: found [1,2]; expected an object"},
      {[](const Fields& f) { f.object("object").count("outer"); },
       "object: key 'outer' is missing"},
      {[](const Fields& f) {
         f.object("object").only({"a", "b"});
       },
       "object: unknown key 'inner'; expected a, b"},
  };
  for (const auto& [read, message] : cases)
    for (const ErrorKind kind : {ErrorKind::kCorrupt, ErrorKind::kData})
      EXPECT_EQ(error_of_fields(read, kind), "f.json: " + message);
}

TEST(Fields, ShowsALongValueShortly) {
  EXPECT_EQ(shown(Json(std::string(58, 'x'))), '"' + std::string(58, 'x') + '"');
  EXPECT_EQ(shown(Json(std::string(59, 'x'))), '"' + std::string(56, 'x') + "...");
  EXPECT_EQ(shown(Json("\u00e9\n")), "\"\\u00e9\\n\"");
}

}  // namespace
}  // namespace ashlar
