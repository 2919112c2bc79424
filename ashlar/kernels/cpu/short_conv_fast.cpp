// How it works.  A task passes over its tokens once for each block of channels.  The weights of a
// block are first reordered tap by tap, so that those of a vector of channels are adjacent; their
// gradients are reordered back afterwards.  Backward keeps ds of the last w tokens in a ring: when
// ds_t is known, dx of token t - (w - 1) is complete.
//
//   ring    ds_{t-3}  ds_{t-2}  ds_{t-1}  ds_t       w = 4
//              \         |         |       /         dx_{t-3} = sum_j W_j ds_{t-3+j}
//
// A task also computes ds of the w - 1 tokens behind its own, which reach back to its own.  ds is 0
// before and behind a segment, so rows of the halo, just before it, get their sums in the same way.
//
// Four taps (every model's) away from a halo, in tensors of one type, have loops of their own: a
// vector of channels walks through 16 tokens with x and ds of the last ones in registers.
#include "ashlar/kernels/cpu/short_conv_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/short_conv_fast.cpp"
#include "ashlar/kernels/cpu/simd/dispatch.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ashlar/kernels/cpu/simd/vector_math-inl.h"
// clang-format on

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kMostTaps = 8;     // a power of two: rows of a ring
constexpr int64_t kChannels = 1024;  // of a block
using Rows = float[kMostTaps][kChannels];

// A block of channels, [begin, begin + count).
struct Block {
  int64_t begin, count;
};

// weights[j]: of the tap on j tokens before.
template <typename Args>
void read_weights(const Args& x, const Block& block, Rows weights) {
  const float* from = reinterpret_cast<const float*>(x.w.data()) + block.begin * x.taps;
  for (int64_t c = 0; c < block.count; ++c)
    for (int64_t j = 0; j < x.taps; ++j) weights[j][c] = from[c * x.taps + x.taps - 1 - j];
}

// x of a token and of the tokens before it, in a block: rows of elements R.
template <typename R>
struct Inputs {
  R row[kMostTaps];
};

alignas(64) constexpr float kZeros[kChannels] = {};

// Rows as pointers, where none of them is in the halo; Z: the type of x.
template <typename Z, typename Args>
Inputs<const Z*> pointers_of(const Args& x, const Block& block, const ConvNeighbours& p,
                             int64_t t) {
  const Z* own = reinterpret_cast<const Z*>(x.x.data()) + t * x.x_stride + block.begin;
  Inputs<const Z*> inputs;
  for (int64_t j = 0; j < x.taps; ++j)
    inputs.row[j] = j > p.position ? reinterpret_cast<const Z*>(kZeros) : own - j * x.x_stride;
  return inputs;
}

// The rows as copies, where some are in the halo.
template <typename Args>
Inputs<const float*> copies_of(const Args& x, const Block& block, const ConvNeighbours& p,
                               int64_t t, Rows copies) {
  Inputs<const float*> inputs;
  for (int64_t j = 0; j < x.taps; ++j) {
    const bool here = j <= p.back;
    const int64_t in_halo = ((p.halo + 1) * (x.taps - 1) - (j - p.back)) * x.C;
    const int64_t at = (here ? (t - j) * x.x_stride : in_halo) + block.begin;
    for (int64_t c = 0; c < block.count; ++c)
      copies[j][c] = j > p.position ? 0 : (here ? x.x : x.halo)[at + c];
    inputs.row[j] = copies[j];
  }
  return inputs;
}

// Calls use(inputs of token t).
template <typename Args, typename Use>
HWY_INLINE void with_inputs(const Args& x, const Block& block, int64_t t, Use use) {
  const ConvNeighbours p = neighbours_of(*x.sequence, t);
  HWY_ALIGN Rows copies;
  if (std::min(x.taps - 1, p.position) > p.back)
    use(copies_of(x, block, p, t, copies));
  else if (x.x.dtype() == DType::kBF16)
    use(pointers_of<bf16>(x, block, p, t));
  else
    use(pointers_of<float>(x, block, p, t));
}

template <typename R, typename Count>
HWY_INLINE V convolved(const Rows weights, const Inputs<R>& inputs, int64_t taps, int64_t i,
                       Count n) {
  V sum = set(0);
  for (int64_t j = taps - 1; j >= 0; --j)
    sum = hn::MulAdd(load(weights[j] + i, n), load(inputs.row[j] + i, n), sum);
  return sum;
}

