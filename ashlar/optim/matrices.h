// The matrices of Muon parameters, orthogonalised where they lie: in the gradients.
//
// A step writes the Newton-Schulz inputs of all Muon parameters over their gradients, calls start
// and finish, and then reads the orthogonal matrices out of the same memory.  Who keeps matrices
// whole needs LocalMatrices; who keeps slices of them brings them together between the two calls.
#pragma once

#include <vector>

#include "ashlar/kernels/context.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::optim {

class Matrices {
 public:
  virtual ~Matrices() = default;
  // Inputs are written.  Begins what may go on while the caller computes; it must not touch the
  // gradients of Muon parameters before finish returns.
  virtual void start(const kernels::Context&) = 0;
  virtual void finish(const kernels::Context&) = 0;
};

// Every matrix whole and in one stretch of memory.
class LocalMatrices final : public Matrices {
 public:
  // Takes the gradients of the Muon parameters among `parameters`, each of whole matrices.
  LocalMatrices(const std::vector<Parameter>& parameters, DType compute, int num_steps);
  void start(const kernels::Context&) override {}
  void finish(const kernels::Context&) override;

 private:
  std::vector<Tensor> stacks_GMN_;
  DType compute_;
  int num_steps_;
};

}  // namespace ashlar::optim
