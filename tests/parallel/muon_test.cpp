// Distributed Muon against one optimizer on whole parameters, bit by bit.
#include "ashlar/parallel/muon.h"

#include <map>
#include <set>

#include "ashlar/comm/recording/recording.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/optim/optimizer.h"
#include "ashlar/tensor/pieces.h"
#include "tests/optim/optim_test_util.h"
#include "tests/parallel/muon_layouts.h"
#include "tests/support/malloc_count.h"

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
      for (const Piece& piece : pieces_of({&p, p.logical, p.value}))
        expect_piece(expected, piece, where);
  });
}

class MuonLayouts : public testing::TestWithParam<size_t> {
 protected:
  MuonLayouts() : layout_(all_layouts()[GetParam()]) {}
  const Layout layout_;
};
INSTANTIATE_TEST_SUITE_P(Layouts, MuonLayouts, testing::Range<size_t>(0, all_layouts().size()),
                         [](const auto& info) { return all_layouts()[info.param].name; });

TEST_P(MuonLayouts, WeightsAndMomentaAreThoseOfWholeMatrices) {
  for (const DType compute : {DType::kF64, DType::kF32, DType::kBF16}) {
    const Expected expected(layout_, stream_of(compute), compute);
    for (const MuonMode mode : kModes) expect_same_bits(layout_, mode, compute, expected);
  }
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
      steps(1);
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
