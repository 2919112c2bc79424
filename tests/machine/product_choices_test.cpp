// The table of products beside a profile: it reads back, and says what is wrong with it.
#include "ashlar/machine/product_choices.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace ashlar::machine {
namespace {

std::vector<ProductChoice> two_choices() {
  ProductChoice a{"grouped_linear_forward",
                  "BF16",
                  "F32",
                  8,
                  2048,
                  1024,
                  256,
                  2,
                  256,
                  8,
                  "rows-first",
                  "never",
                  812.5,
                  700.25};
  ProductChoice b{"linear_backward_weight",
                  "F32",
                  "F32",
                  1,
                  2048,
                  512,
                  256,
                  2,
                  128,
                  0,
                  "rule",
                  "rule",
                  100,
                  90};
  return {a, b};
}

TEST(ProductChoices, ReadBack) {
  const std::string text = to_tsv(two_choices());
  const auto again = parse_product_choices(text, "machine.products.tsv");
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(to_tsv(again), text);
  EXPECT_EQ(again[0].order, "rows-first");
  EXPECT_EQ(again[0].form_us, 700.25);
  EXPECT_EQ(again[1].task_rows, 128);
  EXPECT_TRUE(parse_product_choices(to_tsv({}), "empty").empty());
}

TEST(ProductChoices, FaultsNameTheLine) {
  const std::string good = to_tsv(two_choices());
  const auto fault = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return ashlar::testing_support::message_of(ErrorKind::kConfig,
                                               [&] { parse_product_choices(text, "t.tsv"); });
  };
  EXPECT_EQ(fault("rows-first", "backwards"),
            "t.tsv: line 2 has 'backwards' in column 11; expected rule, rows-first, panels-first");
  EXPECT_EQ(fault("\t2048\t512", "\tmany\t512"),
            "t.tsv: line 3 has 'many' in column 5; expected a number");
  EXPECT_EQ(fault("\t2048\t512", "\t0\t512"),
            "t.tsv: line 3 has 0 in column 5; expected 1 to 2147483647");
  EXPECT_EQ(fault("\t100.000\t90.000", "\t90.000"), "t.tsv: line 3 has 13 columns; expected 14");
  EXPECT_EQ(fault("812.500", "-1"), "t.tsv: line 2 has -1 in column 13; expected a time");
  EXPECT_NE(fault("op\tdtype", "dtype\top").find("the first line does not name the columns"),
            std::string::npos);
  EXPECT_NE(fault("BF16", "BF17").find("'BF17' in column 2; expected F32, BF16"),
            std::string::npos);
  std::vector<ProductChoice> twice = two_choices();
  twice.push_back(twice[0]);
  twice.back().task_rows = 64;
  EXPECT_EQ(ashlar::testing_support::message_of(
                ErrorKind::kConfig, [&] { parse_product_choices(to_tsv(twice), "t.tsv"); }),
            "t.tsv: grouped_linear_forward of 2048 rows is there twice");
}

}  // namespace
}  // namespace ashlar::machine
