#include "tests/kernels/gpu/op_case.h"

namespace ashlar::kernels {
namespace {

constexpr double kNormEps = 1e-5;

struct MergeShape {
  int64_t T, H;
};
// One pack a thread, and two; several blocks of partial sums.
constexpr MergeShape kMergeShapes[] = {{1, 3}, {3, 7}, {65, 64}, {130, 296}, {2, 4104}};

// The merges of norm.h: plain, with factors, of a normed residual, with four vectors.
enum class Kind { kPlain, kFactors, kNormedResidual, kVectors };
constexpr std::pair<Kind, const char*> kKinds[] = {{Kind::kPlain, "plain"},
                                                   {Kind::kFactors, "factors"},
                                                   {Kind::kNormedResidual, "normed_residual"},
                                                   {Kind::kVectors, "vectors"}};

// The tensors of a merge and of the norm behind it.
struct MergeCase {
  Place& p;
  Shape TH, H, T;
  Kind kind;
  double offset;
  Tensor o, r, w, r_norm, r_rstd, h, y, rstd;
  MergeParams params, grads;
  MergeFactors factors;
  MergeCase(Place& place, const MergeShape& s, Kind merge)
      : p(place),
        TH{s.T, s.H},
        H{s.H},
        T{s.T},
        kind(merge),
        offset(merge == Kind::kFactors ? 1 : 0) {
    o = p.random(p.product(), "o", TH), r = p.random(p.stream(), "r", TH);
    w = p.random(p.wide(), "w", H, 1);
    h = p.unset(p.stream(), TH), y = p.unset(p.product(), TH), rstd = p.unset(p.wide(), T);
    if (kind != Kind::kPlain) factors = {.alpha = 1.25, .beta = 0.75};
    if (kind == Kind::kVectors) params = vectors("", 1), grads = vectors("d", 0);
    if (kind != Kind::kNormedResidual) return;
    r_norm = p.random(p.wide(), "r_norm", H, 1), r_rstd = p.random(p.wide(), "r_rstd", T, 2);
  }
  MergeParams vectors(const std::string& prefix, double center) const {
    const auto vector = [&](const char* name) {
      return p.random(p.wide(), prefix + name, H, center);
    };
    return {vector("ao"), vector("bo"), vector("ar"), vector("br")};
  }
  void forward(bool with_norm) const {
    kernels::merge_norm_forward(p.context(), {.eps = kNormEps,
                                              .o_TH = o,
                                              .r_TH = r,
                                              .params = params,
                                              .factors = factors,
                                              .r_norm_H = r_norm,
                                              .r_rstd_T = r_rstd,
                                              .w_H = with_norm ? w : Tensor(),
                                              .h_TH = h,
                                              .y_TH = with_norm ? y : Tensor(),
                                              .rstd_T = with_norm ? rstd : Tensor(),
                                              .weight_offset = offset});
  }
};

struct MergeGradients {
  Tensor dy, dh_in, dy_in, d_o, dr, dw;
  explicit MergeGradients(const MergeCase& c, bool in_place = false) {
    Place& p = c.p;
    dy = p.random(p.product(), "dy", c.TH), dw = p.random(p.wide(), "dw", c.H);
    dh_in = p.random(p.stream(), "dh_in", c.TH), dy_in = p.random(p.stream(), "dy_in", c.TH);
    d_o = p.unset(p.product(), c.TH), dr = in_place ? dh_in : p.unset(p.stream(), c.TH);
  }
};

void run_backward(const MergeCase& c, const MergeGradients& g, const Tensor& h) {
  kernels::merge_norm_backward(c.p.context(), {.dy_TH = g.dy,
                                               .dh_in_TH = g.dh_in,
                                               .dy_in_TH = g.dy_in,
                                               .o_TH = c.o,
                                               .r_TH = c.r,
                                               .h_TH = h,
                                               .rstd_T = c.rstd,
                                               .params = c.params,
                                               .factors = c.factors,
                                               .w_H = c.w,
                                               .d_o_TH = g.d_o,
                                               .dr_TH = g.dr,
                                               .grads = c.grads,
                                               .dw_H = g.dw,
                                               .weight_offset = c.offset});
}
void run_backward_alone(const MergeCase& c, const MergeGradients& g, const Tensor& dh) {
  kernels::merge_norm_backward(c.p.context(), {.dh_in_TH = dh,
                                               .o_TH = c.o,
                                               .r_TH = c.r,
                                               .params = c.params,
                                               .factors = c.factors,
                                               .d_o_TH = g.d_o,
                                               .dr_TH = g.dr,
                                               .grads = c.grads});
}

std::vector<Output> with_vectors(std::vector<Output> outputs, const MergeCase& c) {
  if (c.kind == Kind::kVectors)
    for (const auto& [name, gradient] : {std::pair("dao", c.grads.hidden_scale_H),
                                         {"dbo", c.grads.hidden_bias_H},
                                         {"dar", c.grads.residual_scale_H},
                                         {"dbr", c.grads.residual_bias_H}})
      outputs.push_back({name, gradient});
  return outputs;
}

std::vector<Output> run_merge_norm(Place& p, const MergeShape& s, Kind kind, bool keeps_h) {
  const MergeCase c(p, s, kind);
  c.forward(true);
  const MergeGradients g(c, keeps_h);
  run_backward(c, g, keeps_h ? c.h : Tensor());
  return with_vectors(
      {{"h", c.h}, {"y", c.y}, {"rstd", c.rstd}, {"d_o", g.d_o}, {"dr", g.dr}, {"dw", g.dw}}, c);
}

TEST(GpuMergeNorm, MatchesTheReferenceInEveryMode) {
  for (const MergeShape& s : kMergeShapes)
    for (const auto& [kind, kind_name] : kKinds)
      for (const DType product : {DType::kF32, DType::kBF16})
        for (const bool keeps_h : {true, false}) {
          if (kind == Kind::kNormedResidual && !keeps_h) continue;  // h is then present
          expect_op(fmt::format("merge_norm/{}x{}/{}/{}{}", s.T, s.H, kind_name, name_of(product),
                                keeps_h ? "" : "/again"),
                    {DType::kF32, product},
                    [&](Place& p) { return run_merge_norm(p, s, kind, keeps_h); });
        }
}

std::vector<Output> run_merge_alone(Place& p, const MergeShape& s, Kind kind) {
  const MergeCase c(p, s, kind);
  c.forward(false);
  const MergeGradients g(c);
  run_backward_alone(c, g, g.dh_in);
  return with_vectors({{"h", c.h}, {"d_o", g.d_o}, {"dr", g.dr}}, c);
}

TEST(GpuMergeNorm, AloneMatchesTheReferenceInEveryMode) {
  for (const MergeShape& s : {MergeShape{3, 7}, {65, 64}, {130, 1032}})
    for (const auto& [kind, kind_name] : kKinds)
      for (const Precision& types : {Precision{DType::kF32, DType::kF32},
                                     {DType::kF32, DType::kBF16},
                                     {DType::kBF16, DType::kBF16}})
        expect_op(fmt::format("merge/{}x{}/{}/{}-{}", s.T, s.H, kind_name, name_of(types.stream),
                              name_of(types.product)),
                  types, [&](Place& p) { return run_merge_alone(p, s, kind); });
}

// A merge and a norm in one have the bits of a merge and of a norm: also in a stream of bf16, where
// roundings between the two keep the results further from the reference.
struct InTwo {
  MergeCase c;
  MergeGradients g;
  InTwo(Place& p, const MergeShape& s, Kind kind) : c(p, s, kind), g(c) {
    c.forward(false);
    kernels::rms_norm_forward(p.context(), kNormEps, c.h, c.w, c.y, c.rstd, c.offset);
    const Tensor dh = p.unset(p.stream(), c.TH);
    kernels::rms_norm_backward(p.context(), {.dy_TH = g.dy,
                                             .h_TH = c.h,
                                             .w_H = c.w,
                                             .rstd_T = c.rstd,
                                             .dh_in_TH = g.dh_in,
                                             .dy_in_TH = g.dy_in,
                                             .dh_TH = dh,
                                             .dw_H = g.dw,
                                             .weight_offset = c.offset});
    run_backward_alone(c, g, dh);
  }
};

TEST(GpuMergeNorm, InOneHasTheBitsOfTwo) {
  for (const MergeShape& s : kMergeShapes)
    for (const auto& [kind, kind_name] : kKinds)
      for (const DType stream : {DType::kF32, DType::kBF16}) {
        Bench bench({stream, DType::kBF16});
        Place p(gpu::kOps, bench);
        const InTwo two(p, s, kind);
        const std::vector<Output> want = with_vectors({{"h", two.c.h},
                                                       {"y", two.c.y},
                                                       {"rstd", two.c.rstd},
                                                       {"d_o", two.g.d_o},
                                                       {"dr", two.g.dr},
                                                       {"dw", two.g.dw}},
                                                      two.c);
        for (const bool keeps_h : {true, false}) {
          if (kind == Kind::kNormedResidual && !keeps_h) continue;
          const std::vector<Output> got = run_merge_norm(p, s, kind, keeps_h);
          for (size_t i = 0; i < want.size(); ++i)
            EXPECT_EQ(values_of(got[i].tensor), values_of(want[i].tensor)) << fmt::format(
                "{}x{} {} {}: {}", s.T, s.H, kind_name, name_of(stream), got[i].name);
        }
      }
}

}  // namespace
}  // namespace ashlar::kernels
