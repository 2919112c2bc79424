// A text that comes in pieces ends before its first stop string, however it is cut.
#include "ashlar/eval/answer_text.h"

#include <gtest/gtest.h>

#include "ashlar/core/utf8.h"

namespace ashlar::eval {
namespace {

// The text before the stop that the shortest beginning of the whole ends with; of several the
// longest.
std::string cut_whole(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops)
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(StopStrings, CutHoweverTheTextComes) {
  const std::vector<std::vector<std::string>> stops = {
      {}, {"a"}, {"ab"}, {"aab", "b"}, {"abab", "ba"}, {"aaaa"}, {"bb", "abba"}};
  // All texts of 8 letters a and b, in pieces of 1 to 3.
  for (const auto& each : stops)
    for (int bits = 0; bits < 256; ++bits) {
      std::string text;
      for (int i = 0; i < 8; ++i) text += (bits >> i & 1) != 0 ? 'a' : 'b';
      for (size_t piece = 1; piece <= 3; ++piece) {
        StopStrings cut(each);
        std::string found;
        size_t given = 0;
        for (; given < text.size() && !cut.stopped(); given += piece)
          found += cut.push(text.substr(given, piece));
        const std::string wanted = cut_whole(text, each);
        EXPECT_EQ(cut.stopped(), wanted.size() < text.size());
        EXPECT_TRUE(wanted.starts_with(found));
        found += cut.finish();
        EXPECT_EQ(found, wanted) << text << " in pieces of " << piece;
      }
    }
}

TEST(StopStrings, HoldBackNothingThatCanNotBeginOne) {
  StopStrings cut({"stone"});
  EXPECT_EQ(cut.push("a sto"), "a ");
  EXPECT_EQ(cut.push("ry"), "story");
  EXPECT_EQ(cut.push("st"), "");
  EXPECT_EQ(cut.finish(), "st");
}

TEST(AnswerText, NamesOfSpecialTokensAreTheirIds) {
  const auto tokenizer = data::byte_tokenizer();
  const std::vector<std::string> stops{"stop", "</s>", "a"};
  EXPECT_EQ(ids_of_stops(stops, *tokenizer), std::vector<int32_t>{tokenizer->eos_id()});
}

TEST(AnswerText, CharactersAreWhole) {
  const auto tokenizer = data::byte_tokenizer();
  const std::string text = "caf\u00e9 \u6f22\u5b57 stop here";
  AnswerText answer(*tokenizer, {}, {" stop"});
  const std::vector<int32_t> prompt = tokenizer->encode("unread \u00e9");
  answer.follow(prompt);
  std::string found;
  for (const int32_t id : tokenizer->encode(text)) {
    const std::string piece = answer.push(id);
    EXPECT_EQ(check_utf8(piece).num_invalid, 0);
    found += piece;
  }
  EXPECT_TRUE(answer.stopped());
  EXPECT_EQ(found + answer.finish(), "caf\u00e9 \u6f22\u5b57");
}

}  // namespace
}  // namespace ashlar::eval
