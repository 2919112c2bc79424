// The matrices of Muon parameters, orthogonalised in place, in the gradients.
//
// A step writes the Newton-Schulz inputs of all Muon parameters over their gradients, calls start
// and finish, and then reads the orthogonal matrices from the same memory.  LocalMatrices serves a
// rank that keeps whole matrices; ranks that keep slices gather them between the two calls.
#pragma once

#include <vector>

#include "ashlar/kernels/context.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::optim {

class Matrices {
 public:
  virtual ~Matrices() = default;
  // To be called once the inputs are written.  Begins work that may run while the caller computes;
  // the caller must not touch the gradients of Muon parameters before finish returns.
  virtual void start(const kernels::Context&) = 0;
  virtual void finish(const kernels::Context&) = 0;
};

// Stacks [G, M, N] in groups of equal M and N, in the order of the first of each.
std::vector<std::vector<Tensor>> by_shape(const std::vector<Tensor>& stacks_GMN);

// Matrices that are whole, each in one stretch of memory.
class LocalMatrices final : public Matrices {
 public:
  // Takes the gradients of the Muon parameters among `parameters`, each of whole matrices.
  LocalMatrices(const std::vector<Parameter>& parameters, DType compute, int num_steps);
  void start(const kernels::Context&) override {}
  void finish(const kernels::Context&) override;

 private:
  std::vector<std::vector<Tensor>> stacks_GMN_;  // by shape
  DType compute_;
  int num_steps_;
};

}  // namespace ashlar::optim
