#include "ashlar/kernels/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "ashlar/core/error.h"

namespace ashlar::kernels {
namespace {

// The kernel's view of this CPU, read independently of cpuid.
bool cpuinfo_has(const std::string& flag) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;)
      if (word == flag) return true;
    return false;
  }
  return false;
}

TEST(Isa, SupportedIsasAgreeWithTheSystem) {
  const std::vector<Isa> isas = supported_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::kX86_64);
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
  const auto has = [&](Isa isa) { return std::find(isas.begin(), isas.end(), isa) != isas.end(); };
  EXPECT_EQ(has(Isa::kAvx2), cpuinfo_has("avx2") && cpuinfo_has("fma"));
  EXPECT_EQ(has(Isa::kAvx512),
            cpuinfo_has("avx512bw") && cpuinfo_has("avx512vl") && cpuinfo_has("avx512dq"));
  EXPECT_EQ(has(Isa::kAvx512Bf16), cpuinfo_has("avx512_bf16"));
  EXPECT_TRUE(!has(Isa::kAmx) || cpuinfo_has("amx_bf16"));  // the system may still refuse tiles
}

TEST(Isa, SelectIsaIsWhatRuns) {
  const Isa before = isa();
  for (const Isa wanted : supported_isas()) {
    select_isa(wanted);
    EXPECT_EQ(isa(), wanted);
  }
  select_isa(before);
}

std::string refusal(std::string_view wish) {
  try {
    choose_isa(wish);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "";
}

TEST(Isa, TheEnvironmentChoosesOrFails) {
  EXPECT_EQ(choose_isa(""), supported_isas().back());
  for (const Isa each : supported_isas()) EXPECT_EQ(choose_isa(name_of(each)), each);
  EXPECT_TRUE(refusal("avx9").starts_with(
      "ASHLAR_ISA is 'avx9', an unknown instruction set; this CPU has: x86-64"));
  EXPECT_TRUE(refusal("avx512-bf").ends_with("; did you mean 'avx512-bf16'?"));
  for (int i = 0; i <= int(Isa::kAmx); ++i) {
    const std::vector<Isa> isas = supported_isas();
    if (std::find(isas.begin(), isas.end(), Isa(i)) != isas.end()) continue;
    const std::string name(name_of(Isa(i)));
    EXPECT_TRUE(refusal(name).starts_with("ASHLAR_ISA is " + name +
                                          ", which this CPU does not have; choose one of: x86-64"));
  }
}

}  // namespace
}  // namespace ashlar::kernels
