// States that enter every chunk, by every way of exchange, against a plain walk through the maps of
// all chunks: transitions of any size, documents that end nowhere or somewhere.
#include <gtest/gtest.h>

#include <cmath>

#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/core/rng.h"
#include "ashlar/parallel/cp_states.h"

namespace ashlar::parallel {
namespace {

constexpr int64_t kHeads = 2, kWalkKeyDim = 3, kWalkValueDim = 2, kRows = 2, kWalkLength = 240;
constexpr int64_t kState = kHeads * kWalkKeyDim * kWalkValueDim;

struct WalkCase {
  int64_t transition;  // elements of a head: 0, kWalkKeyDim or kWalkKeyDim^2
  CpLayout layout;
  int num_ranks;
  bool packed;  // a document starts in chunk 1 of row 0
};

CpSplit split_of(const WalkCase& c) {
  return {c.layout, c.num_ranks, kRows, kWalkLength};
}

// Maps of a chunk of a row, the same on every rank; forward and backward make other states.
double element(const char* what, bool backward, int64_t row, int64_t chunk, int64_t i) {
  const Rng rng(1, fmt::format("{} {} {} {}", what, row, chunk, backward));
  return 2 * rng.uniform(uint64_t(i)) - 1;
}
bool starts(const WalkCase& c, int64_t row, int64_t chunk) {
  return chunk == 0 || (c.packed && row == 0 && chunk == 1);
}
double transition(const WalkCase& c, int64_t row, int64_t chunk, int64_t i) {
  return starts(c, row, chunk) ? 0 : element("transition", false, row, chunk, i);
}
constexpr double kLogDecay[2][kHeads] = {{-0.01, -0.003}, {-0.02, -0.0007}};  // of two blocks

// transition state + made; backward with its transpose.
std::vector<double> through(const WalkCase& c, int64_t block, bool backward, int64_t row,
                            int64_t chunk, const std::vector<double>& state) {
  std::vector<double> next(size_t{kState});
  for (int64_t h = 0; h < kHeads; ++h)
    for (int64_t i = 0; i < kWalkKeyDim; ++i)
      for (int64_t j = 0; j < kWalkValueDim; ++j) {
        const auto at = [&](int64_t k) {
          return size_t((h * kWalkKeyDim + k) * kWalkValueDim + j);
        };
        double sum = element("made", backward, row, chunk, int64_t(at(i)));
        for (int64_t k = 0; k < kWalkKeyDim; ++k) {
          double a = 0;
          if (c.transition == kWalkKeyDim * kWalkKeyDim)
            a = transition(
                c, row, chunk,
                (h * kWalkKeyDim + (backward ? k : i)) * kWalkKeyDim + (backward ? i : k));
          else if (i == k && c.transition == kWalkKeyDim)
            a = transition(c, row, chunk, h * kWalkKeyDim + i);
          else if (i == k && !starts(c, row, chunk))
            a = std::exp(double(split_of(c).chunk_length()) * kLogDecay[block][h]);
          sum += a * state[at(k)];
        }
        next[at(i)] = sum;
      }
  return next;
}

// The state that enters a chunk.
std::vector<double> walked(const WalkCase& c, int64_t block, bool backward, int64_t row,
                           int64_t chunk) {
  std::vector<double> state(size_t{kState}, 0.0);
  const int64_t num = split_of(c).num_chunks();
  if (!backward)
    for (int64_t i = 0; i < chunk; ++i) state = through(c, block, false, row, i, state);
  else
    for (int64_t i = num - 1; i > chunk; --i) state = through(c, block, true, row, i, state);
  return state;
}

class Walk {
 public:
  Walk(const WalkCase& c, StateExchange kind, comm::Group& ranks)
      : c_(c), split_(split_of(c)), rank_(ranks.rank()), allocator_(Device::kCpu) {
    const CpStates::State state{kHeads, kWalkKeyDim, kWalkValueDim, c.transition};
    const kernels::Context ctx{.threads = &threads_};
    const CpStates::LogDecays decays = {std::span(kLogDecay[0]), std::span(kLogDecay[1])};
    states_ = CpStates::make(ctx, kind, ranks, split_, state, decays, DType::kF64, allocator_);
    workspace_ = Arena(allocator_, 1 << 16, Tag::kWorkspace);
    std::vector<Segment> rows;
    for (int64_t row = 0; row < kRows; ++row)
      rows.push_back({row * kWalkLength, kWalkLength, 0, 0});
    if (c.packed) {
      const int64_t first = split_.chunk_length() + 1;
      rows = {
          {0, first, 0, 0}, {first, kWalkLength - first, 0, 0}, {kWalkLength, kWalkLength, 0, 0}};
    }
    states_->assign(rows);
    here_ = kRows * split_.chunks_of_rank();
    made_ = take({here_, kHeads, kWalkKeyDim, kWalkValueDim});
    entering_ = take(made_.tensor.shape);
    if (c.transition == 0) return;
    Shape one{here_, kHeads, kWalkKeyDim}, all{kRows * split_.num_chunks(), kHeads, kWalkKeyDim};
    if (c.transition > kWalkKeyDim)
      one = {here_, kHeads, kWalkKeyDim, kWalkKeyDim},
      all = {all[0], kHeads, kWalkKeyDim, kWalkKeyDim};
    transition_ = take(one), transitions_ = take(all);
  }

