// newton_schulz.h: products of stacks by the library of the device's vendor.  The matrices of a
// stack are orthogonalised together, as many at a time as kBatchBytes of workspace allow.
//
// In bf16 the workspace holds X and the memory of the tensor, where fp32 takes twice as much, its
// successor; in fp32 it is the other way round.  Symmetric products are computed whole.
#include <algorithm>

#include "ashlar/kernels/cpu/optim/newton_schulz_reference.h"
#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/blas/blas.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {
namespace {

using cpu::newton_schulz::kA;
using cpu::newton_schulz::kB;
using cpu::newton_schulz::kC;
using cpu::newton_schulz::kTiny;

constexpr int64_t kBatchBytes = int64_t(512) << 20;

// A stack of matrices as a factor of a product.
struct StackFactor {
  Tensor stack;
  bool transposed = false;
};

class MatrixBatch {
 public:
  MatrixBatch(const Context& ctx, DType compute, const Shape& shape, int64_t most_matrices,
              int steps)
      : ctx_(ctx),
        compute_(compute),
        M_(shape[1]),
        N_(shape[2]),
        through_gram_(newton_schulz_uses_gram(ctx, compute, M_, N_, steps)) {
    const int64_t m = std::min(M_, N_), squares = through_gram_ ? 4 : 2;
    const int64_t matrix_bytes = (M_ * N_ + squares * m * m) * size_of(compute);
    size_ = std::clamp<int64_t>(kBatchBytes / matrix_bytes, 1, most_matrices);
    Arena& workspace = *ctx.workspace;
    partials_ = workspace.take(DType::kF64, {size_, ceil_div(M_ * N_, device::kSquaresOfPartial)});
    factors_ = workspace.take(DType::kF32, {size_});
    other_ = workspace.take(compute, {size_, M_, N_});
    for (int64_t i = 0; i < squares; ++i) squares_[i] = workspace.take(compute, {size_, m, m});
    room_ = workspace.take(DType::kU8, {blas::workspace_bytes(ctx)});
  }

  int64_t size() const { return size_; }

  // x: at most size() matrices.
  void run(const Tensor& x, int steps) const {
    const int64_t count = x.shape[0];
    const Tensor other = other_.slice(0, count);
    Tensor own = x;  // in bf16 half of its memory
    own.dtype = compute_;
    Tensor now = compute_ == DType::kF32 ? own : other;
    scale(x, now);
    bool in_own = compute_ == DType::kF32;
    if (through_gram_) {
      multiply(sided(iterate_gram(now, steps), now), other);
      in_own = false;
    } else {
      Tensor next = in_own ? other : own;
      for (int step = 0; step < steps; ++step, in_own = !in_own) {
        iterate(now, next);
        std::swap(now, next);
      }
    }
    store(in_own, own, other, x);
  }

 private:
  // The factors of a product of a square stack and X, on X's short side.
  struct Pair {
    StackFactor a, b;
  };
  Pair sided(const Tensor& square, const Tensor& x) const {
    return M_ > N_ ? Pair{{x}, {square}} : Pair{{square}, {x}};
  }

  // d = alpha a b + beta c
  void multiply(const Pair& factors, const Tensor& d, double alpha = 1, double beta = 0,
                const Tensor& c = {}) const {
    const auto stack_of = [](const Tensor& t) -> blas::Stack {
      return {t.data, t.dtype, t.shape[2], t.shape[1] * t.shape[2]};
    };
    const auto& [a, b] = factors;
    blas::multiply(ctx_,
                   {.count = d.shape[0],
                    .rows = d.shape[1],
                    .cols = d.shape[2],
                    .depth = a.stack.shape[a.transposed ? 1 : 2],
                    .a = stack_of(a.stack),
                    .b = stack_of(b.stack),
                    .c = stack_of(c ? c : d),
                    .d = stack_of(d),
                    .transposes_a = a.transposed,
                    .transposes_b = b.transposed,
                    .alpha = float(alpha),
                    .beta = float(beta)},
                   room_);
  }

