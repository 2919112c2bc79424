// The table of layouts on ranks that are threads: the numbers of one rank, the memory and traffic
// of the dry run.
#include <gtest/gtest.h>

#include <set>

#include "ashlar/comm/thread/run_ranks.h"
#include "tests/train/parity.h"
#include "tests/train/real_rank.h"

namespace ashlar::train {

void PrintTo(const ParityCase& c, std::ostream* out) {
  *out << c.name;
}

namespace {

class Parity : public testing::TestWithParam<ParityCase> {};

TEST_P(Parity, EqualsOneRankAndItsDryRun) {
  std::vector<std::string> differences(size_t(GetParam().num_ranks));
  testing_support::on_ranks(GetParam().num_ranks, [&](comm::Group& ranks, Allocator& allocator) {
    differences[size_t(ranks.rank())] = check_parity(GetParam(), ranks, &allocator);
  });
  for (size_t rank = 0; rank < differences.size(); ++rank)
    EXPECT_EQ(differences[rank], "") << "on rank " << rank;
}

class Losses : public testing::TestWithParam<ParityCase> {};

TEST_P(Losses, StayThoseOfOneRankInFp32) {
  Allocator allocator(Device::kCpu);
  comm::run_ranks(GetParam().num_ranks, {}, allocator, [&](comm::Group& ranks) {
    EXPECT_LE(largest_loss_difference(GetParam(), ranks), kLossTolerance) << ranks.rank();
  });
}

std::vector<ParityCase> cases_that(bool (*hold)(const ParityCase&)) {
  std::vector<ParityCase> cases = parity_cases();
  std::erase_if(cases, [&](const ParityCase& c) { return !hold(c); });
  return cases;
}

// Every technique once.
bool in_losses(const ParityCase& c) {
  static const std::set<std::string> names = {"dp4_zero0_bucketed",
                                              "dp4_zero1_contiguous",
                                              "dp4_zero1_bucketed",
                                              "dp4_zero2_contiguous_uneven",
                                              "dp4_zero2_bucketed_adamw",
                                              "dp4_zero3_contiguous_windows_owner",
                                              "dp4_zero3_bucketed",
                                              "tp2",
                                              "tp2_sequence_parallel_uneven",
                                              "tp4_shared_keys",
                                              "cp2_zigzag_all_gather_adamw_zero2",
                                              "cp3_contiguous_all_gather_windows",
                                              "cp4_contiguous_ring_uneven_zero3",
                                              "cp3_zigzag_ring",
                                              "tp2_cp2_ring_sequence_parallel_zero2",
                                              "dp2_cp2_tp2_zero1",
                                              "mixtral_dp4_zero2",
                                              "shared_expert_dp2_cp2_tp2_zero3_bucketed",
                                              "dp2_cp2_tp2_bucketed_owner_uneven_zero3"};
  return names.contains(c.name);
}

std::string name_of_case(const testing::TestParamInfo<ParityCase>& info) {
  return info.param.name;
}

// The names in front choose a test's label (CMakeLists.txt).
INSTANTIATE_TEST_SUITE_P(Fast, Parity,
                         testing::ValuesIn(cases_that([](const ParityCase& c) { return c.fast; })),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Layouts, Parity,
                         testing::ValuesIn(cases_that([](const ParityCase& c) { return !c.fast; })),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Layouts, Losses, testing::ValuesIn(cases_that(in_losses)), name_of_case);

}  // namespace
}  // namespace ashlar::train
