#include "ashlar/nn/init.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ashlar/core/rng.h"
#include "ashlar/kernels/copy.h"
#include "ashlar/kernels/update.h"
#include "ashlar/tensor/box_order.h"
#include "ashlar/tensor/host_bytes.h"

namespace ashlar::nn {
namespace {

using kernels::Context;

// Makes four normals from one Philox block (Box-Muller on 32-bit uniforms): cheaper than one block
// a number.
void normals_of_block(const Rng& rng, uint64_t block, float (&out)[4]) {
  const auto bits = rng.block(block);
  for (int pair = 0; pair < 2; ++pair) {
    const float u = (float(bits[size_t(2 * pair)] >> 8) + 0.5f) * 0x1p-24f;
    const float angle =
        float(bits[size_t(2 * pair + 1)] >> 8) * (0x1p-23f * std::numbers::pi_v<float>);
    const float radius = std::sqrt(-2.0f * std::log(u));
    out[2 * pair] = radius * std::cos(angle);
    out[2 * pair + 1] = radius * std::sin(angle);
  }
}

// Elements [begin, begin + count) of a normal tensor.
template <typename T>
void normals(const Rng& rng, double std, int64_t begin, int64_t count, T* out) {
  float four[4];
  for (int64_t block = begin / 4; block * 4 < begin + count; ++block) {
    normals_of_block(rng, uint64_t(block), four);
    const int64_t first = std::max(begin, block * 4);
    const int64_t end = std::min(begin + count, block * 4 + 4);
    for (int64_t i = first; i < end; ++i) out[i - begin] = T(four[i - block * 4] * float(std));
  }
}

template <typename T>
void uniforms(const Rng& rng, double bound, int64_t begin, int64_t count, T* out) {
  for (int64_t i = 0; i < count; ++i)
    out[i] = T(float((2.0 * rng.uniform(uint64_t(begin + i)) - 1.0) * bound));
}

template <typename T>
void log_uniforms(const Rng& rng, double most, int64_t begin, int64_t count, T* out) {
  constexpr double kLeast = 1e-3;  // of `most`: the logarithm of 0 is none
  for (int64_t i = 0; i < count; ++i) {
    const double u = rng.uniform(uint64_t(begin + i));
    out[i] = T(float(std::log((kLeast + (1 - kLeast) * u) * most)));
  }
}

// Calls fill(first logical element, count, out) over all runs of the piece, a part at a time.
template <typename T>
void for_runs(const Context& ctx, const Piece& piece,
              function_ref<void(int64_t begin, int64_t count, T* out)> fill) {
  constexpr int64_t kElements = 2048;
  parallel_for(*ctx.threads, piece.data.numel(), 16384, [&](int64_t begin, int64_t end) {
    T values[kElements];
    int64_t at = begin;
    for_each_run(piece.logical.global_shape, piece.box, begin, end,
                 [&](int64_t index, int64_t count) {
                   for (int64_t part = 0; count > 0; index += part, count -= part, at += part) {
                     part = std::min(count, kElements);
                     fill(index, part, values);
                     copy_from_host(piece.data, at * int64_t(sizeof(T)),
                                    std::as_bytes(std::span(values).first(size_t(part))));
                   }
                 });
    finish_copies_from_host();
  });
}

template <typename T>
void fill(const Context& ctx, const ParameterInfo& info, const Piece& piece, uint64_t seed) {
  const Tensor& tensor = piece.data;
  const double value = info.init.value;
  const Rng rng(seed, info.name);
  switch (info.init.kind) {
    case InitRule::Kind::kNormal:
      return for_runs<T>(ctx, piece, [&](int64_t begin, int64_t count, T* out) {
        normals(rng, value, begin, count, out);
      });
    case InitRule::Kind::kUniform:
      return for_runs<T>(ctx, piece, [&](int64_t begin, int64_t count, T* out) {
        uniforms(rng, value, begin, count, out);
      });
    case InitRule::Kind::kLogUniform:
      return for_runs<T>(ctx, piece, [&](int64_t begin, int64_t count, T* out) {
        log_uniforms(rng, value, begin, count, out);
      });
    case InitRule::Kind::kConstant:
      return kernels::fill(ctx, tensor, value);
    case InitRule::Kind::kBalancing:
      kernels::fill(ctx, tensor, 0.0);
      kernels::fill(ctx, tensor.slice(tensor.numel() - 1, tensor.numel()), -1.0);
  }
}

}  // namespace

void initialize(const Context& ctx, const ParameterInfo& info, const Piece& piece, uint64_t seed) {
  ASHLAR_ASSERT(piece.data.numel() == piece.box.length.numel());
  if (ctx.meta()) return;
  switch (piece.data.dtype) {
    case DType::kF64:
      return fill<double>(ctx, info, piece, seed);
    case DType::kBF16:  // frozen
      return fill<bf16>(ctx, info, piece, seed);
    default:
      return fill<float>(ctx, info, piece, seed);
  }
}

void initialize(const Context& ctx, const ModelWeights& weights, uint64_t seed) {
  weights.for_each([&](const ParameterInfo& info, const Tensor& value, const Tensor&) {
    initialize(ctx, info, whole_piece(info, value), seed);
  });
}

namespace {

bf16 bf16_element(const Tensor& data, int64_t i) {
  bf16 value;
  copy_to_host(data, i * int64_t(sizeof(value)), std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

// Element number i of a piece.
double element(const Tensor& data, int64_t i) {
  const auto read = [&](auto value) {
    copy_to_host(data, i * int64_t(sizeof(value)), std::as_writable_bytes(std::span(&value, 1)));
    return double(value);
  };
  if (data.dtype == DType::kBF16) return double(float(bf16_element(data, i)));
  return data.dtype == DType::kF64 ? read(double{}) : read(float{});
}

// Whether element i of a table's piece, which is not finite, is in a row that no token uses.
bool is_in_spare_row(const Piece& piece, int64_t i, int64_t num_tokens) {
  const Shape& table = piece.logical.global_shape;
  const int64_t index = index_in_tensor(table, piece.box, i);
  if (num_tokens > 0) return index / table[1] >= num_tokens;
  if (index % table[1] != 0 && i != 0) return false;  // i 0: the row begins in another piece
  for (int64_t n = piece.data.numel(); i < n; ++i)
    if (std::isfinite(element(piece.data, i))) return false;
  return true;
}

}  // namespace

void require_finite(const Context& ctx, std::span<const Piece> weights, const ModelSpec& model,
                    const std::string& source, function_ref<int64_t()> num_tokens) {
  for (const Piece& piece : weights) {
    const int64_t index = kernels::first_non_finite(ctx, piece.data);
    if (index < 0) continue;
    if (!model.tied_head && piece.logical.name == "model.embed_tokens.weight" &&
        is_in_spare_row(piece, index, num_tokens()))
      continue;
    ASHLAR_FAIL(kNumeric, "{}: {}[{}] is {}; expected finite weights", source, piece.logical.name,
                index_in_tensor(piece.logical.global_shape, piece.box, index),
                element(piece.data, index));
  }
}

}  // namespace ashlar::nn