  void expect_what_enters(int64_t block, bool backward) {
    for_chunks([&](int64_t i, int64_t row, int64_t chunk) {
      for (int64_t e = 0; e < kState; ++e)
        made_.tensor.as<double>()[i * kState + e] = element("made", backward, row, chunk, e);
      for (int64_t e = 0; e < kHeads * c_.transition; ++e)
        transition_.tensor.as<double>()[i * kHeads * c_.transition + e] =
            transition(c_, row, chunk, e);
    });
    const kernels::Context ctx{.threads = &threads_, .workspace = &workspace_};
    nn::StateMaps maps{.block = block,
                       .backward = backward,
                       .made = made_.tensor,
                       .transitions = transitions_.tensor,
                       .entering = entering_.tensor};
    if (!backward) maps.transition = transition_.tensor;
    states_->post(ctx, maps);
    states_->finish(ctx, maps);
    states_->pass_on(ctx, maps);
    states_->finish_sends();
    for_chunks([&](int64_t i, int64_t row, int64_t chunk) {
      const std::vector<double> want = walked(c_, block, backward, row, chunk);
      for (int64_t e = 0; e < kState; ++e)
        EXPECT_NEAR(entering_.tensor.as<double>()[i * kState + e], want[size_t(e)], 1e-12)
            << "chunk " << chunk << " of row " << row << " on rank " << rank_
            << (backward ? " backward" : " forward");
    });
  }

 private:
  OwnedTensor take(const Shape& shape) {
    return make_tensor(allocator_, DType::kF64, shape, Tag::kSaved);
  }
  template <typename Body>
  void for_chunks(Body body) const {
    int64_t i = 0;
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t chunk = 0; chunk < split_.num_chunks(); ++chunk)
        if (split_.owner(chunk) == rank_) body(i++, row, chunk);
  }

  const WalkCase c_;
  const CpSplit split_;
  const int rank_;
  Allocator allocator_;
  Threads threads_{1};
  Arena workspace_{Device::kMeta};
  std::unique_ptr<CpStates> states_;
  OwnedTensor made_, entering_, transition_, transitions_;
  int64_t here_ = 0;
};

TEST(CpStatesWalk, WhatEntersIsTheWalkThroughAllChunksBefore) {
  for (const StateExchange kind : {StateExchange::kAllGather, StateExchange::kChain,
                                   StateExchange::kScan, StateExchange::kExclusiveScan})
    for (const int64_t transition : {int64_t{0}, kWalkKeyDim, kWalkKeyDim * kWalkKeyDim})
      for (const CpLayout layout : {CpLayout::kContiguous, CpLayout::kZigzag})
        for (const int num_ranks : {1, 2, 3, 4, 5, 8})
          for (const bool packed : {false, true}) {
            SCOPED_TRACE(fmt::format("{}, transition {}, layout {}, {} ranks, packed {}",
                                     kStateExchangeNames[size_t(kind)], transition, int(layout),
                                     num_ranks, packed));
            const WalkCase c{transition, layout, num_ranks, packed && num_ranks > 1};
            Allocator allocator(Device::kCpu);
            comm::run_ranks(num_ranks, {}, allocator, [&](comm::Group& ranks) {
              Walk walk(c, kind, ranks);
              for (int64_t block = 0; block < 2; ++block)
                for (const bool backward : {false, true}) walk.expect_what_enters(block, backward);
            });
          }
}

}  // namespace
}  // namespace ashlar::parallel
