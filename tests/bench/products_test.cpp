// Rows of `bench products`: the chosen ones, and beside a peer library.
#include "ashlar/bench/products.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/errors.h"

namespace ashlar::bench {
namespace {

using testing_support::message_of;

TEST(Products, OnlyTheChosenRowsAreMeasured) {
  const ProductReport report = measure_products(1, DType::kF32, "nano qkv backward");
  ASSERT_EQ(report.rows.size(), 2u);
  EXPECT_EQ(report.rows[0].op, "backward_input");
  EXPECT_EQ(report.rows[1].op, "backward_weight");
  for (const ProductRow& row : report.rows) {
    EXPECT_GT(row.time.min_s, 0) << row.op;
    EXPECT_LE(row.time.min_s, row.time.median_s) << row.op;
    EXPECT_FALSE(row.peer) << row.op;
  }
  const auto attention = measure_products(1, DType::kF32, "nano attention forward");
  ASSERT_EQ(attention.rows.size(), 1u);
  // 4 documents, 4 heads of 64 channels, two products over 512 * 513 / 2 pairs.
  EXPECT_EQ(attention.rows[0].time.flop, 4.0 * 4 * 64 * 4 * 512 * 513 / 2);
}

TEST(Products, ATextThatNoRowHoldsIsRefused) {
  EXPECT_EQ(message_of(ErrorKind::kConfig, [] { measure_products(1, DType::kF32, "nano qkvv"); }),
            "--only is \"nano qkvv\"; no row's shape and op hold it; leave it out to see them all");
}

TEST(Products, APeerMustBeALibraryOfOneDnn) {
  const auto measure = [](const char* peer) {
    return message_of(ErrorKind::kConfig,
                      [&] { measure_products(1, DType::kF32, "nano qkv forward", peer); });
  };
  EXPECT_TRUE(measure("/nowhere/libdnnl.so")
                  .starts_with("--peer is /nowhere/libdnnl.so, which cannot be loaded: "));
  EXPECT_EQ(measure("libm.so.6"),
            "--peer is libm.so.6, which has no dnnl_version; expected a library of oneDNN");
}

TEST(Products, RowsShowThePeersRateBesideOurs) {
  ProductReport report;
  report.machine.peak_flops = 4e9;
  report.peer = "oneDNN 3.13.0";
  report.rows = {
      {"nano o", "forward", 1, 8, 8, 8, {2e6, 2e-3, 1e-3, 9}, KernelTime{2e6, 4e-3, 3e-3, 7}},
      {"nano o", "newton_schulz", 1, 0, 8, 8, {2e6, 2e-3, 1e-3, 9}}};
  const std::string text = to_text(report);
  EXPECT_NE(text.find(", beside oneDNN 3.13.0\n"), text.npos) << text;
  EXPECT_NE(text.find("      1.0    25%      0.5      2.00      3.00\n"), text.npos) << text;
  const auto json = nlohmann::json::parse(to_json_line(report));
  EXPECT_EQ(json["peer"], "oneDNN 3.13.0");
  EXPECT_EQ(json["products"][0]["peer_median_s"], 4e-3);
  EXPECT_FALSE(json["products"][1].contains("peer_median_s"));
}

}  // namespace
}  // namespace ashlar::bench
