#include "tests/kernels/gpu/op_case.h"
#include "tests/kernels/segment_cases.h"

namespace ashlar::kernels {
namespace {

struct HeadsCase {
  HeadsShape shape;  // N, K, D, rotary_dim, eps, weight_offset, gated
  bool norms;
};
// Heads that no group of lanes fills, some that all elements of every lane fill, pairs that end
// within a group and elements behind them.
constexpr HeadsCase kHeadsCases[] = {
    {{2, 1, 4, 4}, false},          {{3, 2, 33, 6, 1e-6}, true},
    {{1, 1, 1, 0, 0.1}, true},      {{2, 1, 64, 64, 1e-6, 1}, true},
    {{1, 1, 256, 256, 1e-6}, true}, {{1, 1, 256, 254, 1e-6}, true},
    {{4, 2, 80, 40}, false},        {{3, 1, 6, 4, 1e-6, 0, true}, true}};
const std::vector<Piece> kPieces[] = {{{0, 1}}, {{3, 1}, {1, 2}, {2, 2}, {0, 12}, {9, 3}}};

std::vector<Output> run_heads(Place& p, const HeadsCase& c, const Sequence& sequence) {
  const HeadsShape& s = c.shape;
  const int64_t T = sequence.num_tokens();
  const Shape TW{T, s.width()}, TN{T, s.N * s.D}, TK{T, s.K * s.D}, D{s.D};
  const auto weight = [&](const char* name, double center) {
    return c.norms ? p.random(p.wide(), name, D, center) : Tensor();
  };
  const auto per_head = [&](int64_t heads) {
    return c.norms ? p.unset(p.wide(), {T, heads}) : Tensor();
  };
  const Tensor table = s.rotary_dim > 0 ? p.unset(p.wide(), {20, s.rotary_dim}) : Tensor();
  if (table) kernels::rope_table(p.context(), {.theta = 100}, table);
  const Tensor qkv = p.random(p.product(), "qkv", TW);
  const Tensor q_norm = weight("q_norm", 1), k_norm = weight("k_norm", 1);
  const Tensor qhat = p.unset(p.product(), TN), khat = p.unset(p.product(), TK);
  const Tensor v = p.unset(p.product(), TK), rstd_q = per_head(s.N), rstd_k = per_head(s.K);
  kernels::heads_forward(p.context(), {.shape = s,
                                       .sequence = sequence,
                                       .rope_PR = table,
                                       .qkv = qkv,
                                       .q_norm_D = q_norm,
                                       .k_norm_D = k_norm,
                                       .qhat = qhat,
                                       .khat = khat,
                                       .v = v,
                                       .rstd_q_TN = rstd_q,
                                       .rstd_k_TK = rstd_k});
  const Tensor dqkv = p.random(p.product(), "a gate's columns", TW);
  const Tensor dq_norm = weight("dq_norm", 0), dk_norm = weight("dk_norm", 0);
  kernels::heads_backward(p.context(), {.shape = s,
                                        .sequence = sequence,
                                        .rope_PR = table,
                                        .qkv = c.norms ? qkv : Tensor(),
                                        .q_norm_D = q_norm,
                                        .k_norm_D = k_norm,
                                        .rstd_q_TN = rstd_q,
                                        .rstd_k_TK = rstd_k,
                                        .dqhat = p.random(p.wide(), "dqhat", TN),
                                        .dkhat = p.random(p.wide(), "dkhat", TK),
                                        .dv = p.random(p.wide(), "dv", TK),
                                        .dqkv = dqkv,
                                        .dq_norm_D = dq_norm,
                                        .dk_norm_D = dk_norm});
  std::vector<Output> outputs = {{"qhat", qhat}, {"khat", khat}, {"v", v}, {"dqkv", dqkv}};
  if (c.norms)
    outputs.insert(
        outputs.end(),
        {{"rstd_q", rstd_q}, {"rstd_k", rstd_k}, {"dq_norm", dq_norm}, {"dk_norm", dk_norm}});
  return outputs;
}

TEST(GpuHeads, MatchTheReferenceInEveryMode) {
  for (const HeadsCase& c : kHeadsCases)
    for (const auto& pieces : kPieces)
      for (const DType product : {DType::kF32, DType::kBF16}) {
        const Sequence sequence = sequence_of(pieces);
        expect_op(fmt::format("heads/{}/{}-{}x{}/{}{}{}/{}", sequence.num_tokens(), c.shape.N,
                              c.shape.K, c.shape.D, c.shape.rotary_dim, c.norms ? "/norms" : "",
                              c.shape.gated ? "/gated" : "", name_of(product)),
                  {DType::kF32, product}, [&](Place& p) { return run_heads(p, c, sequence); });
      }
}

TEST(GpuHeads, SumOverSeveralBlocksOfTokens) {
  const Sequence sequence = Sequence::rows(3, 15);
  expect_op("heads/45", {DType::kF32, DType::kBF16}, [&](Place& p) {
    return run_heads(p, {{2, 1, 64, 64, 1e-6}, true}, sequence);
  });
}

TEST(GpuHeads, OfNoTokenLeaveGradientsAlone) {
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  const std::vector<Output> outputs =
      run_heads(p, {{2, 1, 8, 8, 1e-6}, true}, Sequence(std::vector<Segment>()));
  EXPECT_EQ(values_of(outputs[6].tensor), values_of(p.random(DType::kF32, "dq_norm", {8})));
}

TEST(GpuHeads, ATableHasTheBitsOfTheCpu) {
  for (const DType dtype : {DType::kF32, DType::kF64})
    expect_bits_of_cpu(std::string(name_of(dtype)), [&](Place& p) -> std::vector<Output> {
      const Tensor table = p.unset(dtype, {40, 6});
      kernels::rope_table(p.context(), {.theta = 1e4}, table);
      return {{"table", table}};
    });
}

}  // namespace
}  // namespace ashlar::kernels
