#include "ashlar/kernels/cpu/embedding_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/embedding_fast.cpp"
#include "ashlar/kernels/cpu/simd/dispatch.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ashlar/kernels/cpu/simd/lanes-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {
namespace {

void embedding_rows(const EmbeddingArgs<float>& x, int64_t begin, int64_t end) {
  const float* emb = rows_of<const float*>(x.emb);  // the next row lies anywhere: none is fetched
  for (int64_t t = begin; t < end; ++t) {
    const float* from = emb + x.ids[size_t(t)] * x.H;
    for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
      const V row = load(from + i, n);
      if (!x.scale) return store(row, x.x, t * x.H + i, n);
      const V shifted = hn::Add(row, load(x.bias, i, n));
      store(hn::Mul(shifted, load(x.scale, i, n)), x.x, t * x.H + i, n);
    });
  }
}

void embedding_affine_gradient(const EmbeddingGradientArgs<float>& x, int64_t begin, int64_t end,
                               float* partial) {
  const float* emb = rows_of<const float*>(x.emb);
  float *dscale = partial, *dbias = partial + x.H;
  for (int64_t t = begin; t < end; ++t) {
    const float* from = emb + x.ids[size_t(t)] * x.H;
    for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
      const V dx = load(x.dx, t * x.H + i, n);
      add_to(hn::Mul(dx, hn::Add(load(from + i, n), load(x.bias, i, n))), dscale + i, n);
      add_to(dx, dbias + i, n);  // scaled below
    });
  }
  for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
    store(hn::Mul(load(dbias + i, n), load(x.scale, i, n)), dbias + i, n);
  });
}

void embedding_table_gradient(const EmbeddingGradientArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t id = begin; id < end; ++id) {
    float* to = rows_of<float*>(x.demb) + id * x.H;
    for (int32_t k = x.first_of_id[id]; k < x.first_of_id[id + 1]; ++k) {
      for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
        const V dx = load(x.dx, x.row[k] * x.H + i, n);
        add_to(x.scale ? hn::Mul(dx, load(x.scale, i, n)) : dx, to + i, n);
      });
    }
  }
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(embedding_rows);
HWY_EXPORT(embedding_affine_gradient);
HWY_EXPORT(embedding_table_gradient);

void embedding_rows_fast(const EmbeddingArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(embedding_rows))(args, begin, end);
}
void embedding_affine_gradient_fast(const EmbeddingGradientArgs<float>& args, int64_t begin,
                                    int64_t end, float* partial) {
  dispatch(HWY_DISPATCH_TABLE(embedding_affine_gradient))(args, begin, end, partial);
}
void embedding_table_gradient_fast(const EmbeddingGradientArgs<float>& args, int64_t begin,
                                   int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(embedding_table_gradient))(args, begin, end);
}

}  // namespace ashlar::kernels::cpu
#endif
