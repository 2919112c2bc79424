// The interface of a mixture's router, which gives for each token the experts that it takes and the
// weight of each expert's result.  There are two kinds: ZAYA1's (mlp_router.h) and a linear one
// (linear_router.h).
//
// Shapes   m [T, H]; k experts of a token; weights in the wide type.
#pragma once

#include <memory>

#include "ashlar/nn/branch.h"
#include "ashlar/spec/model_spec.h"

namespace ashlar::nn {

struct Choice {
  // I32.  num_experts means no expert (the class that skips), kernels::kNoClass a padding token.
  Tensor expert_Tk;
  Tensor weight_Tk;  // the weights of the experts' results
};

class Router {
 public:
  virtual ~Router() = default;
  // Lists its tensors and sets its shapes.
  virtual void list(const LayerSpec& layer, StoredVisitor visit) = 0;
  virtual int64_t carry_width() const { return 0; }  // columns of Carry; 0: hands nothing on
  // Takes memory for the choice and for what forward keeps for backward.
  virtual void lay_out(const SavedArenas&, const Types&, int64_t num_tokens, int slot) = 0;
  virtual Choice choice(int slot) const = 0;
  // Fills choice(pass.slot) and carry.out.
  virtual void forward(const kernels::Context&, const Pass&, const Tensor& m_TH,
                       const Carry&) const = 0;
  // Adds to the gradients (see Pass::add_to_gradients), also those of the losses in pass.losses;
  // overwrites dm and carry.d_in.
  virtual void backward(const kernels::Context&, const Pass&, const Tensor& m_TH, const Carry&,
                        const Tensor& dweight_Tk, const Tensor& dm_TH) const = 0;
  // The losses of the last backward; see ExpertLoad.
  virtual Tensor losses(int) const { return {}; }
};

std::unique_ptr<Router> make_router(const RouterSpec&);

}  // namespace ashlar::nn
