// AdamW and Muon over the parameters of a model, or over the pieces of them that a rank keeps:
// state, one step, and the names of the state in a checkpoint.
//
// Source   AdamW: arXiv:1711.05101.  Muon: Jordan et al. 2024, scaled to AdamW's RMS after
//          arXiv:2502.16982: w <- (1 - eta delta) w - eta 0.2 sqrt(max(rows, cols)) NS(m).
//          Parameter::kind chooses between them.  Every matrix of an expert stack is
//          orthogonalised alone; rows and cols are those of the logical matrix.
// Memory   fp32 (fp64): AdamW two moments, Muon one momentum, per element.  Muon works inside the
//          gradients, so a step consumes them.  Newton-Schulz takes workspace, and the sum of
//          squares one number a parameter.
// Numerics the elements of a piece get the same bits as in the whole tensor.
#pragma once

#include <memory>
#include <vector>

#include "ashlar/kernels/copy.h"
#include "ashlar/kernels/update.h"
#include "ashlar/optim/matrices.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::optim {

struct ParameterState {
  Tensor first, second;  // AdamW: exp_avg, exp_avg_sq.  Muon: momentum, absent
};

class Optimizer {
 public:
  // `parameters` must stay as they are.  compute: the type in which Newton-Schulz multiplies.
  // matrices: orthogonalises in the gradients of the Muon parameters; null: LocalMatrices.
  Optimizer(Allocator&, std::vector<Parameter> parameters, const OptimSpec&, DType compute,
            std::unique_ptr<Matrices> matrices = nullptr);

  // Updates refresh the packed forms of the rows of each parameter, in the order of parameters().
  void pack_in_updates(std::vector<kernels::PackedRows> rows) { packed_ = std::move(rows); }

  // Sum of squares of the gradients whose first copy is here, so that all ranks' sums add up to
  // that of the whole; non-finite if any element is.
  // download: brings the squares of single gradients to the host, with whatever else is to come.
  using Download = function_ref<void(std::span<const kernels::Download> squares)>;
  double gradient_squares(const kernels::Context&, Download download);
  double gradient_squares(const kernels::Context& ctx) {
    return gradient_squares(ctx, [&](auto squares) { kernels::download(ctx, squares); });
  }
  // Makes one update at learning rate lr; gradients are multiplied by grad_scale while they are
  // read.  It leaves other values in the gradients of Muon parameters.
  void step(const kernels::Context&, double lr, double grad_scale);

  int64_t num_steps() const { return num_steps_; }
  void set_num_steps(int64_t steps) { num_steps_ = steps; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  // optim.<state>.<parameter>, in the parameter's own coordinates; to_write: see pieces_to_write.
  std::vector<Piece> pieces(bool to_write = false) const;

 private:
  kernels::PackedRows packed(size_t parameter) const {
    return packed_.empty() ? kernels::PackedRows{} : packed_[parameter];
  }
  void adamw(const kernels::Context&, double lr, double grad_scale) const;
  void apply_muon(const kernels::Context&, double lr) const;
  std::vector<Parameter> parameters_;
  OptimSpec spec_;
  Arena arena_;
  std::vector<ParameterState> states_;
  std::vector<kernels::PackedRows> packed_;
  std::vector<double> squares_;  // sums of squares, one for each gradient whose first copy is here
  std::unique_ptr<Matrices> matrices_;
  int64_t num_steps_ = 0;
};

// The tensors that the optimizer keeps of a parameter, in the order of ParameterState:
// optim.<state>.<parameter>.
std::vector<LogicalTensor> state_tensors(const Parameter&);

// Applies the recipe's choices: the optimizer of matrices, and whether gate and up are one matrix.
void apply_spec(const OptimSpec& spec, std::vector<Parameter>& parameters);

// Factor that brings a gradient of norm `norm` to at most clip (0: no clipping).
double clip_factor(double norm, double clip);

}  // namespace ashlar::optim
