// Who sees to it that a block's operands are in memory when they are read, and takes its gradients
// away when they are made.  The model's forward and backward call it around every block; where all
// of the model stands here it does nothing.
//
// What will be used, and when, is known before a step begins: a list of uses, in their order.
#pragma once

#include <cstdint>
#include <span>

#include "ashlar/kernels/context.h"

namespace ashlar::nn {

struct Use {
  enum class Why : uint8_t {
    kForward,
    kRecompute,  // forward once more, for the backward that follows at once
    kBackward,   // reads operands, and makes gradients of weights
    kInputs,     // backward without the gradients of weights that wait (late_products.h)
    kWeights,    // which come here: reads no operands
  };
  Why why;
  int32_t block;
  bool makes_gradients() const { return why == Why::kBackward || why == Why::kWeights; }
  bool reads_operands() const { return why != Why::kWeights; }
  friend bool operator==(const Use&, const Use&) = default;
};

class Residency {
 public:
  virtual ~Residency() = default;
  // All uses until the next begin, which acquire and release then follow.  The list outlives them.
  virtual void begin(std::span<const Use>) {}
  virtual void acquire(const kernels::Context&, const Use&) {}
  virtual void release(const kernels::Context&, const Use&) {}
};

}  // namespace ashlar::nn
