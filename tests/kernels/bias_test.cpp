#include "ashlar/kernels/bias.h"

#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

// Tokens, columns, and the columns of the fused product before those of the bias.
struct BiasCase {
  int64_t T, N, before;
};
constexpr BiasCase kBiasCases[] = {{1, 1, 0}, {3, 5, 2}, {17, 33, 7}, {65, 64, 64}, {130, 48, 1}};

Matrix columns_of(const Tensor& fused, const BiasCase& c) {
  return Matrix::of(fused).columns(c.before, c.before + c.N);
}

TEST(Bias, Formula) {
  for (const BiasCase& c : kBiasCases) {
    Bench b;
    const Tensor fused = b.stream("fused", {c.T, c.before + c.N}), bias = b.stream("bias", {c.N}),
                 db = b.stream("db", {c.N});
    const std::vector<double> before = values_of(fused), db_before = values_of(db);
    bias_forward(b.context(), bias, columns_of(fused, c));
    bias_backward(b.context(), columns_of(fused, c), db);
    const std::vector<double> after = values_of(fused);
    const int64_t width = c.before + c.N;
    for (int64_t n = 0; n < c.N; ++n) {
      double sum = db_before[size_t(n)];
      for (int64_t t = 0; t < c.T; ++t) {
        const auto at = size_t(t * width + c.before + n);
        ASSERT_EQ(after[at], before[at] + bias.as<double>()[n]);
        sum += after[at];
      }
      ASSERT_NEAR(db.as<double>()[n], sum, 1e-12);
    }
    for (int64_t t = 0; t < c.T; ++t)  // columns before those of the bias stay
      for (int64_t i = 0; i < c.before; ++i)
        ASSERT_EQ(after[size_t(t * width + i)], before[size_t(t * width + i)]);
  }
}

TEST(Bias, Paths) {
  for (const BiasCase& c : kBiasCases)
    expect_paths_agree(fmt::format("T={} N={} before={}", c.T, c.N, c.before),
                       [&](Bench& b) -> std::vector<Output> {
                         const Shape shape{c.T, c.before + c.N};
                         const Tensor fused = b.product("fused", shape), db = b.stream("db", {c.N});
                         bias_forward(b.context(), b.stream("bias", {c.N}), columns_of(fused, c));
                         bias_backward(b.context(), columns_of(b.product("dy", shape), c), db);
                         return {{"y", fused}, {"db", db}};
                       });
}

}  // namespace
}  // namespace ashlar::kernels
