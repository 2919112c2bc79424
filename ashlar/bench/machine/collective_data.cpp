#include "ashlar/bench/machine/collective_data.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "ashlar/core/rng.h"

namespace ashlar::bench {
namespace {

uint64_t hash_of(uint64_t seed, int64_t rank, int64_t index) {
  return splitmix64(splitmix64(seed ^ splitmix64(uint64_t(rank) + 1)) ^ uint64_t(index));
}

template <typename T>
constexpr int kSignificand = std::is_same_v<T, double>  ? 53
                             : std::is_same_v<T, float> ? 24
                                                        : 8;

// The integer v of a rank.  With more ranks than the significand can count, 2^p of them, chosen by
// the index, contribute 1 or -1 and the others 0.
template <typename T>
int64_t integer_of_rank(const ExactData& data, int64_t rank, int64_t index) {
  const int64_t most = int64_t{1} << kSignificand<T>;
  const uint64_t bits = hash_of(data.seed, rank, index);
  if (data.num_ranks > most) {
    const auto turn = int64_t(hash_of(data.seed, -2, index) % uint64_t(data.num_ranks));
    if ((rank + turn) % data.num_ranks >= most) return 0;
    return bits % 2 == 0 ? 1 : -1;
  }
  const int64_t largest = most / data.num_ranks;
  return int64_t(bits % uint64_t(2 * largest + 1)) - largest;
}

template <typename T>
T scaled(const ExactData& data, int64_t v, int64_t index) {
  const int exponent = int(hash_of(data.seed, -1, index) % 13) - 6;
  if constexpr (std::is_same_v<T, double>)
    return std::ldexp(double(v), exponent);
  else
    return T(std::ldexp(float(v), exponent));
}

template <typename T>
T contribution(const ExactData& data, int64_t rank, int64_t index) {
  if constexpr (std::is_integral_v<T>)
    return T(hash_of(data.seed, rank, index));
  else
    return scaled<T>(data, integer_of_rank<T>(data, rank, index), index);
}

template <typename T>
T sum_of_ranks(const ExactData& data, int64_t index) {
  int64_t sum = 0;
  for (int64_t rank = 0; rank < data.num_ranks; ++rank)
    if constexpr (std::is_integral_v<T>)
      sum = int64_t(uint64_t(sum) + uint64_t(contribution<T>(data, rank, index)));
    else
      sum += integer_of_rank<T>(data, rank, index);
  if constexpr (std::is_integral_v<T>)
    return T(sum);
  else
    return scaled<T>(data, sum, index);
}

// Exact sums never give -0, so every bit counts.
template <typename T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <typename Body>
auto with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF64:
      return body(double());
    case DType::kBF16:
      return body(bf16());
    case DType::kI32:
      return body(int32_t());
    case DType::kU8:
      return body(uint8_t());
    default:
      ASHLAR_ASSERT(dtype == DType::kF32);
      return body(float());
  }
}

}  // namespace

bool has_exact_data(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 ||
         dtype == DType::kI32 || dtype == DType::kU8;
}

void ExactData::fill(const Tensor& tensor, int64_t rank, int64_t first) const {
  with_type(tensor.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < tensor.numel(); ++i)
      tensor.as<T>()[i] = contribution<T>(*this, rank, first + i);
  });
}

int64_t ExactData::num_wrong_copies(const Tensor& got, int64_t rank, int64_t first) const {
  return with_type(got.dtype, [&](auto type) {
    using T = decltype(type);
    int64_t wrong = 0;
    for (int64_t i = 0; i < got.numel(); ++i)
      wrong += !same_bits<T>(got.as<T>()[i], contribution<T>(*this, rank, first + i));
    return wrong;
  });
}

int64_t ExactData::num_wrong_sums(const Tensor& got, int64_t first) const {
  return with_type(got.dtype, [&](auto type) {
    using T = decltype(type);
    int64_t wrong = 0;
    for (int64_t i = 0; i < got.numel(); ++i)
      wrong += !same_bits<T>(got.as<T>()[i], sum_of_ranks<T>(*this, first + i));
    return wrong;
  });
}

}  // namespace ashlar::bench