  void scale(const Tensor& x, const Tensor& to) const {
    launch(ctx_, device::NewtonSchulzScale{.x = floats(x),
                                           .to = elements(to),
                                           .partials = reinterpret_cast<double*>(partials_.data),
                                           .factors = floats(factors_),
                                           .count = x.shape[0],
                                           .size = M_ * N_,
                                           .tiny = float(kTiny),
                                           .by_vectors = by_vectors(M_ * N_, {x, to})});
  }

  // S = b A + c A^2 of A = X X^T, on X's short side.
  void make_gram(const Tensor& x, const Tensor& gram) const {
    multiply({{x, M_ > N_}, {x, M_ <= N_}}, gram);
  }
  void make_polynomial(const Tensor& gram, const Tensor& s) const {
    multiply({{gram}, {gram}}, s, kC, kB, gram);
  }

  void iterate(const Tensor& x, const Tensor& next) const {
    const int64_t count = x.shape[0];
    const Tensor gram = squares_[0].slice(0, count), s = squares_[1].slice(0, count);
    make_gram(x, gram);
    make_polynomial(gram, s);
    multiply(sided(s, x), next, 1, kA, x);
  }

  // Returns the product Q of all factors P = a I + S: Q <- P Q, A <- P A P.
  Tensor iterate_gram(const Tensor& x, int steps) const {
    const int64_t count = x.shape[0];
    const Tensor gram = squares_[0].slice(0, count), s = squares_[1].slice(0, count);
    Tensor half = squares_[2].slice(0, count), q = squares_[3].slice(0, count);
    make_gram(x, gram);
    for (int step = 0; step < steps; ++step) {
      make_polynomial(gram, s);
      if (step == 0) {
        launch(ctx_, device::AddIdentity{.from = floats(s),
                                         .to = floats(q),
                                         .factor = float(kA),
                                         .count = count,
                                         .side = s.shape[1]});
      } else {
        multiply({{s}, {q}}, half, 1, kA, q);
        std::swap(half, q);
      }
      if (step + 1 == steps) break;
      multiply({{s}, {gram}}, half, 1, kA, gram);
      multiply({{half}, {s}}, gram, 1, kA, half);
    }
    return q;
  }

  // x = the result, which is in `own`, x's memory, or in `other`.
  void store(bool in_own, const Tensor& own, const Tensor& other, const Tensor& x) const {
    if (in_own && compute_ == DType::kF32) return;
    if (in_own) gpu::copy(ctx_, Matrix::of(own), Matrix::of(other));
    gpu::copy(ctx_, Matrix::of(other), Matrix::of(x));
  }

  const Context& ctx_;
  DType compute_;
  int64_t M_, N_, size_;
  bool through_gram_;
  Tensor partials_, factors_, other_, room_;
  Tensor squares_[4];  // A, S; through the Gram matrix also P A and Q
};

}  // namespace

void orthogonalize(const Context& ctx, DType compute, std::span<const Tensor> stacks_GMN,
                   int steps) {
  ASHLAR_ASSERT(compute == DType::kF32 || compute == DType::kBF16);
  int64_t most = 0;
  for (const Tensor& x_GMN : stacks_GMN) most = std::max(most, x_GMN.shape[0]);
  if (most == 0 || stacks_GMN[0].shape[1] * stacks_GMN[0].shape[2] == 0) return;
  const Arena::Scope scope(*ctx.workspace);
  const MatrixBatch batch(ctx, compute, stacks_GMN[0].shape, most, steps);
  for (const Tensor& x_GMN : stacks_GMN)
    for (int64_t g = 0; g < x_GMN.shape[0]; g += batch.size())
      batch.run(x_GMN.slice(g, std::min(g + batch.size(), x_GMN.shape[0])), steps);
}

}  // namespace ashlar::kernels::gpu
