#include "ashlar/kernels/cpu/gemm/reference.h"

#include <algorithm>

#include "ashlar/core/error.h"
#include "ashlar/core/rounding.h"

namespace ashlar::kernels::cpu::gemm {
namespace {

constexpr int64_t kBlock = 32;
template <typename Sum>
using Block = Sum[kBlock][kBlock];

template <typename Sum, typename T>
void load_as(const Strided& from, int64_t row, int64_t col, int64_t rows, int64_t cols, bool round,
             Block<Sum>& block) {
  const T* data =
      reinterpret_cast<const T*>(from.data) + row * from.row_stride + col * from.col_stride;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) {
      const auto value = static_cast<Sum>(data[i * from.row_stride + j * from.col_stride]);
      block[i][j] = round ? static_cast<Sum>(bf16(static_cast<float>(value))) : value;
    }
}

template <typename Sum>
void load(const Strided& from, int64_t row, int64_t col, int64_t rows, int64_t cols, bool round,
          Block<Sum>& block) {
  switch (from.dtype) {
    case DType::kF64:
      return load_as<Sum, double>(from, row, col, rows, cols, round, block);
    case DType::kF32:
      return load_as<Sum, float>(from, row, col, rows, cols, round, block);
    case DType::kBF16:
      return load_as<Sum, bf16>(from, row, col, rows, cols, round, block);
    default:
      ASHLAR_ASSERT(false && "products: floating types only");
  }
}

template <typename Sum, typename T>
void store_as(const Strided& to, int64_t row, int64_t col, int64_t rows, int64_t cols,
              const Block<Sum>& block) {
  T* data = reinterpret_cast<T*>(to.data) + row * to.row_stride + col * to.col_stride;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) {
      T& element = data[i * to.row_stride + j * to.col_stride];
      if constexpr (std::is_same_v<T, bf16>)
        element = bf16(static_cast<float>(block[i][j]));
      else
        element = static_cast<T>(block[i][j]);
    }
}

template <typename Sum>
void store(const Strided& to, int64_t row, int64_t col, int64_t rows, int64_t cols,
           const Block<Sum>& block) {
  switch (to.dtype) {
    case DType::kF64:
      return store_as<Sum, double>(to, row, col, rows, cols, block);
    case DType::kF32:
      return store_as<Sum, float>(to, row, col, rows, cols, block);
    case DType::kBF16:
      return store_as<Sum, bf16>(to, row, col, rows, cols, block);
    default:
      ASHLAR_ASSERT(false && "products: floating types only");
  }
}

template <typename Sum>
void run(bool round, int64_t M, int64_t N, int64_t K, const Strided& a, const Strided& b,
         const Strided& c, bool accumulate, int64_t m, int64_t n) {
  const int64_t rows = std::min(kBlock, M - m), cols = std::min(kBlock, N - n);
  Block<Sum> sum = {}, left, right = {};
  if (accumulate) load<Sum>(c, m, n, rows, cols, false, sum);
  for (int64_t k = 0; k < K; k += kBlock) {
    const int64_t depth = std::min(kBlock, K - k);
    load<Sum>(a, m, k, rows, depth, round, left);
    load<Sum>(b, k, n, depth, cols, round, right);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t l = 0; l < depth; ++l)
        for (int64_t j = 0; j < kBlock; ++j) sum[i][j] += left[i][l] * right[l][j];
  }
  store<Sum>(c, m, n, rows, cols, sum);
}

}  // namespace

void reference_product(Threads& threads, DType compute, int64_t M, int64_t N, int64_t K,
                       const Strided& a, const Strided& b, const Strided& c, bool accumulate) {
  const int64_t columns = ceil_div(N, kBlock);
  threads.run(ceil_div(M, kBlock) * columns, [&](int64_t task, int) {
    const int64_t m = task / columns * kBlock, n = task % columns * kBlock;
    if (compute == DType::kF64)
      run<double>(false, M, N, K, a, b, c, accumulate, m, n);
    else
      run<float>(compute == DType::kBF16, M, N, K, a, b, c, accumulate, m, n);
  });
}

}  // namespace ashlar::kernels::cpu::gemm
