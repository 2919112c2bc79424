#include "ashlar/core/text.h"

#include <gtest/gtest.h>

namespace ashlar {
namespace {

using Names = std::vector<std::string>;

TEST(NearestName, FindsSlipsOnly) {
  const Names known = {"learning_rate", "batch_size", "seed"};
  EXPECT_EQ(nearest_name("learning_rat", known), "learning_rate");
  EXPECT_EQ(nearest_name("learnign_rate", known), "learning_rate");
  EXPECT_EQ(nearest_name("batchsize", known), "batch_size");
  EXPECT_EQ(nearest_name("sed", known), "seed");
  EXPECT_EQ(nearest_name("momentum", known), "");
  EXPECT_EQ(nearest_name("x", Names{}), "");
}

TEST(NearestName, AllowsAThirdOfTheLengthAndOne) {
  EXPECT_EQ(nearest_name("abcdef", Names{"abcxyz"}), "abcxyz");  // distance 3 of 6 / 3 + 1
  EXPECT_EQ(nearest_name("abcdef", Names{"abwxyz"}), "");        // distance 4
  EXPECT_EQ(nearest_name("abc", Names{"abd", "abc", "xbc"}), "abc");
}

TEST(Suggestion, NamesTheNearestOrAll) {
  EXPECT_EQ(suggestion("sead", Names{"seed", "steps"}), "; did you mean 'seed'?");
  EXPECT_EQ(suggestion("momentum", Names{"seed", "steps"}), "; known: seed, steps");
  EXPECT_EQ(suggestion("momentum", Names{}), "");
  const Names many(13, "aa");
  EXPECT_EQ(suggestion("momentum", many),
            "; known: aa, aa, aa, aa, aa, aa, aa, aa, aa, aa, aa, aa, ...");
}

TEST(Format, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes((1 << 20) - 1), "1.00 MiB");  // never 1024.00 KiB
  EXPECT_EQ(format_bytes(int64_t{24} << 30), "24.00 GiB");
  EXPECT_EQ(format_bytes(INT64_MAX), "8.00 EiB");
  EXPECT_EQ(format_bytes(-1536), "-1.50 KiB");
}

TEST(Format, Count) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(7), "7");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1k");
  EXPECT_EQ(format_count(999900), "1M");  // never 1000k
  EXPECT_EQ(format_count(22600000), "22.6M");
  EXPECT_EQ(format_count(8840488784), "8.84G");
  EXPECT_EQ(format_count(-1500), "-1.5k");
}

TEST(Format, Duration) {
  EXPECT_EQ(format_duration(0.0123), "0.0123 s");
  EXPECT_EQ(format_duration(4), "4 s");
  EXPECT_EQ(format_duration(59.9), "59.9 s");
  EXPECT_EQ(format_duration(59.96), "1m00s");
  EXPECT_EQ(format_duration(75.2), "1m15s");
  EXPECT_EQ(format_duration(3599.7), "1h00m");
  EXPECT_EQ(format_duration(7384), "2h03m");
  EXPECT_EQ(format_duration(100000), "1d03h");
  EXPECT_EQ(format_duration(-75.2), "-1m15s");
  EXPECT_EQ(format_duration(1e300), "1e+300 s");
}

TEST(Format, Thousands) {
  EXPECT_EQ(format_thousands(0), "0");
  EXPECT_EQ(format_thousands(999), "999");
  EXPECT_EQ(format_thousands(1000), "1,000");
  EXPECT_EQ(format_thousands(8840488784), "8,840,488,784");
  EXPECT_EQ(format_thousands(-100), "-100");
  EXPECT_EQ(format_thousands(-123456), "-123,456");
  EXPECT_EQ(format_thousands(INT64_MIN), "-9,223,372,036,854,775,808");
}

TEST(ParseHex, TakesLowerCaseDigitsOfTheGivenNumber) {
  EXPECT_EQ(parse_hex("0123456789abcdef", 16), 0x0123456789abcdefu);
  EXPECT_EQ(parse_hex("ffffffffffffffff", 16), UINT64_MAX);
  EXPECT_EQ(parse_hex("00ff", 4), 255u);
  for (const char* text : {"", "0ff", "000ff", "00FF", "0x1f", " 0ff", "+0ff", "00g0"})
    EXPECT_EQ(parse_hex(text, 4), std::nullopt) << text;
  EXPECT_EQ(parse_hex("", 0), std::nullopt);
  EXPECT_EQ(parse_hex("00000000000000001", 17), 1u);
  EXPECT_EQ(parse_hex("10000000000000000", 17), std::nullopt);  // more than 64 bits
}

TEST(Printable, NoByteIsACommandOfATerminal) {
  EXPECT_EQ(printable("a\x1b[2Jb\r\n\x7f\xc2\x9bz"), "a?[2Jb?????z");
  EXPECT_EQ(printable("two\nlines\t", NewLines::kKeep), "two\nlines?");
  // Alone, the second byte is a command in a terminal of 8-bit characters.
  EXPECT_EQ(printable("a\x9b"
                      "2J\xff"),
            "a\xEF\xBF\xBD"
            "2J\xEF\xBF\xBD");
  EXPECT_EQ(printable("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
}

TEST(Split, KeepsEmptyPieces) {
  EXPECT_EQ(split("a,b,c", ','), (Names{"a", "b", "c"}));
  EXPECT_EQ(split(",a,", ','), (Names{"", "a", ""}));
  EXPECT_EQ(split("", ','), (Names{""}));
  EXPECT_EQ(split("a.b", ','), (Names{"a.b"}));
}

}  // namespace
}  // namespace ashlar
