// Linear attention without mask: against the sums over pairs of tokens, in fp64 and on every path
// of this machine; and documents cut into chunks against whole ones.
#include "ashlar/kernels/unmasked.h"

#include "ashlar/kernels/copy.h"
#include "tests/kernels/recurrence_case.h"

namespace ashlar::kernels {
namespace {

const RecurrenceShape kShape{.K = 2, .H = 4, .dk = 6, .dv = 10, .scale = 0.4};
// The first chunk has documents of 5, 1, 64 and 20 tokens, the second of 40 and 23.
const RecurrenceCase kWhole{.name = "whole",
                            .shape = kShape,
                            .documents = {{0, 5}, {0, 1}, {0, 64}, {0, 20}, {0, 40}, {0, 23}},
                            .chunks = {90, 63},
                            .states = false};

void run(const Context& ctx, DType compute, const RecurrenceTensors& r, const Tensor& outside = {},
         const Tensor& d_outside = {}) {
  unmasked_forward(ctx, compute, r.call(), outside, Matrix::of(r.out));
  RecurrenceGradients g = r.gradients();
  g.d_leaving = d_outside;
  unmasked_backward(ctx, compute, r.call(), outside, g);
}

// Row t of q, k, v, ... of a head.
const double* at(const Tensor& x, int64_t t, int64_t head, int64_t dim) {
  return x.as<double>() + t * x.shape[1] + head * dim;
}
double dot(const double* a, const double* b, int64_t n) {
  return std::inner_product(a, a + n, b, 0.0);
}

// o_t = scale sum_s (q_t . k_s) v_s over the tokens s of the document, and its gradients.
RecurrenceTensors by_pairs(Bench& bench, const RecurrenceCase& c) {
  RecurrenceTensors r = make_tensors(bench, c);
  const auto& [K, H, dk, dv, scale] = c.shape;
  const auto& segment = r.sequence.segment_T();
  const auto add = [](const Tensor& to, int64_t t, int64_t head, int64_t dim, double factor,
                      const double* from) {
    for (int64_t i = 0; i < dim; ++i)
      to.as<double>()[t * to.shape[1] + head * dim + i] += factor * from[i];
  };
  for (const Tensor& x : {r.out, r.dq, r.dk, r.dv}) fill(bench.context(), x, 0.0);
  for (int64_t t = 0; t < c.num_tokens(); ++t)
    for (int64_t s = 0; s < c.num_tokens(); ++s)
      for (int64_t h = 0; segment[size_t(t)] == segment[size_t(s)] && h < H; ++h) {
        const int64_t j = h / (H / K);
        const double *q = at(r.q, t, j, dk), *k = at(r.k, s, j, dk), *v = at(r.v, s, h, dv),
                     *dout = at(r.dout, t, h, dv);
        const double weight = scale * dot(q, k, dk), dweight = scale * dot(dout, v, dv);
        add(r.out, t, h, dv, weight, v);
        add(r.dv, s, h, dv, weight, dout);
        add(r.dq, t, j, dk, dweight, k);
        add(r.dk, s, j, dk, dweight, q);
      }
  return r;
}

void expect_same(const std::string& what, const RecurrenceTensors& got,
                 const RecurrenceTensors& want, double bound) {
  expect_within(what + ": out", got.out, want.out, bound);
  expect_within(what + ": dq", got.dq, want.dq, bound);
  expect_within(what + ": dk", got.dk, want.dk, bound);
  expect_within(what + ": dv", got.dv, want.dv, bound);
}

TEST(Unmasked, IsTheSumOverPairsOnEveryPath) {
  RecurrenceBench exact;
  const RecurrenceTensors want = by_pairs(exact, kWhole);
  for (const int threads : {1, 3})
    for_paths(
        [&](const RecurrencePath& path, RecurrenceBench& bench) {
          if (path.tiles) return;
          const RecurrenceTensors got = make_tensors(bench, kWhole);
          run(bench.roomy, path.compute, got);
          expect_same(path.name, got, want, path.compute == DType::kBF16 ? 2e-2 : path.bound());
        },
        threads, /*mixed=*/true);
}

// A document of 11 tokens in pieces of 3, 6 and 2 among others, each with what is outside of it:
// the same as of the whole row.
TEST(Unmasked, ChunksWithWhatIsOutsideEqualTheWhole) {
  RecurrenceBench bench;
  const std::vector<Piece> row = {{0, 4}, {0, 11}, {0, 2}, {0, 7}};
  RecurrenceCase whole{
      .name = "row", .shape = kShape, .documents = row, .chunks = {24}, .states = false};
  RecurrenceCase cut = whole;
  // The same tokens, of which a rank would have one chunk each; all of them are here.
  cut.documents = {{0, 4}, {0, 3}, {3, 6}, {9, 2}, {0, 2}, {0, 2}, {2, 5}};
  cut.chunks = {7, 6, 6, 5};
  const RecurrenceTensors a = make_tensors(bench, whole), b = make_tensors(bench, cut);
  run(bench.roomy, DType::kF64, a);
  const int64_t C = cut.num_chunks(), m = kShape.H * kShape.dk * kShape.dv;
  const auto outside_of = [&](const Matrix& left, const Matrix& right) {
    const Tensor sums = bench.stream({2 * C, kShape.H, kShape.dk, kShape.dv}),
                 outside = bench.stream(sums.shape);
    unmasked_sums(bench.roomy, DType::kF64, b.call(), left, right, sums);
    const double* from = sums.as<double>();
    double* to = outside.as<double>();
    const auto starts = [&](int64_t chunk) {
      for (const Segment& s : b.sequence.segments())
        if (s.position == 0 && s.row >= b.ranges[size_t(chunk)].begin &&
            s.row < b.ranges[size_t(chunk)].end)
          return true;
      return false;
    };
    for (int64_t e = 0; e < m; ++e) {
      double state = 0;
      for (int64_t c = 0; c < C; ++c) {
        to[c * m + e] = state;
        state = (starts(c) ? 0 : state) + from[c * m + e];
      }
      state = 0;
      for (int64_t c = C - 1; c >= 0; --c) {
        to[(C + c) * m + e] = state;
        state = (starts(c) ? 0 : state) + from[(C + c) * m + e];
      }
    }
    return outside;
  };
  const Tensor outside = outside_of(Matrix::of(b.k), Matrix::of(b.v));
  const Tensor d_outside = outside_of(Matrix::of(b.q), Matrix::of(b.dout));
  run(bench.roomy, DType::kF64, b, outside, d_outside);
  expect_same("cut", b, a, 1e-13);
}

}  // namespace
}  // namespace ashlar::kernels
