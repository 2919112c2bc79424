// The table of layouts on ranks that are threads.
#include "parity.h"

#include <gtest/gtest.h>

#include "ashlar/comm/thread/run_ranks.h"

namespace ashlar::train {

void PrintTo(const ParityCase& c, std::ostream* out) {
  *out << c.name;
}

namespace {

class Parity : public testing::TestWithParam<ParityCase> {};

TEST_P(Parity, EqualsOneRank) {
  std::vector<std::string> differences(size_t(GetParam().num_ranks));
  Allocator allocator(Device::kCpu);
  comm::run_ranks(GetParam().num_ranks, {}, allocator, [&](comm::Group& ranks) {
    differences[size_t(ranks.rank())] = check_parity(GetParam(), ranks);
  });
  for (size_t rank = 0; rank < differences.size(); ++rank)
    EXPECT_EQ(differences[rank], "") << "on rank " << rank;
}

std::string name_of_case(const testing::TestParamInfo<ParityCase>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Table, Parity, testing::ValuesIn(parity_cases()), name_of_case);

}  // namespace
}  // namespace ashlar::train
