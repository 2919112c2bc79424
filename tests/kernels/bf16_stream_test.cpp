// Kernels of the residual stream where it is bf16: norms, merges and the embedding.
#include "ashlar/kernels/embedding.h"
#include "ashlar/kernels/norm.h"
#include "tests/kernels/norm_cases.h"

namespace ashlar::kernels {
namespace {

enum class MergeKind : uint8_t { kScaled, kPlain, kNormed };

// A merge and the norm after it, forward and backward, in one kernel each or in two.  Parameters
// and statistics are wide, products are of the stream's type.
struct StreamLayer {
  Bench& b;
  DType stream, wide;
  Shape TH, H, T;
  MergeParams params{}, grads{};
  MergeFactors factors{};
  Tensor o, r, v{}, rstd_r{}, w, h, y, rstd, dy, dh_in, d_o, dr, dw;

  StreamLayer(Bench& bench, const NormCase& c, MergeKind kind, DType type)
      : b(bench),
        stream(type),
        wide(type == DType::kBF16 ? DType::kF32 : type),
        TH{c.T, c.H},
        H{c.H},
        T{c.T} {
    const auto values = [&](DType dtype, const char* name, const Shape& shape, double center = 0) {
      return b.random(dtype, name, shape, center);
    };
    const auto vectors = [&] {
      return MergeParams{b.zeros(wide, H), b.zeros(wide, H), b.zeros(wide, H), b.zeros(wide, H)};
    };
    if (kind == MergeKind::kScaled) {
      params = {values(wide, "ao", H, 1), values(wide, "bo", H), values(wide, "ar", H, 1),
                values(wide, "br", H)};
      grads = vectors();
    } else if (kind == MergeKind::kNormed) {
      factors = {1.25, 0.75};
      v = values(wide, "v", H, 1), rstd_r = values(wide, "rstd_r", T, 2);
    }
    o = values(stream, "o", TH), r = values(stream, "r", TH), w = values(wide, "w", H, 1);
    h = b.zeros(stream, TH), y = b.zeros(stream, TH), rstd = b.zeros(wide, T);
    dy = values(stream, "dy", TH), dh_in = values(stream, "dh_in", TH);
    d_o = b.zeros(stream, TH), dr = b.zeros(stream, TH), dw = b.zeros(wide, H);
  }
  bool keeps_h() const { return !params.hidden_scale_H; }

