// The halo alone: which values arrive where, whatever part of the delayed values a rank has.
#include <gtest/gtest.h>

#include <array>

#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/parallel/cp_halos.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::parallel {
namespace {

using kernels::Matrix;

constexpr int64_t kStride = 40;  // columns of the matrix that z and vd are part of

// Where a document crosses from one rank to the next: rows of the whole batch.
struct Crossing {
  int64_t row, position;
};
std::vector<Crossing> crossings(const CpSplit& split, const std::vector<Segment>& whole) {
  std::vector<Crossing> all;
  std::vector<Segment> local;
  for (int rank = 0; rank < split.num_ranks; ++rank) {
    take_local_segments(split, rank, whole, local);
    for (const Segment& s : local)
      if (s.position > 0) all.push_back({whole_row(split, rank, s.row), s.position});
  }
  return all;
}

double halo_value(int64_t whole, int64_t column) {
  return double(whole * 100 + column);
}
// The value of the halo that arrives at token `to`: from the token `back` before it.
double gradient_of(int64_t to, int64_t back, int64_t column) {
  return double(to * 1000 + back * 100 + column);
}

class HaloRank {
 public:
  HaloRank(comm::Group& ranks, const CpSplit& split, const nn::ExchangeNeeds& needs,
           const std::vector<Segment>& whole)
      : split_(split),
        whole_(whole),
        C_(needs.most_strips[0].cols),
        W_(needs.most_strips[1].cols),
        rank_(ranks.rank()),
        halos_(ranks, split, needs, types_.wide, allocator_) {
    std::vector<Segment> local;
    take_local_segments(split, rank_, whole, local);
    sequence_.reserve(split.local_tokens());
    sequence_.assign(local);
    halos_.assign(sequence_);
    rows_ = make(split.local_tokens(), kStride);
    const int64_t halos = sequence_.num_halos();
    halo_z_ = make(halos * 2, C_), halo_vd_ = make(halos, W_);
  }

  void check_forward() {
    for (int64_t i = 0; i < split_.local_tokens(); ++i)
      for (int64_t c = 0; c < kStride; ++c)
        at(rows_, i, c) = halo_value(whole_row(split_, rank_, i), c);
    halos_.halo_forward(ctx_, pass(), strips());
    for_each_halo([&](int64_t h, int64_t whole, int64_t position) {
      for (int64_t c = 0; c < C_; ++c) {
        EXPECT_EQ(at(halo_z_, 2 * h, c), position >= 2 ? halo_value(whole - 2, c) : 0);
        EXPECT_EQ(at(halo_z_, 2 * h + 1, c), halo_value(whole - 1, c));
      }
      for (int64_t c = 0; c < W_; ++c) EXPECT_EQ(at(halo_vd_, h, c), halo_value(whole - 1, C_ + c));
    });
  }

  void check_backward() {
    for (int64_t i = 0; i < split_.local_tokens(); ++i)
      for (int64_t c = 0; c < kStride; ++c) at(rows_, i, c) = 0.5;
    for_each_halo([&](int64_t h, int64_t whole, int64_t) {
      for (int64_t c = 0; c < C_; ++c) {
        at(halo_z_, 2 * h, c) = gradient_of(whole, 2, c);
        at(halo_z_, 2 * h + 1, c) = gradient_of(whole, 1, c);
      }
      for (int64_t c = 0; c < W_; ++c) at(halo_vd_, h, c) = gradient_of(whole, 1, C_ + c);
    });
    halos_.halo_backward(ctx_, pass(), strips());
    for (int64_t i = 0; i < split_.local_tokens(); ++i)
      for (int64_t c = 0; c < kStride; ++c)
        EXPECT_EQ(at(rows_, i, c), 0.5 + expected_gradient(whole_row(split_, rank_, i), c));
  }

 private:
  OwnedTensor make(int64_t rows, int64_t columns) {
    return make_tensor(allocator_, DType::kF64, {rows, columns}, Tag::kInput);
  }
  static double& at(const OwnedTensor& t, int64_t row, int64_t column) {
    return t.tensor.as<double>()[row * t.tensor.shape[1] + column];
  }
  // As of CCA: columns that reach back two rows, and some that reach back one.
  std::array<nn::Strip, 2> strips() const {
    const Matrix rows = Matrix::of(rows_.tensor);
    const int64_t halos = sequence_.num_halos();
    return {nn::Strip{rows.columns(0, C_), halo_z_.tensor.view({halos, 2, C_})},
            nn::Strip{rows.columns(C_, C_ + W_), halo_vd_.tensor.view({halos, 1, W_})}};
  }
  nn::Pass pass() const {
    return {.types = types_,
            .sequence = sequence_,
            .exchanges = exchanges_,
            .mode = nn::Mode::kForward,
            .block = 0,
            .slot = 0,
            .rope = {}};
  }

  template <typename Visit>
  void for_each_halo(Visit visit) const {
    int64_t h = 0;
    for (const Segment& s : sequence_.segments())
      if (s.position > 0) visit(h++, whole_row(split_, rank_, s.row), s.position);
  }
  double expected_gradient(int64_t whole, int64_t column) const {
    double sum = 0;
    for (const Crossing& x : crossings(split_, whole_)) {
      if (x.row - 1 == whole && column < C_ + W_) sum += gradient_of(x.row, 1, column);
      if (x.row - 2 == whole && column < C_ && x.position >= 2)
        sum += gradient_of(x.row, 2, column);
    }
    return sum;
  }

  const CpSplit split_;
  const std::vector<Segment>& whole_;
  const int64_t C_, W_;
  const int rank_;
  Allocator allocator_{Device::kCpu};
  Threads threads_{1};
  kernels::Context ctx_{.threads = &threads_};
  const nn::Types types_ = nn::Types::of(DType::kF64);
  const nn::Exchanges exchanges_{};
  kernels::Sequence sequence_;
  CpHalos halos_;
  OwnedTensor rows_, halo_z_, halo_vd_;
};

TEST(CpHalo, ValuesAndGradientsByToken) {
  for (const int64_t delayed : {4, 0, 3})  // half the values; shares with none and with some
    for (const CpLayout layout : {CpLayout::kContiguous, CpLayout::kZigzag})
      for (const int n : {2, 3, 4})
        for (const auto& documents : {std::vector<std::vector<int64_t>>{{24}, {24}},
                                      {{2, 3, 7, 12}, {5, 6, 13}},
                                      {{6, 6, 12}, {4, 1, 1, 11, 7}}}) {
          const nn::ExchangeNeeds needs{
              .most_strips = {{{2, 24}, {1, delayed}}}, .key_cols = 8, .value_cols = 8};
          const CpSplit split{layout, n, 2, 24};
          const std::vector<Segment> whole = testing_support::batch_of(documents, 11).segments;
          Allocator allocator(Device::kCpu);
          comm::run_ranks(n, {}, allocator, [&](comm::Group& ranks) {
            HaloRank rank(ranks, split, needs, whole);
            rank.check_forward();
            rank.check_backward();
          });
        }
}

}  // namespace
}  // namespace ashlar::parallel
