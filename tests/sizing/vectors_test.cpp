// Tiles and waves, conventions of MFU, Newton-Schulz and memory against published and derived
// numbers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "ashlar/sizing/block_time.h"
#include "ashlar/sizing/mfu.h"
#include "ashlar/sizing/step_time.h"
#include "ashlar/sizing/tiles.h"

namespace ashlar::sizing {
namespace {

Recipe zaya(const std::vector<std::string>& keys = {}) {
  return load_recipe(std::string(ASHLAR_FIXTURES) + "/../../recipes/zaya1-8b.toml", keys);
}

TEST(Tiles, WavesOfPublishedDevices) {
  struct Row {
    int64_t M, N;
    Tile tile;
    int64_t units, tiles, waves;
    double efficiency;
  };
  for (const Row& row :
       {Row{4096, 4096, {}, 108, 512, 5, 0.9481}, Row{4096, 4096, {}, 304, 512, 2, 0.8421},
        Row{16384, 4096, {}, 304, 2048, 7, 0.9624}, Row{19456, 4096, {}, 304, 2432, 8, 1.0},
        Row{1024, 4096, {}, 304, 128, 1, 0.4211}, Row{1024, 2048, {}, 304, 64, 1, 0.2105},
        Row{2048, 11008, {}, 132, 688, 6, 0.8687},
        Row{1920, 2304, {128, 128}, 132, 270, 3, 0.6818}}) {
    const TileFill fill = fill_of(row.M, row.N, row.units, row.tile);
    EXPECT_EQ(fill.tiles, row.tiles) << row.M << " " << row.N;
    EXPECT_EQ(fill.waves, row.waves) << row.M << " " << row.N;
    EXPECT_NEAR(fill.wave_efficiency, row.efficiency, 5e-5) << row.M << " " << row.N;
  }
}

TEST(Tiles, EdgesAndGroups) {
  EXPECT_NEAR(fill_of(1000, 1000, 1).tile_efficiency, 0.9537, 5e-5);
  EXPECT_NEAR(fill_of(128, 10922, 1, {128, 128}).tile_efficiency, 0.9922, 5e-5);
  // 16 experts of 1,024 rows in one launch, and one after the other.
  EXPECT_NEAR(fill_of(1024, 4096, 304, {}, 16).wave_efficiency, 0.9624, 5e-5);
  EXPECT_NEAR(fill_of(1024, 4096, 304).wave_efficiency, 0.4211, 5e-5);
}

TEST(MfuConventions, FlopOfATokenOfZaya1) {
  const ModelSpec model = model_of(zaya().model);
  EXPECT_NEAR(training_flop(model, 4096, Mfu::kExactCausal) * 1e-9, 8.7455, 5e-5);
  EXPECT_NEAR(training_flop(model, 32768, Mfu::kExactCausal) * 1e-9, 15.7919, 5e-5);
  EXPECT_NEAR(training_flop(model, 131072, Mfu::kExactCausal) * 1e-9, 39.9511, 5e-5);
  EXPECT_NEAR(training_flop(model, 4096, Mfu::k6N6Lds) * 1e-9, 8.7511, 5e-5);
  EXPECT_NEAR(training_flop(model, 4096, Mfu::k6N12Lds) * 1e-9, 9.7577, 5e-5);
  EXPECT_EQ(training_flop(model, 4096, Mfu::k6N), 6.0 * 1290741584);
}

TEST(NewtonSchulz, TotalsOfZaya1) {
  // An expert's first matrix and its second, per step of the iteration.
  EXPECT_NEAR(newton_schulz_flop(4096, 2048, 1, false) * 1e-9, 85.90, 5e-3);
  EXPECT_NEAR(newton_schulz_flop(4096, 2048, 1) * 1e-9, 60.13, 5e-3);
  EXPECT_NEAR(newton_schulz_flop(2048, 2048, 1, false) * 1e-9, 51.54, 5e-3);
  EXPECT_NEAR(newton_schulz_flop(2048, 2048, 1) * 1e-9, 34.36, 5e-3);
  double plain = 0, symmetric = 0;
  for (const BlockSpec& block : model_of(zaya().model).blocks)
    for (const MatrixStack& m : matrices_of(block, 2048)) {
      plain += m.count * newton_schulz_flop(m.rows, m.cols, 5, false);
      symmetric += m.count * newton_schulz_flop(m.rows, m.cols, 5);
    }
  EXPECT_NEAR(plain * 1e-12, 444.4, 0.05);
  EXPECT_NEAR(symmetric * 1e-12, 305.6, 0.05);
}

// Optimizer state, Muon on matrices and AdamW on the embedding: 72.87 GB on one rank.
TEST(MemoryTable, OptimizerStateOfZaya1) {
  const auto optimizer = [](int64_t ranks, const char* matrices) {
    const Recipe recipe = zaya({fmt::format("optim.matrices={}", matrices)});
    return step_memory(step_shape(recipe, resolve_parallel(recipe, ranks), true)).optimizer * 1e-9;
  };
  // Masters (4 bytes an element) count among the weights here, so the table's 8 and 12 are 4 and 8.
  // Grouped convolutions and vectors are AdamW's here: 4 bytes more of 13.6 M elements.
  const double masters = 4 * 8.840488784, convolutions = 4 * 0.0136;
  EXPECT_NEAR(optimizer(1, "muon") + masters - convolutions, 72.87, 0.005);
  EXPECT_NEAR(optimizer(1, "adamw") + masters, 106.09, 0.005);
  EXPECT_NEAR(optimizer(8, "muon") + (masters - convolutions) / 8, 9.109, 5e-4);
  EXPECT_NEAR(optimizer(64, "muon") + (masters - convolutions) / 64, 1.139, 5e-4);
  EXPECT_NEAR(optimizer(1024, "muon") + (masters - convolutions) / 1024, 0.0712, 5e-5);
  EXPECT_NEAR(optimizer(1024, "adamw") + masters / 1024, 0.1036, 5e-5);
}

}  // namespace
}  // namespace ashlar::sizing
