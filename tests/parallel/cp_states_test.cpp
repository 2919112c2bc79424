// States over ranks: bytes and launches are the closed formulas of docs/parallel/states.md, as
// integers, between real ranks and recorded, whatever the length and the documents; memory is
// planned; and a document that begins leaves nothing of the state before it.
#include <gtest/gtest.h>

#include "ashlar/comm/recording/recording.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::parallel {
namespace {

using namespace testing_support;
using comm::Op;
using comm::TrafficRow;

constexpr int64_t kKeys = 2, kValues = 4, kKeyDim = 6, kValueDim = 5;

struct StatesWay {
  LinearKind kind = LinearKind::kGla;
  CpLayout layout = CpLayout::kZigzag;
  StateExchange exchange = StateExchange::kAllGather;
  int num_ranks = 2;
  int64_t length = 48, rows = 2;
  DType compute = DType::kF64;
  bool recompute = false;
  bool causal = true;
};

Recipe states_recipe(const StatesWay& how) {
  ModelKeys keys = nn::tiny_spec();
  keys.num_hidden_layers = 3, keys.intermediate_size = 6;
  keys.layer_types = {LayerType::kLinearAttention, LayerType::kLinearAttention,
                      LayerType::kFullAttention};
  keys.residual = Residual::kPlain;
  keys.linear.kind = how.kind;
  keys.linear.causal = how.causal;
  keys.linear.num_key_heads = kKeys, keys.linear.num_value_heads = kValues;
  keys.linear.key_head_dim = kKeyDim, keys.linear.value_head_dim = kValueDim;
  Recipe recipe = testing_support::recipe_of(keys, how.rows, how.length);
  recipe.parallel.cp = how.num_ranks;
  recipe.parallel.cp_layout = how.layout;
  recipe.parallel.state_exchange = how.exchange;
  recipe.train.recompute = how.recompute;
  return recipe;
}

// Elements of the transitions of a head that a chunk sends.
int64_t transition_of(LinearKind kind) {
  return kind == LinearKind::kGla          ? kKeyDim
         : kind == LinearKind::kGatedDelta ? kKeyDim * kKeyDim
                                           : 0;
}

constexpr int64_t kLinearLayers = 2;

// Bytes that rank r of an all_gather moves in a step.  Neither length nor recomputation matters.
std::vector<TrafficRow> gather_formula(const StatesWay& how, int r) {
  (void)r;
  const int64_t n = how.num_ranks, e = how.compute == DType::kF64 ? 8 : 4;
  const int64_t chunks = how.rows * (how.layout == CpLayout::kZigzag ? 2 : 1);
  const int64_t state = (how.causal ? 1 : 2) * kValues * kKeyDim * kValueDim;
  const int64_t forward =
      kLinearLayers * (n - 1) * chunks * (state + kValues * transition_of(how.kind)) * e;
  const int64_t backward = kLinearLayers * (n - 1) * chunks * state * e;
  return {{Op::kAllGather, "state gradients", kLinearLayers, backward, backward},
          {Op::kAllGather, "states", kLinearLayers, forward, forward}};
}

// Sums of a rank's chains, forward and backward: a state of every row to each neighbour in the
// order of the tokens.
struct Chain {
  int64_t sent = 0, received = 0;
  bool operator==(const Chain&) const = default;
};
Chain chain_formula(const StatesWay& how, int r) {
  const int64_t e = how.compute == DType::kF64 ? 8 : 4, last = how.num_ranks - 1;
  const int64_t message = kLinearLayers * how.rows * kValues * kKeyDim * kValueDim * e;
  const int64_t up = r<last, down = r> 0;
  // Up the ranks forward and down backward; zigzag goes both ways both times.
  const int64_t times = how.layout == CpLayout::kZigzag ? 2 : 1;
  return {times * (up + down) * message, times * (up + down) * message};
}

// Each chunk sends its map 1, 2, 4, ... chunks on, as far as there are any.
Chain exclusive_scan_formula(const StatesWay& how, int r) {
  const int64_t e = how.compute == DType::kF64 ? 8 : 4, n = how.num_ranks;
  const int64_t chunks = how.layout == CpLayout::kZigzag ? 2 * n : n;
  const auto owner = [&](int64_t chunk) { return std::min(chunk, 2 * n - 1 - chunk); };
  const int64_t message =
      kLinearLayers * how.rows * kValues * (kKeyDim * kValueDim + transition_of(how.kind)) * e;
  Chain sum;
  for (int64_t distance = 1; distance < chunks; distance *= 2)
    for (int64_t a = 0; a + distance < chunks; ++a) {
      const int64_t from = owner(a), to = owner(a + distance);
      // Forward this way, backward the other way.
      if (from != to) sum.sent += message * ((from == r) + (to == r));
    }
  sum.received = sum.sent;
  return sum;
}

std::vector<TrafficRow> of_states(const RankModel& model) {
  std::vector<TrafficRow> rows;
  for (const TrafficRow& row : model.groups().cp().traffic())
    if (row.label.starts_with("state")) rows.push_back(row);
  return rows;
}

Chain of_chains(const RankModel& model) {
  Chain sum;
  for (const comm::Group* group : model.all_groups())
    for (const TrafficRow& row : group->traffic())
      if (row.label.starts_with("state") && row.op == Op::kSendReceive)
        sum.sent += row.sent_bytes, sum.received += row.received_bytes;
  return sum;
}

Batch states_documents(const StatesWay& how, const std::vector<int64_t>& lengths) {
  return batch_of(std::vector(size_t(how.rows), lengths), 11);
}

std::vector<StatesWay> all_states_ways() {
  std::vector<StatesWay> all;
  for (const auto kind : {LinearKind::kBasic, LinearKind::kLightning, LinearKind::kRetention,
                          LinearKind::kGla, LinearKind::kGatedDelta})
    for (const auto layout : {CpLayout::kContiguous, CpLayout::kZigzag})
      for (const auto exchange : {StateExchange::kAllGather, StateExchange::kChain,
                                  StateExchange::kScan, StateExchange::kExclusiveScan})
        for (const int n : {2, 3, 4})
          all.push_back({.kind = kind,
                         .layout = layout,
                         .exchange = exchange,
                         .num_ranks = n,
                         .compute = n == 3 ? DType::kF32 : DType::kF64,
                         .recompute = n == 2});
  for (const auto layout : {CpLayout::kContiguous, CpLayout::kZigzag})
    for (const int n : {2, 3})
      all.push_back(
          {.kind = LinearKind::kBasic, .layout = layout, .num_ranks = n, .causal = false});
  return all;
}

std::string describe(const StatesWay& how, int rank) {
  return fmt::format("{}{}, rank {} of {}, layout {}, exchange {}, length {}",
                     kLinearKindNames[size_t(how.kind)], how.causal ? "" : " without mask", rank,
                     how.num_ranks, int(how.layout), kStateExchangeNames[size_t(how.exchange)],
                     how.length);
}

TEST(CpStates, RealAndRecordedCountersAreTheFormulasAtAnyLength) {
  for (StatesWay how : all_states_ways())
    for (const int64_t length : {48, 96}) {
      how.length = length;
      const Recipe recipe = states_recipe(how);
      Allocator allocator(Device::kCpu);
      comm::run_ranks(how.num_ranks, {}, allocator, [&](comm::Group& ranks) {
        const auto check = [&](const RankModel& model) {
          if (how.exchange == StateExchange::kAllGather)
            EXPECT_EQ(of_states(model), gather_formula(how, ranks.rank()))
                << describe(how, ranks.rank());
          else if (how.exchange == StateExchange::kExclusiveScan)
            EXPECT_EQ(of_chains(model), exclusive_scan_formula(how, ranks.rank()))
                << describe(how, ranks.rank());
          else
            EXPECT_EQ(of_chains(model), chain_formula(how, ranks.rank()))
                << describe(how, ranks.rank());
        };
        TinyRank rank(recipe, ranks, {.compute = how.compute});
        rank.step(states_documents(how, {5, 7, length - 12}));
        check(rank.model);
        Allocator meta(Device::kMeta);
        comm::RecordingWorld world(ranks.rank(), how.num_ranks, {}, meta);
        TinyRank recorded(recipe, world.group(), {.compute = how.compute, .device = Device::kMeta});
        recorded.step(states_documents(how, {length}));
        check(recorded.model);
      });
    }
}

int64_t tagged(const TinyRank& rank, Tag tag) {
  return rank.memory().tags[size_t(tag)].peak_bytes;
}

// Memory for communication has nothing of the length; what is kept depends on a rank's tokens only.
TEST(CpStates, MemoryDependsOnTheTokensOfARankOnly) {
  const auto memory = [](int num_ranks, int64_t length, CpLayout layout) {
    StatesWay how{
        .layout = layout, .num_ranks = num_ranks, .length = length, .compute = DType::kF32};
    Recipe recipe = states_recipe(how);
    recipe.model.layer_types.assign(3, LayerType::kLinearAttention);
    Allocator meta(Device::kMeta);
    comm::RecordingWorld world(0, num_ranks, {}, meta);
    TinyRank rank(recipe, world.group(), {.compute = DType::kF32, .device = Device::kMeta});
    rank.step(states_documents(how, {length}));
    return std::array{tagged(rank, Tag::kCommunication), tagged(rank, Tag::kSaved),
                      rank.workspace_bytes()};
  };
  for (const CpLayout layout : {CpLayout::kContiguous, CpLayout::kZigzag}) {
    const auto base = memory(4, 4096, layout), longer = memory(4, 8192, layout),
               more_ranks = memory(8, 8192, layout);
    EXPECT_EQ(base[0], longer[0]);
    // The transitions of all chunks are kept, and gathered: of each rank as much again.
    const int64_t rows = 2, chunks = layout == CpLayout::kZigzag ? 2 : 1, e = 4;
    const int64_t transitions = rows * chunks * kValues * kKeyDim * e;
    const int64_t message = rows * chunks * kValues * (kKeyDim * kValueDim + kKeyDim) * e;
    EXPECT_NEAR(double(more_ranks[0] - base[0]), 4.0 * double(message), 256.0);
    EXPECT_NEAR(double(more_ranks[1] - base[1]), 3 * 4.0 * double(transitions), 3 * 256.0);
    EXPECT_EQ(more_ranks[2], base[2]);
  }
}

// A dry run of one document per row plans the memory that any documents need.
TEST(CpStates, ADryRunPlansTheMemory) {
  for (const StatesWay& how : all_states_ways()) {
    const Recipe recipe = states_recipe(how);
    Allocator allocator(Device::kCpu);
    comm::run_ranks(how.num_ranks, {}, allocator, [&](comm::Group& ranks) {
      Allocator meta(Device::kMeta);
      comm::RecordingWorld world(ranks.rank(), how.num_ranks, {}, meta);
      TinyRank plan(recipe, world.group(), {.compute = how.compute, .device = Device::kMeta});
      plan.step(states_documents(how, {how.length}));
      TinyRank rank(recipe, ranks, {.compute = how.compute});
      for (const Batch& batch :
           {states_documents(how, {5, 7, 1, 11, 24}), states_documents(how, {how.length})}) {
        rank.step(batch);
        EXPECT_LE(rank.workspace_bytes(), plan.workspace_bytes()) << describe(how, ranks.rank());
      }
      EXPECT_EQ(rank.workspace_bytes(), plan.workspace_bytes()) << describe(how, ranks.rank());
      EXPECT_EQ(tagged(rank, Tag::kCommunication), tagged(plan, Tag::kCommunication));
      EXPECT_EQ(tagged(rank, Tag::kSaved), tagged(plan, Tag::kSaved));
    });
  }
}

// All ways that go in the order of the tokens give the same bits on every rank.
TEST(CpStates, WaysInTheOrderOfTheTokensGiveTheSameBits) {
  for (const auto kind : {LinearKind::kLightning, LinearKind::kGla, LinearKind::kGatedDelta})
    for (const auto layout : {CpLayout::kContiguous, CpLayout::kZigzag}) {
      std::vector<std::vector<std::vector<Element>>> all;
      for (const auto exchange :
           {StateExchange::kAllGather, StateExchange::kChain, StateExchange::kScan}) {
        const StatesWay how{.kind = kind,
                            .layout = layout,
                            .exchange = exchange,
                            .num_ranks = 3,
                            .compute = DType::kF32};
        std::vector<std::vector<Element>> ranks_elements(3);
        Allocator allocator(Device::kCpu);
        comm::run_ranks(3, {}, allocator, [&](comm::Group& ranks) {
          TinyRank rank(states_recipe(how), ranks, {.compute = DType::kF32});
          rank.step(states_documents(how, {5, 30, 13}));
          ranks_elements[size_t(ranks.rank())] = elements_of_gradients(rank.model);
        });
        all.push_back(std::move(ranks_elements));
      }
      for (size_t way = 1; way < all.size(); ++way)
        for (size_t r = 0; r < 3; ++r) {
          ASSERT_EQ(all[way][r].size(), all[0][r].size());
          for (size_t i = 0; i < all[0][r].size(); ++i)
            ASSERT_EQ(all[way][r][i].value, all[0][r][i].value) << all[0][r][i].name;
        }
    }
}

}  // namespace
}  // namespace ashlar::parallel
