// The matrices of a call of Newton-Schulz, from all its stacks, and how threads share the work.
#pragma once

#include <span>

#include "ashlar/core/function_ref.h"
#include "ashlar/kernels/context.h"

namespace ashlar::kernels::cpu::newton_schulz {

class Stacks {
 public:
  Stacks(const Context& ctx, std::span<const Tensor> stacks_GMN)
      : stacks_GMN_(stacks_GMN), threads_(ctx.threads) {
    for (const Tensor& x_GMN : stacks_GMN) count_ += x_GMN.shape[0];
    // Side by side where that keeps every thread busy to the end, or nearly.
    const int64_t threads = threads_->size();
    side_by_side_ = count_ % threads == 0 || count_ >= 4 * threads;
  }
  int64_t M() const { return stacks_GMN_[0].shape[1]; }
  int64_t N() const { return stacks_GMN_[0].shape[2]; }
  bool empty() const { return count_ * M() * N() == 0; }
  // Matrices at a time, and threads that work on one.
  int64_t slots() const { return side_by_side_ ? threads_->size() : 1; }
  int64_t workers() const { return side_by_side_ ? 1 : threads_->size(); }

  // Calls body(threads, slot, x_MN) for every matrix; threads is null if the calling thread works
  // on it alone.
  void run(function_ref<void(Threads*, int64_t, float*)> body) const {
    if (side_by_side_)
      threads_->run(count_, [&](int64_t g, int worker) { body(nullptr, worker, matrix(g)); });
    else
      for (int64_t g = 0; g < count_; ++g) body(threads_, 0, matrix(g));
  }

 private:
  float* matrix(int64_t g) const {
    const Tensor* x_GMN = stacks_GMN_.data();
    for (; g >= x_GMN->shape[0]; ++x_GMN) g -= x_GMN->shape[0];
    return x_GMN->as<float>() + g * M() * N();
  }
  std::span<const Tensor> stacks_GMN_;
  Threads* threads_;
  int64_t count_ = 0;
  bool side_by_side_ = false;
};

}  // namespace ashlar::kernels::cpu::newton_schulz