template <typename Body>
void for_blocks(int64_t C, Body body) {
  for (int64_t c = 0; c < C; c += kChannels) body(Block{c, std::min(kChannels, C - c)});
}

constexpr int64_t kFour = 4, kRun = 16;  // taps; tokens that a vector of channels walks through

// Four weights, or elements of a token and of the three before it.  Not an array, which compilers
// keep in memory.
struct FourVectors {
  V first, second, third, fourth;
  HWY_INLINE void push(V next) {
    fourth = third;
    third = second;
    second = first;
    first = next;
  }
};
template <typename Count>
HWY_INLINE FourVectors load_four(const Rows rows, int64_t i, Count n) {
  return {load(rows[0] + i, n), load(rows[1] + i, n), load(rows[2] + i, n), load(rows[3] + i, n)};
}
// The sum of products, from the fourth to the first.
HWY_INLINE V convolved(const FourVectors& w, const FourVectors& x) {
  V sum = hn::MulAdd(w.fourth, x.fourth, set(0));
  sum = hn::MulAdd(w.third, x.third, sum);
  sum = hn::MulAdd(w.second, x.second, sum);
  return hn::MulAdd(w.first, x.first, sum);
}

// dx, of weights and the gradients of a token and of the three before it.
HWY_INLINE V reached(const FourVectors& w, const FourVectors& ds) {
  V sum = hn::MulAdd(w.first, ds.fourth, set(0));
  sum = hn::MulAdd(w.second, ds.third, sum);
  sum = hn::MulAdd(w.third, ds.second, sum);
  return hn::MulAdd(w.fourth, ds.first, sum);
}

// Elements of T from token t on, in rows `stride` apart, and whether tokens before t are seen.
template <typename T>
struct FourTaps {
  const T* x;
  int64_t stride, position;
  // The inputs before the first token: pushing x of it makes its own.
  template <typename Count>
  HWY_INLINE FourVectors before(int64_t i, Count n) const {
    FourVectors rows{set(0), set(0), set(0), set(0)};
    if (position >= 1) rows.first = load(x - stride + i, n);
    if (position >= 2) rows.second = load(x - 2 * stride + i, n);
    if (position >= 3) rows.third = load(x - 3 * stride + i, n);
    return rows;
  }
};
template <typename T, typename Args>
FourTaps<T> four_taps(const Args& x, const Block& block, int64_t t) {
  return {reinterpret_cast<const T*>(x.x.data()) + t * x.x_stride + block.begin, x.x_stride,
          neighbours_of(*x.sequence, t).position};
}

// Whether inputs of a token and of those behind it in its segment are rows of x.
template <typename Args>
bool reads_rows(const Args& x, int64_t t) {
  const ConvNeighbours p = neighbours_of(*x.sequence, t);
  return x.taps == kFour && std::min(x.taps - 1, p.position) <= p.back;
}

// y of `count` tokens of a segment from t on.
template <typename T>
void convolve_four(const ShortConvArgs<float>& x, const Block& block, int64_t t, int64_t count,
                   const Rows weights) {
  const FourTaps<T> taps = four_taps<T>(x, block, t);
  T* y = reinterpret_cast<T*>(x.y.data()) + t * x.C + block.begin;
  for_lanes(block.count, [&](int64_t i, auto n) HWY_ATTR {
    const FourVectors w = load_four(weights, i, n);
    FourVectors inputs = taps.before(i, n);
    for (int64_t k = 0; k < count; ++k) {
      inputs.push(load(taps.x + k * x.x_stride + i, n));
      store(silu(convolved(w, inputs)).value, y + k * x.C + i, n);
    }
  });
}

void short_conv_rows(const ShortConvArgs<float>& x, int64_t begin, int64_t end) {
  for_blocks(x.C, [&](const Block& block) HWY_ATTR {
    HWY_ALIGN Rows weights;
    read_weights(x, block, weights);
    for (int64_t t = begin; t < end;) {
      const int64_t run = std::min({end - t, kRun, neighbours_of(*x.sequence, t).ahead + 1});
      if (reads_rows(x, t) && x.x.dtype() == x.y.dtype()) {
        x.x.dtype() == DType::kBF16 ? convolve_four<bf16>(x, block, t, run, weights)
                                    : convolve_four<float>(x, block, t, run, weights);
        t += run;
        continue;
      }
      with_inputs(x, block, t, [&](const auto& inputs) HWY_ATTR {
        for_lanes(block.count, [&](int64_t i, auto n) HWY_ATTR {
          const V s = convolved(weights, inputs, x.taps, i, n);
          store(silu(s).value, x.y, t * x.C + block.begin + i, n);
        });
      });
      ++t;
    }
  });
}

