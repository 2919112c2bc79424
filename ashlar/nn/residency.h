// A residency brings a block's operands into memory before they are read, and takes its gradients
// away after they are made.  The model's forward and backward call it around every block.  The base
// class does nothing: it serves a device that holds the whole model.
//
// The uses of blocks in a step, and their order, are known before the step begins.
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
    kInputs,     // backward without the gradients of weights that are deferred (late_products.h)
    kWeights,    // the deferred gradients; reads no operands
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
  // Announces all uses until the next begin; acquire and release then follow this list, which
  // outlives them.
  virtual void begin(std::span<const Use>) {}
  virtual void acquire(const kernels::Context&, const Use&) {}
  virtual void release(const kernels::Context&, const Use&) {}
};

}  // namespace ashlar::nn
