// The peak of a run: of all ranks at once, and kept.
#include "ashlar/train/peak.h"

#include <gtest/gtest.h>

#include "ashlar/kernels/peak.h"
#include "tests/train/real_rank.h"

namespace ashlar::train {
namespace {

using testing_support::on_ranks;

// Ranks that take turns on the CPUs do no more together than the CPUs do.
TEST(Peak, OfRanksThatShareCpusIsThatOfTheCpus) {
  const int num_cpus = int(std::thread::hardware_concurrency()), num_ranks = 4 * num_cpus;
  double alone = 0.0, together = 0.0;
  {
    Threads threads(1);
    const kernels::Context ctx{.threads = &threads};
    for (int i = 0; i < 50; ++i)
      alone = std::max(alone, kernels::measure_peak_flops(ctx, DType::kF32));
  }
  on_ranks(num_ranks, [&](comm::Group& ranks, Allocator&) {
    Threads threads(1);
    const kernels::Context ctx{.threads = &threads};
    const double found = measure_peak(ctx, DType::kF32, ranks, num_ranks, num_cpus);
    if (ranks.rank() == 0) together = found;
  });
  EXPECT_GT(together, 0.0);
  EXPECT_LT(together, 1.3 * alone * num_cpus);
}

TEST(Peak, IsKeptForStartsOfTheSameSetup) {
  const auto files = memory_files();
  files->make_directories("run");
  EXPECT_EQ(kept_peak(*files, "run", "a"), std::nullopt);
  keep_peak(*files, "run", "a", 3.125e11);
  EXPECT_EQ(kept_peak(*files, "run", "a"), 3.125e11);
  EXPECT_EQ(kept_peak(*files, "run", "b"), std::nullopt);
  for (const char* text :
       {"", "[]", "{\"setup\": \"a\"}", "{\"setup\": 3, \"peak_flops\": 1}",
        "{\"setup\": \"a\", \"peak_flops\": \"x\"}", "{\"setup\": \"a\", \"peak_flops\": -1}"}) {
    files->remove("run/peak.json");
    write_text(*files, "run/peak.json", text);
    EXPECT_EQ(kept_peak(*files, "run", "a"), std::nullopt) << text;
  }
}

TEST(Peak, TheSetupNamesTypeRanksAndThreads) {
  std::vector<std::string> setups(3);
  on_ranks(3, [&](comm::Group& ranks, Allocator&) {
    Threads threads(ranks.rank() == 1 ? 2 : 1);
    const kernels::Context ctx{.threads = &threads};
    setups[size_t(ranks.rank())] = peak_setup(ctx, DType::kF32, ranks);
  });
  EXPECT_EQ(setups[0], setups[1]);
  EXPECT_EQ(setups[0], setups[2]);
  EXPECT_TRUE(setups[0].starts_with("F32; 2 ranks on ")) << setups[0];
  EXPECT_NE(setups[0].find("; 1 rank on "), std::string::npos) << setups[0];
  EXPECT_TRUE(setups[0].ends_with(", 2 threads")) << setups[0];
}

}  // namespace
}  // namespace ashlar::train
