#include "ashlar/data/json_row.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace ashlar::data {
namespace {

JsonRow row_of(std::string_view line) {
  JsonRow row;
  row.text = "of the row before";
  read_json_row(line, "text", row);
  return row;
}

struct RowCase {
  std::string line;
  JsonKind kind, member;
  std::string text = "";
};

// Kinds and texts are those that Python's json.loads gives.
TEST(JsonRow, ReadsOneMember) {
  using enum JsonKind;
  for (const RowCase& c : std::vector<RowCase>{
           {R"({"text": "a"})", kObject, kString, "a"},
           {" \t{ \"text\" : \"a\" } \r", kObject, kString, "a"},
           {R"({"text":""})", kObject, kString, ""},
           {R"({"text": "a", "text": "b"})", kObject, kString, "b"},
           {R"({"text": "a", "text": null})", kObject, kNull},
           {R"({"text": null, "text": "b"})", kObject, kString, "b"},
           {R"({"te\u0078t": "a"})", kObject, kString, "a"},
           {R"({"Text": "a"})", kObject, kAbsent},
           {R"({})", kObject, kAbsent},
           {R"({"text": 5})", kObject, kNumber},
           {R"({"text": -0.5e+3})", kObject, kNumber},
           {R"({"text": NaN})", kObject, kNumber},
           {R"({"text": ["a"]})", kObject, kArray},
           {R"({"text": {"text": "a"}})", kObject, kObject},
           {R"({"text": true})", kObject, kBoolean},
           {R"({"x": [[], {}, [{}], {"a": [1, {"b": "]}"}]}], "text": "a"})", kObject, kString,
            "a"},
           {R"({"text": "\"\\\/\b\f\n\r\t\u00e9\u20AC\u0000"})", kObject, kString,
            std::string("\"\\/\b\f\n\r\t\xC3\xA9\xE2\x82\xAC\0", 14)},
           {R"([1])", kArray, kAbsent},
           {R"("text")", kString, kAbsent},
           {R"(null)", kNull, kAbsent},
           {R"(-Infinity)", kNumber, kAbsent},
       }) {
    const JsonRow row = row_of(c.line);
    EXPECT_EQ(row.kind, c.kind) << c.line;
    EXPECT_EQ(row.member, c.member) << c.line;
    EXPECT_EQ(row.text, c.text) << c.line;
  }
}

struct Bad {
  std::string line;
  size_t at;
  bool cut;
};

TEST(JsonRow, RefusesWhatIsBroken) {
  for (const Bad& c : std::vector<Bad>{
           {"", 0, true},
           {"{", 1, true},
           {R"({"text")", 7, true},
           {R"({"text": "a)", 11, true},
           {R"({"text": "a\)", 12, true},
           {R"({"text": "\u00e)", 15, true},
           {R"({"text": "a",})", 13, false},
           {R"({"text": "a"}})", 13, false},
           {R"({"text": "a"}{"text": "b"})", 13, false},
           {R"({"text": "a"} x)", 14, false},
           {R"({'text': 'a'})", 1, false},
           {R"({text: "a"})", 1, false},
           {R"({"text" "a"})", 8, false},
           {R"({"text": "a" "b": 1})", 13, false},
           {R"({"text": "a\x"})", 12, false},
           {R"({"text": "\u00g0"})", 14, false},
           {"{\"text\": \"a\tb\"}", 11, false},
           {std::string("{\"text\": \"a\0b\"}", 15), 11, false},
           {R"({"x": [1,], "text": "a"})", 9, false},
           {R"({"x": [1 2], "text": "a"})", 9, false},
           {R"({"x": [1}, "text": "a"})", 8, false},
           {R"({"x": {"a"}, "text": "a"})", 10, false},
           {R"({"x": 01})", 7, false},
           {R"({"x": 1.})", 8, false},
           {R"({"x": .5})", 6, false},
           {R"({"x": +1})", 6, false},
           {R"({"x": 1e})", 8, false},
           {R"({"x": nan})", 7, false},
           {R"({"x": Inf})", 9, false},
           {R"({"x": True})", 6, false},
           {R"({"x": undefined})", 6, false},
           {R"(// {"text": "a"})", 0, false},
       }) {
    const JsonRow row = row_of(c.line);
    EXPECT_EQ(row.kind, JsonKind::kAbsent) << c.line;
    EXPECT_EQ(row.error_at, c.at) << c.line;
    EXPECT_EQ(row.cut, c.cut) << c.line;
    EXPECT_FALSE(row.expected.empty()) << c.line;
  }
}

// Rows with a byte changed, removed or put twice are valid for both or for neither.
TEST(JsonRow, AgreesWithAnotherParser) {
  const std::string rows[] = {
      R"({"text": "a \"b\" \\ \u00e9", "id": -12.5e-3, "x": [1, [], {"y": null}], "z": true})",
      R"([{"a": {"b": {"c": [false, 0, 1e5]}}}, "text", {}])"};
  const std::string bytes = "{}[]\",:\\/0123456789.-+eEtrufalsn \x01xT";
  std::mt19937 random(1);
  int64_t valid = 0;
  for (int i = 0; i < 40'000; ++i) {
    std::string row = rows[i % 2];
    for (int changes = 1 + i % 3; changes > 0; --changes) {
      const size_t at = random() % row.size();
      const char c = bytes[random() % bytes.size()];
      if (random() % 3 == 0)
        row[at] = c;
      else if (random() % 2 == 0)
        row.erase(at, 1);
      else
        row.insert(at, 1, random() % 2 ? c : row[at]);
    }
    const bool accepted = nlohmann::json::accept(row);
    valid += accepted;
    ASSERT_EQ(row_of(row).kind != JsonKind::kAbsent, accepted) << row;
    if (accepted && nlohmann::json::parse(row).contains("text")) {
      const auto text = nlohmann::json::parse(row)["text"];
      if (text.is_string()) {
        ASSERT_EQ(row_of(row).text, text.get<std::string>()) << row;
      }
    }
  }
  EXPECT_GT(valid, 4'000);
}

TEST(JsonRow, Keys) {
  EXPECT_EQ(keys_of_row(R"({"a": {"b": 1}, "c\n": 2, "d": 3})", 2),
            (std::vector<std::string>{"a", "c\n"}));
  EXPECT_TRUE(keys_of_row("{}", 2).empty());
}

}  // namespace
}  // namespace ashlar::data