// Backward's memory for a block.  ds of token t is in ring[t mod kMostTaps].
struct Scratch {
  Rows weights, dweights, ring;
  float* ds(int64_t t) { return ring[t & (kMostTaps - 1)]; }
};

// Computes ds of a token; of one of the task's own adds to dweights.
void token_gradient(const ShortConvGradientArgs<float>& x, const Block& block, int64_t t, bool own,
                    Scratch& scratch) {
  float* to = scratch.ds(t);
  with_inputs(x, block, t, [&](const auto& inputs) HWY_ATTR {
    for_lanes(block.count, [&](int64_t i, auto n) HWY_ATTR {
      const V s = convolved(scratch.weights, inputs, x.taps, i, n);
      const V ds = hn::Mul(load(x.dy, t * x.C + block.begin + i, n), silu(s).slope);
      store(ds, to + i, n);
      for (int64_t j = 0; own && j < x.taps; ++j)
        add_to(hn::Mul(ds, load(inputs.row[j] + i, n)), scratch.dweights[j] + i, n);
    });
  });
}

// Stores dx of token u, from ds of it and the w - 1 tokens behind it.
void input_gradient(const Block& block, int64_t taps, Scratch& scratch, int64_t u,
                    const Cells<float>& dx, int64_t at) {
  for_lanes(block.count, [&](int64_t i, auto n) HWY_ATTR {
    V sum = set(0);
    for (int64_t j = 0; j < taps; ++j)
      sum = hn::MulAdd(load(scratch.weights[j] + i, n), load(scratch.ds(u + j) + i, n), sum);
    store(sum, dx, at + i, n);
  });
}

// Tokens [begin, end) of one segment, and if they begin it the rows of its halo.
void piece_gradient(const ShortConvGradientArgs<float>& x, const Block& block, int64_t begin,
                    int64_t end, Scratch& scratch) {
  const int64_t reach = x.taps - 1;
  const ConvNeighbours p = neighbours_of(*x.sequence, begin);
  const int64_t num_halo_rows = p.back == 0 && p.halo >= 0 ? reach : 0;
  for (int64_t t = begin - reach; t < begin; ++t) std::fill_n(scratch.ds(t), block.count, 0.0f);
  for (int64_t t = begin; t < end + reach; ++t) {
    if (t <= begin + p.ahead)
      token_gradient(x, block, t, t < end, scratch);
    else
      std::fill_n(scratch.ds(t), block.count, 0.0f);
    const int64_t u = t - reach, before = begin - u;
    if (before <= 0) {
      input_gradient(block, x.taps, scratch, u, x.dx, u * x.dx_stride + block.begin);
    } else if (before <= num_halo_rows) {
      const int64_t at = ((p.halo + 1) * reach - before) * x.C + block.begin;
      float* dhalo = reinterpret_cast<float*>(x.dhalo.data()) + at;
      if (before <= p.position)
        input_gradient(block, x.taps, scratch, u, x.dhalo, at);
      else
        std::fill_n(dhalo, block.count, 0.0f);
    }
  }
}

