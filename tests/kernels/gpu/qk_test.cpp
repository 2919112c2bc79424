#include "tests/kernels/gpu/op_case.h"
#include "tests/kernels/segment_cases.h"

namespace ashlar::kernels {
namespace {

// N, K, D, rotary_dim, eps, group, delayed.  Heads that no group of lanes fills, one that all
// elements of every lane fill, no rotation; shares of the heads, of which other ranks have queries
// of the same keys; values of one kind only.
constexpr QkShape kQkShapes[] = {{1, 1, 2, 2, 1e-6},         {4, 2, 33, 6, 1e-6, 0, 29},
                                 {3, 1, 4, 0, 1e-6},         {4, 2, 64, 32, 1e-6},
                                 {1, 1, 256, 256, 1e-6},     {2, 1, 6, 4, 1e-6, 4, 3},
                                 {4, 2, 40, 38, 1e-6, 6, 0}, {2, 2, 4, 2, 1e-6, 1, 8}};
const std::vector<Piece> kQkPieces[] = {
    {{0, 1}}, {{1, 1}}, {{3, 1}, {1, 2}, {2, 2}, {0, 2}, {9, 3}}, {{0, 5}, {0, 1}, {2, 70}}};

std::vector<Output> run_qk(Place& p, const QkShape& s, const Sequence& sequence) {
  const int64_t T = sequence.num_tokens(), KD = s.K * s.D;
  const Shape TN{T, s.N * s.D}, TK{T, KD}, TC{T, s.C()}, C{s.C()}, K{s.K};
  const Shape halo{sequence.num_halos(), s.num_delayed()};
  const auto sums = [&](const char* name) {
    return s.G() != s.N / s.K ? p.random(p.wide(), name, TK) : Tensor();
  };
  const Tensor table = p.unset(p.wide(), {80, s.rotary_dim});
  kernels::rope_table(p.context(), {.theta = 100}, table);
  const Tensor qkv = p.random(p.product(), "qkv", {T, s.C() + KD});
  const Tensor y = p.random(p.product(), "y", TC), b1 = p.random(p.wide(), "b1", C);
  const Tensor tau = p.random(p.wide(), "tau", K, 1.5), q_sum = sums("q_sum");
  const Tensor qhat = p.unset(p.product(), TN), khat = p.unset(p.product(), TK);
  const Tensor v = p.unset(p.product(), TK);
  const Tensor n_q = p.unset(p.wide(), {T, s.N}), n_k = p.unset(p.wide(), {T, s.K});
  kernels::qk_forward(p.context(), {.shape = s,
                                    .sequence = sequence,
                                    .rope_PR = table,
                                    .qkv = qkv,
                                    .y_TC = y,
                                    .b1_C = b1,
                                    .tau_K = tau,
                                    .halo_vd = p.random(p.wide(), "halo", halo),
                                    .q_sum_TKD = q_sum,
                                    .qhat = qhat,
                                    .khat = khat,
                                    .v = v,
                                    .n_q_TN = n_q,
                                    .n_k_TK = n_k});
  const Tensor dy = p.unset(p.product(), TC), dqkv = p.unset(p.product(), qkv.shape);
  const Tensor dhalo = p.unset(p.wide(), halo);
  const Tensor dtau = p.random(p.wide(), "dtau", K), db1 = p.random(p.wide(), "db1", C);
  kernels::qk_backward(p.context(), {.shape = s,
                                     .sequence = sequence,
                                     .rope_PR = table,
                                     .qkv = qkv,
                                     .y_TC = y,
                                     .b1_C = b1,
                                     .tau_K = tau,
                                     .n_q_TN = n_q,
                                     .n_k_TK = n_k,
                                     .q_sum_TKD = q_sum,
                                     .dqhat = p.random(p.wide(), "dqhat", TN),
                                     .dkhat = p.random(p.wide(), "dkhat", TK),
                                     .dv = p.random(p.wide(), "dv", TK),
                                     .dq_sum_TKD = sums("dq_sum"),
                                     .dy_TC = dy,
                                     .dqkv = dqkv,
                                     .dhalo_vd = dhalo,
                                     .dtau_K = dtau,
                                     .db1_C = db1});
  return {{"qhat", qhat}, {"khat", khat}, {"v", v},         {"n_q", n_q},   {"n_k", n_k},
          {"dy", dy},     {"dqkv", dqkv}, {"dhalo", dhalo}, {"dtau", dtau}, {"db1", db1}};
}

std::string name_of_qk(const QkShape& s) {
  return fmt::format("{}-{}x{}/{}/{}/{}", s.N, s.K, s.D, s.rotary_dim, s.G(), s.num_delayed());
}

TEST(GpuQk, MatchesTheReferenceInEveryMode) {
  for (const QkShape& s : kQkShapes)
    for (const auto& pieces : kQkPieces)
      for (const DType product : {DType::kF32, DType::kBF16}) {
        const Sequence sequence = sequence_of(pieces);
        expect_op(fmt::format("qk/{}+{}/{}/{}", pieces[0].position, sequence.num_tokens(),
                              name_of_qk(s), name_of(product)),
                  {DType::kF32, product}, [&](Place& p) { return run_qk(p, s, sequence); });
      }
}

// A key has so many queries that shared memory has room for the sums of few tokens at a time.
TEST(GpuQk, SharesLittleRoom) {
  for (const int64_t queries : {20, 46})
    expect_op(fmt::format("qk/room/{}", queries), {DType::kF32, DType::kF32}, [&](Place& p) {
      return run_qk(p, {queries, 1, 256, 64, 1e-6}, sequence_of({{0, 11}}));
    });
}

TEST(GpuQk, RefusesQueriesForWhichThereIsNoRoom) {
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  EXPECT_THROW(run_qk(p, {47, 1, 256, 64, 1e-6}, sequence_of({{0, 1}})), Error);
}

TEST(GpuQk, OfNoTokenLeavesGradientsAlone) {
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  const std::vector<Output> outputs =
      run_qk(p, {2, 1, 8, 4, 1e-6}, Sequence(std::vector<Segment>()));
  EXPECT_EQ(values_of(outputs[8].tensor), values_of(p.random(DType::kF32, "dtau", {1})));
  EXPECT_EQ(values_of(outputs[9].tensor), values_of(p.random(DType::kF32, "db1", {24})));
}

}  // namespace
}  // namespace ashlar::kernels
