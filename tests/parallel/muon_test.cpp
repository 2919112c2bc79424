// Distributed Muon against one optimizer on whole parameters, bit by bit.
#include "ashlar/parallel/muon.h"

#include <chrono>
#include <map>
#include <set>

#include "../optim/optim_test_util.h"
#include "../train/malloc_count.h"
#include "ashlar/comm/recording/recording.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/optim/optimizer.h"
#include "muon_layouts.h"

namespace ashlar::parallel {
namespace {

using namespace testing_support;
using ashlar::testing_support::counts_mallocs;
using ashlar::testing_support::num_mallocs;
using optim::Machine;
using optim::Optimizer;

const comm::Options kOptions{60.0, 1 << 14};
constexpr int kSteps = 3;

OptimSpec spec_of_test() {
  OptimSpec spec;
  spec.weight_decay = 0.1, spec.muon_momentum = 0.9;
  return spec;
}

// One rank's part of a layout: parameters, and who brings matrices together (null: all local).
struct Side {
  Side(Machine& machine, const Layout& layout, const std::vector<Kept>& kept, DType dtype) {
    for (const Kept& k : kept) {
      const TestTensor& t = layout.tensors[size_t(k.tensor)];
      Parameter p;
      p.logical = {t.name, dtype, t.shape};
      p.boxes = k.boxes;
      p.begin = k.begin, p.end = k.end;
      p.value = machine.zeros(dtype, {k.end - k.begin});
      p.gradient = machine.zeros(dtype, {k.end - k.begin});
      p.kind = t.muon ? OptimizerKind::kMuon : OptimizerKind::kAdamW;
      p.decay = true;
      p.num_matrices = t.num_matrices;
      if (t.muon) gradients.push_back(p.gradient);
      parameters.push_back(p);
      indices.push_back(machine.ctx.meta() ? std::vector<int64_t>() : indices_of(t.shape, k));
      fill(p.value, p.logical.name, 0, indices.back());
    }
  }
  static void fill(const Tensor& t, const std::string& name, uint64_t seed,
                   const std::vector<int64_t>& indices) {
    const Rng rng(seed, name);
    for (size_t i = 0; i < indices.size(); ++i)
      optim::set(t, int64_t(i), 2.0 * rng.uniform(uint64_t(indices[i])) - 1.0);
  }
  void run(Machine& machine, Optimizer& optimizer, int num_steps) {
    for (int step = 1; step <= num_steps; ++step) {
      for (size_t i = 0; i < parameters.size(); ++i)
        fill(parameters[i].gradient, parameters[i].logical.name, uint64_t(step), indices[i]);
      optimizer.step(machine.ctx, 0.02 * step, 0.5);
    }
  }
  std::vector<Parameter> parameters;
  std::vector<std::vector<int64_t>> indices;
  std::vector<Tensor> gradients;  // of Muon parameters
};

// Weights and state of every tensor after kSteps on one rank.
struct Expected {
  Expected(const Layout& layout, DType dtype, DType compute) {
    std::vector<Kept> whole;
    for (size_t t = 0; t < layout.tensors.size(); ++t) {
      const Shape& shape = layout.tensors[t].shape;
      whole.push_back({int64_t(t), 0, {Box::whole(shape)}, 0, shape.numel()});
    }
    Side side(machine, layout, whole, dtype);
    Optimizer optimizer(machine.allocator, side.parameters, spec_of_test(), compute);
    side.run(machine, optimizer, kSteps);
    for (const Parameter& p : side.parameters) tensors[p.logical.name] = p.value;
    for (const Piece& piece : optimizer.pieces()) {
      const Tensor copy = machine.zeros(dtype, piece.data.shape);
      std::memcpy(copy.data, piece.data.data, size_t(copy.bytes()));
      tensors[piece.logical.name] = copy;
    }
  }
  Machine machine{2};
  std::map<std::string, Tensor> tensors;
};

void expect_piece(const Expected& expected, const Piece& piece, const std::string& where) {
  const Tensor& whole = expected.tensors.at(piece.logical.name);
  const Kept kept{0, 0, {piece.box}, 0, piece.box.length.numel()};
  const std::vector<int64_t> indices = indices_of(piece.logical.global_shape, kept);
  const int64_t width = size_of(whole.dtype);
  for (size_t i = 0; i < indices.size(); ++i)
    ASSERT_EQ(std::memcmp(piece.data.data + int64_t(i) * width, whole.data + indices[i] * width,
                          size_t(width)),
              0)
        << where << ": " << piece.logical.name << "[" << indices[i] << "]";
}

DType stream_of(DType compute) {
  return compute == DType::kF64 ? DType::kF64 : DType::kF32;
}

std::unique_ptr<DistributedMatrices> make_matrices(Machine& machine, comm::Group& group,
                                                   const Layout& layout, const Side& side,
                                                   MuonMode mode, DType compute) {
  return std::make_unique<DistributedMatrices>(machine.allocator, group,
                                               layout.plan(group.rank(), mode), side.gradients,
                                               compute, int(OptimSpec{}.muon_steps));
}

void expect_same_bits(const Layout& layout, MuonMode mode, DType compute,
                      const Expected& expected) {
  Allocator staging(Device::kCpu);
  comm::run_ranks(layout.num_ranks(), kOptions, staging, [&](comm::Group& group) {
    const std::string where = fmt::format("{} mode {} compute {} rank {}", layout.name, int(mode),
                                          name_of(compute), group.rank());
    Machine machine(1 + group.rank() % 2);
    Side side(machine, layout, layout.ranks[size_t(group.rank())], stream_of(compute));
    Optimizer optimizer(machine.allocator, side.parameters, spec_of_test(), compute,
                        make_matrices(machine, group, layout, side, mode, compute));
    side.run(machine, optimizer, kSteps);
    for (const Piece& piece : optimizer.pieces()) expect_piece(expected, piece, where);
    for (const Parameter& p : side.parameters)
      for (const Piece& piece : pieces_of(p, p.logical, p.value))
        expect_piece(expected, piece, where);
  });
}

// Matrices of several sizes, tall and wide, between element-wise tensors.
std::vector<TestTensor> small_model() {
  return {{"embed", {37, 5}, 1, false},
          {"q", {24, 10}},
          {"norm", {11}, 1, false},
          {"experts.gate_up_proj", {5, 12, 9}, 5},
          {"experts.down_proj", {5, 9, 6}, 5},
          {"split_gate_up", {3, 8, 7}, 6},
          {"router", {3, 10}},
          {"wide", {6, 40}},
          {"large", {70, 150}}};
}

// Tensors cut over tp ranks by rows, columns, or rows of gate and up; what is left over dp ranks.
Layout tensor_parallel(int tp, int dp, bool copies) {
  Layout layout{fmt::format("tp{}_dp{}{}", tp, dp, copies ? "_copies" : ""),
                {{"rows", {24, 10}},
                 {"columns", {9, 26}},
                 {"experts.gate_up_proj", {4, 12, 9}, 4},
                 {"split_gate_up", {4, 12, 9}, 8},
                 {"experts.down_proj", {4, 9, 6}, 4},
                 {"everywhere", {7, 8}}},
                {}};
  const std::vector<TestTensor>& t = layout.tensors;
  for (int d = 0; d < dp; ++d)
    for (int i = 0; i < tp; ++i) {
      std::vector<Kept>& list = layout.ranks.emplace_back();
      const std::vector<std::vector<Box>> boxes = {
          slice_boxes(t[0].shape, 0, i, tp, false), slice_boxes(t[1].shape, 1, i, tp, false),
          slice_boxes(t[2].shape, 1, i, tp, true), slice_boxes(t[3].shape, 1, i, tp, true),
          slice_boxes(t[4].shape, 2, i, tp, false)};
      const int64_t total = numel_of(boxes), whole = t[5].shape.numel();
      // Copies: every dp rank keeps everything and is a cover with its tp ranks.
      if (copies)
        add_range(boxes, 0, total, d, list);
      else
        add_range(boxes, total * d / dp, total * (d + 1) / dp, 0, list);
      // The last tensor is kept by every tp rank, cut over dp: a cover per tp rank.
      list.push_back({5, i, {Box::whole(t[5].shape)}, whole * d / dp, whole * (d + 1) / dp});
    }
  return layout;
}

// Two covers that cut the same tensor in different ways.
Layout two_covers() {
  Layout layout = cut_at("two_covers", {"x", {4, 9, 6}, 4}, {0, 30, 101, 216});
  Layout other = cut_at("", layout.tensors[0], {0, 120, 121, 130, 190, 216});
  for (std::vector<Kept>& list : other.ranks) {
    for (Kept& kept : list) kept.cover = 7;
    layout.ranks.push_back(list);
  }
  layout.ranks[0].push_back(layout.ranks[3][0]);  // rank 0 takes part in both
  layout.ranks[3].clear();
  return layout;
}

// Rank 0 owns two matrices that it shares with a rank that is busy with one of its own, and then
// works on one that it alone keeps, in two places: the buffer of the first is not free yet.
Layout late_partner() {
  Layout layout{
      "late_partner", {{"a", {8, 6}}, {"b", {8, 6}}, {"c", {6, 8}}, {"busy", {100, 100}}}, {}};
  const auto boxes = whole_boxes(layout.tensors);
  const auto kept = [&](int64_t t, int64_t begin, int64_t end) {
    return Kept{t, 0, boxes[size_t(t)], begin, end};
  };
  layout.ranks = {{kept(2, 20, 48), kept(0, 0, 40), kept(1, 8, 48), kept(2, 0, 20)},
                  {kept(0, 40, 48), kept(1, 0, 8), kept(3, 0, 10000)}};
  return layout;
}

std::vector<Layout> all_layouts() {
  std::vector<Layout> list;
  for (const int n : {1, 2, 3, 5, 8}) {
    list.push_back(contiguous(fmt::format("contiguous_{}", n), small_model(), n));
    list.push_back(bucketed(fmt::format("bucketed_{}", n), small_model(), n, 400));
  }
  list.push_back(cut_at("k1_of_3", {"x", {12, 10}}, {0, 0, 120, 120}));
  list.push_back(cut_at("k2_of_2", {"x", {12, 10}}, {0, 47, 120}));
  list.push_back(cut_at("k3_of_3", {"x", {10, 12}}, {0, 1, 119, 120}));
  list.push_back(cut_at("k5_of_5", {"x", {12, 10}}, {0, 24, 48, 72, 96, 120}));
  list.push_back(cut_at("k5_of_7", {"x", {10, 31}}, {0, 0, 17, 33, 200, 200, 301, 310}));
  list.push_back(cut_at("experts_5", {"x", {6, 8, 7}, 6}, {0, 75, 100, 230, 240, 336}));
  list.push_back(tensor_parallel(2, 1, false));
  list.push_back(tensor_parallel(3, 2, false));
  list.push_back(tensor_parallel(2, 3, false));
  list.push_back(tensor_parallel(2, 2, true));
  list.push_back(two_covers());
  list.push_back(late_partner());
  return list;
}

class MuonLayouts : public testing::TestWithParam<size_t> {
 protected:
  MuonLayouts() : layout_(all_layouts()[GetParam()]) {}
  const Layout layout_;
};
INSTANTIATE_TEST_SUITE_P(Layouts, MuonLayouts, testing::Range<size_t>(0, all_layouts().size()),
                         [](const auto& info) { return all_layouts()[info.param].name; });

constexpr MuonMode kModes[] = {MuonMode::kAuto, MuonMode::kReplicate, MuonMode::kOwner};

TEST_P(MuonLayouts, WeightsAndMomentaAreThoseOfWholeMatrices) {
  for (const DType compute : {DType::kF64, DType::kF32, DType::kBF16}) {
    const Expected expected(layout_, stream_of(compute), compute);
    for (const MuonMode mode : kModes) expect_same_bits(layout_, mode, compute, expected);
  }
}

// Elements of every rank in every (tensor, cover, matrix), counted one by one.
using Shares = std::map<std::tuple<int64_t, int, int64_t>, std::map<int, int64_t>>;
Shares shares_of(const Layout& layout) {
  Shares shares;
  for (int rank = 0; rank < layout.num_ranks(); ++rank)
    for (const Kept& kept : layout.ranks[size_t(rank)]) {
      const TestTensor& t = layout.tensors[size_t(kept.tensor)];
      if (!t.muon) continue;
      const int64_t numel = t.shape.numel() / t.num_matrices;
      for (const int64_t index : indices_of(t.shape, kept))
        ++shares[{layout.muon_number(kept.tensor), kept.cover, index / numel}][rank];
    }
  return shares;
}

using Key = std::tuple<int64_t, int, int64_t>;
Key key_of(const MuonMatrix& m) {
  return {m.tensor, m.cover, m.index};
}

// The table of muon.h for one step of one rank: rows "muon gather", "muon scatter".
std::vector<comm::TrafficRow> traffic_formula(const Shares& shares, const MuonPlan& plan,
                                              int64_t width) {
  comm::TrafficRow gather{comm::Op::kSendReceive, "muon gather"},
      scatter{comm::Op::kSendReceive, "muon scatter"};
  std::set<int> gather_rounds, scatter_rounds;
  for (const MuonMatrix& m : plan.matrices) {
    const std::map<int, int64_t>& holders = shares.at(key_of(m));
    int64_t S = 0;
    for (const auto& [rank, elements] : holders) S += elements * width;
    const int64_t p = holders.at(plan.rank) * width, k = int64_t(holders.size());
    EXPECT_EQ(m.num_holders, k);
    if (k == 1) continue;
    gather_rounds.insert(m.round);
    if (m.owner >= 0) scatter_rounds.insert(m.round);
    if (m.owner < 0) {
      gather.sent_bytes += (k - 1) * p;
      gather.received_bytes += S - p;
    } else if (m.owner == plan.rank) {
      gather.received_bytes += S - p;
      scatter.sent_bytes += S - p;
    } else {
      gather.sent_bytes += p;
      scatter.received_bytes += p;
    }
  }
  gather.launches = int64_t(gather_rounds.size());
  scatter.launches = int64_t(scatter_rounds.size());
  std::vector<comm::TrafficRow> rows;
  if (gather.launches > 0) rows.push_back(gather);
  if (scatter.launches > 0) rows.push_back(scatter);
  return rows;
}

void expect_traffic(const Layout& layout, MuonMode mode, const Shares& shares, int rank,
                    int num_steps, const std::vector<comm::TrafficRow>& rows) {
  std::vector<comm::TrafficRow> want = traffic_formula(shares, layout.plan(rank, mode), 4);
  for (comm::TrafficRow& row : want) {
    row.launches *= num_steps;
    row.sent_bytes *= num_steps;
    row.received_bytes *= num_steps;
  }
  EXPECT_EQ(rows, want) << layout.name << " mode " << int(mode) << " rank " << rank;
}

// As the allocator counts: in lines of 64.
int64_t lines(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Bytes of the two buffers: the largest matrix worked on in even rounds, and in odd ones.
int64_t buffer_bytes(const MuonPlan& plan) {
  int64_t largest[2] = {0, 0};
  for (const MuonMatrix& m : plan.matrices)
    if (m.owner < 0 || m.owner == plan.rank)
      largest[m.round % 2] = std::max(largest[m.round % 2], m.matrix.rows * m.matrix.cols * 4);
  return lines(largest[0]) + lines(largest[1]);
}

struct Counted {
  std::vector<comm::TrafficRow> traffic;
  int64_t communication_bytes = 0, allocations_in_steps = 0;
};

Counted count_steps(Machine& machine, comm::Group& group, const Layout& layout, MuonMode mode) {
  Side side(machine, layout, layout.ranks[size_t(group.rank())], DType::kF32);
  Optimizer optimizer(machine.allocator, side.parameters, spec_of_test(), DType::kF32,
                      make_matrices(machine, group, layout, side, mode, DType::kF32));
  const int64_t before = machine.allocator.counts().num_allocations;
  for (int step = 0; step < 2; ++step) optimizer.step(machine.ctx, 0.01, 1.0);
  const MemoryCounts memory = machine.allocator.counts();
  return {group.traffic(), memory.tags[size_t(Tag::kCommunication)].peak_bytes,
          memory.num_allocations - before};
}

TEST_P(MuonLayouts, TrafficAndMemoryAreTheFormulasOnMetaToo) {
  const Shares shares = shares_of(layout_);
  for (const MuonMode mode : kModes) {
    std::vector<Counted> real(size_t(layout_.num_ranks()));
    Allocator staging(Device::kCpu);
    comm::run_ranks(layout_.num_ranks(), kOptions, staging, [&](comm::Group& group) {
      Machine machine(1);
      real[size_t(group.rank())] = count_steps(machine, group, layout_, mode);
    });
    for (int rank = 0; rank < layout_.num_ranks(); ++rank) {
      const Counted& counted = real[size_t(rank)];
      expect_traffic(layout_, mode, shares, rank, 2, counted.traffic);
      EXPECT_EQ(counted.communication_bytes, buffer_bytes(layout_.plan(rank, mode)));
      EXPECT_EQ(counted.allocations_in_steps, 0);
      Allocator meta(Device::kMeta);
      comm::RecordingWorld recording(rank, layout_.num_ranks(), kOptions, meta);
      Machine machine(1, Device::kMeta);
      const Counted dry = count_steps(machine, recording.group(), layout_, mode);
      EXPECT_EQ(dry.traffic, counted.traffic);
      EXPECT_EQ(dry.communication_bytes, counted.communication_bytes);
    }
  }
}

// What every rank plans alone fits together, and follows the rules of muon_plan.h.
TEST_P(MuonLayouts, PlansOfAllRanksAgree) {
  const Shares shares = shares_of(layout_);
  for (const MuonMode mode : kModes) {
    std::map<Key, std::pair<int, int>> chosen;  // owner, round
    std::map<Key, int> seen;
    std::set<std::pair<int, int>> busy;  // rank, round
    for (int rank = 0; rank < layout_.num_ranks(); ++rank) {
      const MuonPlan plan = layout_.plan(rank, mode);
      for (const MuonMatrix& m : plan.matrices) {
        const auto at = chosen.emplace(key_of(m), std::pair(m.owner, m.round)).first;
        EXPECT_EQ(at->second, std::pair(m.owner, m.round));
        ++seen[key_of(m)];
        if (m.is_worker(rank)) {
          EXPECT_TRUE(busy.emplace(rank, m.round).second) << "two matrices in a round";
        }
        const auto& holders = shares.at(key_of(m));
        const bool owned = holders.size() > 1 && (mode == MuonMode::kOwner ||
                                                  (mode == MuonMode::kAuto && holders.size() > 3));
        EXPECT_EQ(m.owner >= 0, owned);
        if (!owned) continue;
        for (const auto& [r, elements] : holders) EXPECT_LE(elements, holders.at(m.owner));
      }
    }
    for (const auto& [key, holders] : shares) {
      if (holders.size() > 1) {
        EXPECT_EQ(seen[key], int(holders.size()));
      }
    }
  }
}

// Elements of one matrix on 5 ranks with 7 and 6, in 4 matrices: the tie goes round.
TEST(MuonPlan, EqualHoldersTakeTurnsAsOwners) {
  Layout layout{"", {{"x", {8, 5}, 4}}, {}};  // matrices of 10 elements
  layout.ranks.resize(5);
  for (int64_t m = 0; m < 4; ++m)
    for (int64_t r = 0; r < 5; ++r)
      layout.ranks[size_t(r)].push_back(
          {0, 0, {Box::whole({8, 5})}, 10 * m + 2 * r, 10 * m + 2 * r + 2});
  const MuonPlan plan = layout.plan(4, MuonMode::kAuto);
  ASSERT_EQ(plan.matrices.size(), 4u);
  for (int m = 0; m < 4; ++m) {
    EXPECT_EQ(plan.matrices[size_t(m)].owner, m);
    EXPECT_EQ(plan.matrices[size_t(m)].round, 0);
    EXPECT_EQ(plan.matrices[size_t(m)].segments.size(), 1u);  // its own alone
  }
}

TEST(MuonPlan, WorkOnWholeMatricesDecidesATie) {
  // Rank 0 has a whole matrix besides; ranks 1, 2, 3 and 0 share the other evenly.
  Layout layout{"", {{"whole", {4, 4}}, {"x", {4, 4}}}, {}};
  for (int64_t r = 0; r < 4; ++r)
    layout.ranks.push_back({{1, 0, {Box::whole({4, 4})}, 4 * r, 4 * r + 4}});
  layout.ranks[0].push_back({0, 0, {Box::whole({4, 4})}, 0, 16});
  EXPECT_EQ(layout.plan(3, MuonMode::kAuto).matrices.at(0).owner, 1);
  layout.ranks[0].pop_back();
  layout.ranks[2].push_back({0, 0, {Box::whole({4, 4})}, 0, 16});
  EXPECT_EQ(layout.plan(3, MuonMode::kAuto).matrices.at(0).owner, 0);
}

// Neighbours share the matrix at each edge: everybody works on both of its own in two rounds.
TEST(MuonPlan, EdgesOfContiguousShardsTakeTwoRounds) {
  const Layout layout = contiguous("", {{"x", {61, 6, 5}, 61}}, 7);  // 262 elements each
  for (int rank = 0; rank < 7; ++rank) {
    const MuonPlan plan = layout.plan(rank, MuonMode::kAuto);
    ASSERT_EQ(plan.stacks.size(), 1u);
    EXPECT_GE(plan.stacks[0].num_matrices, 7);
    EXPECT_EQ(plan.matrices.size(), rank == 0 || rank == 6 ? 1u : 2u);
    for (const MuonMatrix& m : plan.matrices) {
      EXPECT_LT(m.round, 2);
      EXPECT_FALSE(m.packed);
    }
  }
}

TEST(MuonPlan, WholeMatricesSideBySideAreOneStack) {
  const Layout layout = cut_at("", {"x", {6, 4, 5}, 6}, {0, 47, 120});
  const MuonPlan plan = layout.plan(1, MuonMode::kAuto);
  ASSERT_EQ(plan.stacks.size(), 1u);
  EXPECT_EQ(plan.stacks[0].begin, 13);
  EXPECT_EQ(plan.stacks[0].num_matrices, 3);
}

// ZAYA1-8B's matrices over 1,024 ranks: 40 blocks, 16 experts.
std::vector<TestTensor> zaya1_8b() {
  std::vector<TestTensor> list;
  for (int l = 0; l < 40; ++l) {
    list.push_back({"q", {1024, 2048}});
    list.push_back({"k", {256, 2048}});
    list.push_back({"v", {256, 2048}});
    list.push_back({"o", {2048, 1024}});
    list.push_back({"down", {256, 2048}});
    list.push_back({"fc1", {256, 256}});
    list.push_back({"fc2", {256, 256}});
    list.push_back({"gate_up", {16, 4096, 2048}, 16});
    list.push_back({"down", {16, 2048, 2048}, 16});
  }
  return list;
}

TEST(MuonPlan, PlansTheReferenceRunQuickly) {
  const std::vector<Layout> layouts = {contiguous("contiguous", zaya1_8b(), 1024),
                                       bucketed("bucketed", zaya1_8b(), 1024, int64_t{8} << 20)};
  for (const Layout& layout : layouts) {
    const auto start = std::chrono::steady_clock::now();
    const MuonPlan plan = layout.plan(511, MuonMode::kAuto);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    size_t segments = 0;
    int64_t rounds = 0, worked = 0;
    for (const MuonMatrix& m : plan.matrices) {
      segments += m.segments.size();
      rounds = std::max<int64_t>(rounds, m.round + 1);
      worked += m.is_worker(511);
    }
    const size_t kept = plan.matrices.size() * sizeof(MuonMatrix) + segments * sizeof(MuonSegment);
    fmt::print("{}: {:.3f} s, {} matrices in {} rounds, {} worked on, {} segments, {} KiB\n",
               layout.name, seconds, plan.matrices.size(), rounds, worked, segments, kept >> 10);
    EXPECT_LT(seconds, 10.0);  // an algorithm of the wrong order takes minutes
    EXPECT_LT(kept, size_t{4} << 20);
    EXPECT_LE(worked, 4);
  }
}

// At most two of the largest matrix, however many matrices and rounds there are.
TEST(Muon, BuffersAreAtMostTwoOfTheLargestMatrix) {
  const Layout layout = bucketed("", {{"x", {40, 6, 5}, 40}}, 4, 200);
  Allocator staging(Device::kCpu);
  comm::run_ranks(4, kOptions, staging, [&](comm::Group& group) {
    for (const MuonMode mode : kModes) {
      Machine machine(1);
      EXPECT_LE(count_steps(machine, group, layout, mode).communication_bytes,
                2 * lines(6 * 5 * 4));
      int64_t last_round = 0;
      for (const MuonMatrix& m : layout.plan(group.rank(), mode).matrices)
        last_round = std::max<int64_t>(last_round, m.round);
      EXPECT_GE(last_round, 3);
    }
  });
}

TEST(Muon, StepsAllocateNothing) {
  if (!counts_mallocs()) GTEST_SKIP() << "a sanitizer owns the allocator";
  for (const Layout& layout : {contiguous("", small_model(), 3), tensor_parallel(2, 2, false)}) {
    int64_t during = -1;
    Allocator staging(Device::kCpu);
    comm::run_ranks(layout.num_ranks(), kOptions, staging, [&](comm::Group& group) {
      Machine machine(1);
      Side side(machine, layout, layout.ranks[size_t(group.rank())], DType::kF32);
      Optimizer optimizer(
          machine.allocator, side.parameters, spec_of_test(), DType::kF32,
          make_matrices(machine, group, layout, side, MuonMode::kOwner, DType::kF32));
      const auto steps = [&](int count) {
        for (int step = 0; step < count; ++step) optimizer.step(machine.ctx, 0.01, 1.0);
        group.barrier("steps").wait();
      };
      for (int i = 0; i < 64; ++i) steps(4);  // every slot of the queue holds every operation
      const int64_t before = num_mallocs();
      group.barrier("steps").wait();
      steps(4);
      if (group.rank() == 0) during = num_mallocs() - before;
      group.barrier("steps").wait();
    });
    EXPECT_EQ(during, 0);
  }
}

}  // namespace
}  // namespace ashlar::parallel