  void in_one() {
    merge_norm_forward(b.context(), {.eps = kEps,
                                     .o_TH = o,
                                     .r_TH = r,
                                     .params = params,
                                     .factors = factors,
                                     .r_norm_H = v,
                                     .r_rstd_T = rstd_r,
                                     .w_H = w,
                                     .h_TH = h,
                                     .y_TH = y,
                                     .rstd_T = rstd});
    merge_norm_backward(b.context(), {.dy_TH = dy,
                                      .dh_in_TH = dh_in,
                                      .o_TH = o,
                                      .r_TH = r,
                                      .h_TH = keeps_h() ? h : Tensor{},
                                      .rstd_T = rstd,
                                      .params = params,
                                      .factors = factors,
                                      .w_H = w,
                                      .d_o_TH = d_o,
                                      .dr_TH = dr,
                                      .grads = grads,
                                      .dw_H = dw});
  }
  void in_two() {
    merge_norm_forward(b.context(), {.eps = kEps,
                                     .o_TH = o,
                                     .r_TH = r,
                                     .params = params,
                                     .factors = factors,
                                     .r_norm_H = v,
                                     .r_rstd_T = rstd_r,
                                     .h_TH = h});
    rms_norm_forward(b.context(), kEps, h, w, y, rstd);
    const Tensor dh = b.zeros(stream, TH);
    rms_norm_backward(b.context(), {.dy_TH = dy,
                                    .h_TH = h,
                                    .w_H = w,
                                    .rstd_T = rstd,
                                    .dh_in_TH = dh_in,
                                    .dh_TH = dh,
                                    .dw_H = dw});
    merge_norm_backward(b.context(), {.dh_in_TH = dh,
                                      .o_TH = o,
                                      .r_TH = r,
                                      .params = params,
                                      .factors = factors,
                                      .d_o_TH = d_o,
                                      .dr_TH = dr,
                                      .grads = grads});
  }
  std::vector<Output> outputs() const {
    std::vector<Output> all = {{"h", h},     {"y", y},   {"rstd", rstd},
                               {"d_o", d_o}, {"dr", dr}, {"dw", dw}};
    if (!keeps_h())
      all.insert(all.end(), {{"dao", grads.hidden_scale_H},
                             {"dbo", grads.hidden_bias_H},
                             {"dar", grads.residual_scale_H},
                             {"dbr", grads.residual_bias_H}});
    return all;
  }
};

// Calls check(name of the path, whether it is the reference) on every path of this machine.
template <typename Check>
void on_every_path(Check check) {
  check("reference", true);
  const Isa best = isa();
  for (const Isa path : supported_isas()) {
    select_isa(path);
    check(std::string(name_of(path)), false);
  }
  select_isa(best);
}

constexpr MergeKind kMerges[] = {MergeKind::kScaled, MergeKind::kPlain, MergeKind::kNormed};
constexpr Precision kTypes{DType::kBF16, DType::kBF16};

// A value of the stream is rounded once where it is stored, and norms read what is stored: 2^-8 of
// it each, and in a gradient again of what it is made of.
TEST(Bf16Stream, NormsAndMergesAreNearFp64OnEveryPath) {
  for (const MergeKind kind : kMerges)
    for (const NormCase& c : kNormCases) {
      Bench exact;
      StreamLayer want(exact, c, kind, DType::kF64);
      want.in_one();
      on_every_path([&](const std::string& path, bool reference) {
        std::vector<std::vector<double>> first;
        for (const int num_threads : {1, 3}) {
          Bench b(kTypes, reference, num_threads);
          StreamLayer got(b, c, kind, DType::kBF16);
          got.in_one();
          const std::vector<Output> outputs = got.outputs(), exacts = want.outputs();
          for (size_t i = 0; i < outputs.size(); ++i) {
            const std::vector<double> g = values_of(outputs[i].tensor),
                                      e = values_of(exacts[i].tensor);
            if (num_threads == 1) first.push_back(g);
            EXPECT_EQ(g, first[i]) << path << ": " << outputs[i].name;
            const double bound = 0x1p-6 * std::max(1.0, largest(e));
            for (size_t k = 0; k < g.size(); ++k)
              ASSERT_LE(std::abs(g[k] - e[k]), bound)
                  << path << ", " << name_of(c) << ": " << outputs[i].name << "[" << k << "]";
          }
        }
      });
    }
}

// So a pipeline, which cuts them apart between two stages, computes what one rank does.
TEST(Bf16Stream, AMergeAndItsNormInOneKernelGiveTheBitsOfTwo) {
  for (const MergeKind kind : kMerges)
    for (const NormCase& c : kNormCases)
      on_every_path([&](const std::string& path, bool reference) {
        Bench a(kTypes, reference), b(kTypes, reference);
        StreamLayer one(a, c, kind, DType::kBF16), two(b, c, kind, DType::kBF16);
        one.in_one(), two.in_two();
        const std::vector<Output> want = one.outputs(), got = two.outputs();
        for (size_t i = 0; i < want.size(); ++i)
          EXPECT_EQ(values_of(got[i].tensor), values_of(want[i].tensor))
              << path << ", " << name_of(c) << ": " << want[i].name;
      });
}

TEST(Bf16Stream, MovesHalfTheBytesOfAnFp32Stream) {
  const auto bytes = [](DType stream) {
    Bench b({}, true, 1, Device::kMeta);
    const Shape TH{130, 8}, H{8};
    rms_norm_forward(b.context(), kEps, b.zeros(stream, TH), b.zeros(DType::kF32, H),
                     b.zeros(DType::kBF16, TH), b.zeros(DType::kF32, {130}));
    embedding_forward(b.context(), {.ids_T = b.zeros(DType::kI32, {130}),
                                    .emb_VH = b.zeros(DType::kF32, {50, 8}),
                                    .x_TH = b.zeros(stream, TH)});
    return total(b.calls()).bytes;
  };
  EXPECT_EQ(bytes(DType::kF32) - bytes(DType::kBF16), 2 * 2 * 130 * 8);
}

// Rows are rounded to the nearest; the gradient of the table adds what the stream's gradient holds.
TEST(Bf16Stream, TheEmbeddingRoundsRowsAndAddsWideGradients) {
  constexpr int64_t kTokens = 65, kVocabulary = 7, kWidth = 33;
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < kTokens; ++t) ids.push_back(int32_t(t * t % kVocabulary));
  on_every_path([&](const std::string& path, bool reference) {
    Bench b(kTypes, reference);
    const Shape TH{kTokens, kWidth}, VH{kVocabulary, kWidth};
    const Tensor emb = b.zeros(DType::kF32, VH), x = b.zeros(DType::kBF16, TH),
                 dx = b.random(DType::kBF16, "dx", TH), demb = b.zeros(DType::kF32, VH);
    for (int64_t i = 0; i < emb.numel(); ++i) emb.as<float>()[i] = 1.0f / float(i + 3);
    embedding_forward(b.context(), {.ids_T = b.ints(ids), .emb_VH = emb, .x_TH = x});
    embedding_backward(b.context(),
                       {.ids_T = b.ints(ids), .emb_VH = emb, .dx_TH = dx, .demb_VH = demb});
    std::vector<double> sums(size_t(VH.numel()));
    for (int64_t t = 0; t < kTokens; ++t)
      for (int64_t i = 0; i < kWidth; ++i) {
        const int64_t at = ids[size_t(t)] * kWidth + i;
        ASSERT_EQ(x.as<bf16>()[t * kWidth + i].bits, bf16(emb.as<float>()[at]).bits) << path;
        sums[size_t(at)] += double(float(dx.as<bf16>()[t * kWidth + i]));
      }
    for (size_t i = 0; i < sums.size(); ++i)
      ASSERT_NEAR(demb.as<float>()[i], sums[i], 1e-5) << path;
  });
}

}  // namespace
}  // namespace ashlar::kernels
