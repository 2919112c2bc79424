#include "ashlar/machine/kernel_table.h"

#include <gtest/gtest.h>

#include <span>

#include "ashlar/core/checksum.h"
#include "tests/support/errors.h"

namespace ashlar::machine {
namespace {

const std::string kTable =
    "op\tdtype\tgroups\trows\tcols\tdepth\tflop\tbytes\tranks\tp10_us\tmedian_us\tp90_us\tn\n"
    "linear_forward\tBF16\t1\t512\t256\t64\t16777216\t400000\t2\t10.500\t11.000\t13.250\t44\n"
    "add\tF32\t1\t512\t256\t0\t131072\t1572864\t2\t5.000\t6.000\t7.000\t12\n";

KernelTableFile file_of(const std::string& text) {
  return {"machine.kernels.tsv", xxh3_64(std::as_bytes(std::span(text)))};
}

TEST(KernelTableFile, ReadsWhatBenchKernelsWrites) {
  const auto calls = parse_kernel_table(kTable, file_of(kTable), "machine.kernels.tsv");
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].op, "linear_forward");
  EXPECT_EQ(calls[0].cols, 256);
  EXPECT_EQ(calls[0].flop, 16777216);
  EXPECT_EQ(calls[0].p90_us, 13.25);
  EXPECT_EQ(calls[0].calls, 44);
  EXPECT_EQ(calls[1].dtype, "F32");
}

TEST(KernelTableFile, RefusesAChangedOneAndADamagedOne) {
  const auto message = [](const std::string& text, const KernelTableFile& file) {
    return testing_support::message_of(ErrorKind::kData,
                                       [&] { parse_kernel_table(text, file, "k.tsv"); });
  };
  std::string changed = kTable;
  changed.replace(changed.find("11.000"), 6, "01.000");
  const std::string not_its = message(changed, file_of(kTable));
  EXPECT_NE(not_its.find("k.tsv: not the table that the profile names"), std::string::npos);
  EXPECT_NE(not_its.find("ashlar bench kernels RECIPE --profile FILE"), std::string::npos);
  for (const auto& [from, to] : {std::pair("44", "44\t1"), std::pair("16777216", "-1"),
                                 std::pair("512", "many"), std::pair("5.000", "nan")}) {
    std::string damaged = kTable;
    damaged.replace(damaged.find(from), std::string(from).size(), to);
    EXPECT_NE(message(damaged, file_of(damaged)).find("expected 13 columns"), std::string::npos)
        << to;
  }
  EXPECT_NE(message("op\n", file_of("op\n")).find("other columns"), std::string::npos);
}

}  // namespace
}  // namespace ashlar::machine
