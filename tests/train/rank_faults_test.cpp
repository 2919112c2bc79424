// A rank of a pipeline, of shared experts or of an all_to_all that fails, comes late, leaves or was
// started with another recipe, in the middle of training: every other rank ends with an error that
// names it, and nobody hangs.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/train/real_rank.h"

namespace ashlar::train {
namespace {

using namespace testing_support;

constexpr double kTimeoutS = 1.0;  // where a rank comes late
constexpr double kLongS = 60.0;    // elsewhere: an error comes long before it

struct FaultyLayout {
  std::string name;
  int num_ranks;
  Overrides keys;
};

void PrintTo(const FaultyLayout& layout, std::ostream* out) {
  *out << layout.name;
}

struct Heard {
  std::string first;               // what run_ranks rethrew
  std::vector<std::string> ranks;  // by rank; "" if it ended without an error
  double seconds = 0;
};

// On every rank a good step, then `fault` on one, then a step.  fault(num_heard): whether its rank
// goes on; num_heard counts the other ranks that have ended with an error.
template <typename Fault>
Heard run_with(const FaultyLayout& layout, int bad, double timeout_s, Fault fault,
               const Overrides& other = {}) {
  Heard heard;
  heard.ranks.resize(size_t(layout.num_ranks));
  std::atomic<int> num_heard{0};
  const auto start = std::chrono::steady_clock::now();
  Allocator allocator(Device::kCpu);
  try {
    comm::run_ranks(layout.num_ranks, {.timeout_s = timeout_s}, allocator, [&](comm::Group& ranks) {
      try {
        Overrides keys = layout.keys;
        if (ranks.rank() == bad) keys.insert(keys.end(), other.begin(), other.end());
        keys.push_back("train.precision=fp32");
        const Recipe recipe = recipe_with(keys);
        const RunPlan plan = plan_run(recipe, DType::kF32, ranks.size(), 1, ranks.rank());
        RealRank rank(recipe, DType::kF32, ranks, allocator, plan.step_memory);
        rank.step(0);
        if (ranks.rank() == bad && !fault(num_heard)) return;
        rank.step(1);
      } catch (const Error& error) {
        heard.ranks[size_t(ranks.rank())] = error.what();
        ++num_heard;
        throw;
      }
    });
  } catch (const Error& error) {
    heard.first = error.what();
  }
  heard.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return heard;
}

class RankFaults : public testing::TestWithParam<FaultyLayout> {
 protected:
  // In time: the time-out and the steps, on a machine with fewer cores than ranks.
  void expect_named(const Heard& heard, int bad, const std::string& what) {
    SCOPED_TRACE(fmt::format("{}, rank {}: {}", what, bad, heard.first));
    EXPECT_NE(heard.first, "");
    for (int rank = 0; rank < GetParam().num_ranks; ++rank) {
      if (rank == bad) continue;
      EXPECT_NE(heard.ranks[size_t(rank)].find(fmt::format("rank {}", bad)), std::string::npos)
          << "on rank " << rank << ": " << heard.ranks[size_t(rank)];
    }
    EXPECT_LT(heard.seconds, 10);
  }
  template <typename Check>
  void for_each_rank(Check check) {
    for (int bad = 0; bad < GetParam().num_ranks; ++bad) check(bad);
  }
};

TEST_P(RankFaults, ARankThatFailsIsNamed) {
  for_each_rank([&](int bad) {
    const Heard heard = run_with(GetParam(), bad, kLongS,
                                 [](auto&) -> bool { ASHLAR_FAIL(kNumeric, "loss is nan"); });
    expect_named(heard, bad, "fails");
    EXPECT_NE(heard.first.find("loss is nan"), std::string::npos) << heard.first;
  });
}

TEST_P(RankFaults, ARankThatLeavesIsNamed) {
  for_each_rank([&](int bad) {
    expect_named(run_with(GetParam(), bad, kLongS, [](auto&) { return false; }), bad, "leaves");
  });
}

// Some ranks wait for the late one, others wait for a rank that itself waits for it, as in a
// pipeline.  Whoever times out first, the error that run_ranks throws names the late rank and no
// other.  What a rank hears may be its own time-out, which names the rank that it waited for.
TEST_P(RankFaults, ARankThatComesLateIsNamed) {
  const int num_ranks = GetParam().num_ranks;
  for (int bad = 0; bad < num_ranks; ++bad) {
    // It comes when all others have given up, or after 5 s if they do not.
    const Heard heard = run_with(GetParam(), bad, kTimeoutS, [&](const auto& num_heard) {
      for (int ms = 0; ms < 5000 && num_heard < num_ranks - 1; ++ms)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return true;
    });
    SCOPED_TRACE(fmt::format("rank {}: {}", bad, heard.first));
    EXPECT_NE(heard.first.find(fmt::format(" s; not arrived: rank {}; ", bad)), std::string::npos);
    for (const std::string& said : heard.ranks)
      EXPECT_NE(said.find(" s; not arrived: rank"), std::string::npos) << said;
    EXPECT_LT(heard.seconds, 10);
  }
}

TEST_P(RankFaults, ARankWithAnotherRecipeIsNamed) {
  for_each_rank([&](int bad) {
    expect_named(
        run_with(GetParam(), bad, kLongS, [](auto&) { return true; }, {"model.hidden_size=40"}),
        bad, "has another recipe");
  });
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, RankFaults,
    testing::Values(
        FaultyLayout{"pp2_1f1b", 2, {"parallel.pp=2"}},
        FaultyLayout{"pp2_zb", 2, {"parallel.pp=2", "parallel.schedule=zb"}},
        FaultyLayout{"pp2_interleaved",
                     2,
                     {"parallel.pp=2", "parallel.schedule=interleaved", "parallel.virtual_stages=2",
                      "model.num_hidden_layers=4"}},
        FaultyLayout{"pp4_1f1b", 4, {"parallel.pp=4", "model.num_hidden_layers=4"}},
        FaultyLayout{
            "pp4_zb", 4, {"parallel.pp=4", "parallel.schedule=zb", "model.num_hidden_layers=4"}},
        FaultyLayout{"dp2_ep2", 2, {"parallel.ep=2"}},
        FaultyLayout{"dp4_ep4_zero3", 4, {"parallel.ep=4", "parallel.zero=3"}},
        FaultyLayout{"cp2_all_to_all", 2, {"parallel.cp=2", "parallel.cp_exchange=all_to_all"}},
        FaultyLayout{"cp4_all_to_all", 4, {"parallel.cp=4", "parallel.cp_exchange=all_to_all"}},
        FaultyLayout{"pp2_dp2_ep2", 4, {"parallel.pp=2", "parallel.ep=2"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ashlar::train
