// Who sees to it that a unit's operands are in memory when they are read, and takes its gradients
// away when they are made.  The model's forward and backward call it around every block; where all
// of the model stands here it does nothing.
#pragma once

#include "ashlar/kernels/context.h"

namespace ashlar::nn {

class Residency {
 public:
  enum class Use : uint8_t {
    kForward,
    kReplay,    // forward again, for the sake of the backward that follows at once
    kBackward,  // reads operands, and makes gradients
  };
  virtual ~Residency() = default;
  virtual void acquire(const kernels::Context&, int64_t unit, Use) { (void)unit; }
  virtual void release(const kernels::Context&, int64_t unit, Use) { (void)unit; }
};

}  // namespace ashlar::nn