// Tokens [t, t + count) of a segment: computes ds, adds to dweights where the tokens are the task's
// own, and stores dx of the token three before each, unless the piece begins behind it.
template <typename T, bool kOwn, bool kStores>
void four_gradients(const ShortConvGradientArgs<float>& x, const Block& block, int64_t t,
                    int64_t count, Scratch& scratch) {
  const FourTaps<T> taps = four_taps<T>(x, block, t);
  const T* dy = reinterpret_cast<const T*>(x.dy.data()) + t * x.C + block.begin;
  T* dx = reinterpret_cast<T*>(x.dx.data()) + (t - 3) * x.dx_stride + block.begin;
  for_lanes(block.count, [&](int64_t i, auto n) HWY_ATTR {
    const FourVectors w = load_four(scratch.weights, i, n);
    FourVectors inputs = taps.before(i, n), dw = load_four(scratch.dweights, i, n);
    FourVectors ds{load(scratch.ds(t - 1) + i, n), load(scratch.ds(t - 2) + i, n),
                   load(scratch.ds(t - 3) + i, n), set(0)};
    for (int64_t k = 0; k < count; ++k) {
      inputs.push(load(taps.x + k * x.x_stride + i, n));
      const V slope = silu(convolved(w, inputs)).slope;
      ds.push(hn::Mul(load(dy + k * x.C + i, n), slope));
      if (kOwn) {
        dw.first = hn::Add(dw.first, hn::Mul(ds.first, inputs.first));
        dw.second = hn::Add(dw.second, hn::Mul(ds.first, inputs.second));
        dw.third = hn::Add(dw.third, hn::Mul(ds.first, inputs.third));
        dw.fourth = hn::Add(dw.fourth, hn::Mul(ds.first, inputs.fourth));
      }
      if (kStores) store(reached(w, ds), dx + k * x.dx_stride + i, n);
    }
    store(ds.first, scratch.ds(t + count - 1) + i, n);
    store(ds.second, scratch.ds(t + count - 2) + i, n);
    store(ds.third, scratch.ds(t + count - 3) + i, n);
    if (!kOwn) return;
    store(dw.first, scratch.dweights[0] + i, n);
    store(dw.second, scratch.dweights[1] + i, n);
    store(dw.third, scratch.dweights[2] + i, n);
    store(dw.fourth, scratch.dweights[3] + i, n);
  });
}

// As piece_gradient, of three tokens or more away from a halo.
template <typename T>
void piece_of_four(const ShortConvGradientArgs<float>& x, const Block& block, int64_t begin,
                   int64_t end, Scratch& scratch) {
  for (int64_t t = begin - 3; t < begin; ++t) std::fill_n(scratch.ds(t), block.count, 0.0f);
  four_gradients<T, true, false>(x, block, begin, 3, scratch);
  for (int64_t t = begin + 3; t < end; t += kRun)
    four_gradients<T, true, true>(x, block, t, std::min(kRun, end - t), scratch);
  const int64_t behind =
      std::min<int64_t>(3, begin + neighbours_of(*x.sequence, begin).ahead + 1 - end);
  if (behind > 0) four_gradients<T, false, true>(x, block, end, behind, scratch);
  for (int64_t t = end + behind; t < end + 3; ++t) {
    std::fill_n(scratch.ds(t), block.count, 0.0f);
    input_gradient(block, x.taps, scratch, t - 3, x.dx, (t - 3) * x.dx_stride + block.begin);
  }
}

void short_conv_gradient_rows(const ShortConvGradientArgs<float>& x, int64_t begin, int64_t end,
                              float* dw) {
  const bool one_type = x.x.dtype() == x.dy.dtype() && x.x.dtype() == x.dx.dtype();
  for_blocks(x.C, [&](const Block& block) HWY_ATTR {
    HWY_ALIGN Scratch scratch;
    read_weights(x, block, scratch.weights);
    for (int64_t j = 0; j < x.taps; ++j) std::fill_n(scratch.dweights[j], block.count, 0.0f);
    for (int64_t t = begin; t < end;) {
      const int64_t stop = std::min(end, t + neighbours_of(*x.sequence, t).ahead + 1);
      if (!one_type || stop - t < 3 || !reads_rows(x, t))
        piece_gradient(x, block, t, stop, scratch);
      else if (x.x.dtype() == DType::kBF16)
        piece_of_four<bf16>(x, block, t, stop, scratch);
      else
        piece_of_four<float>(x, block, t, stop, scratch);
      t = stop;
    }
    for (int64_t c = 0; c < block.count; ++c)
      for (int64_t j = 0; j < x.taps; ++j)
        dw[(block.begin + c) * x.taps + x.taps - 1 - j] += scratch.dweights[j][c];
  });
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(short_conv_rows);
HWY_EXPORT(short_conv_gradient_rows);

void short_conv_rows_fast(const ShortConvArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(short_conv_rows))(args, begin, end);
}
void short_conv_gradient_rows_fast(const ShortConvGradientArgs<float>& args, int64_t begin,
                                   int64_t end, float* partial) {
  dispatch(HWY_DISPATCH_TABLE(short_conv_gradient_rows))(args, begin, end, partial);
}

}  // namespace ashlar::kernels::cpu
#endif
