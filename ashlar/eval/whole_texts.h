// Calls that run texts from their beginning, for their losses or their logits.
#pragma once

#include <span>

#include "ashlar/nn/model.h"

namespace ashlar::eval {

// Memory of the calls, all of num_tokens tokens; it is taken at once.
class WholeTexts {
 public:
  WholeTexts(Allocator& allocator, nn::Model& model, int64_t num_tokens);
  // Runs the model over the ids, which are in its vocabulary; returns what forward kept.  On meta
  // nothing reads ids.
  const nn::Saved& run(const kernels::Context& ctx, std::span<const int32_t> ids,
                       const kernels::Sequence& sequence);

 private:
  nn::Saved lay_out(Arena& arena) const;
  nn::Model& model_;
  const int64_t num_tokens_;
  Arena arena_;
  const nn::Saved saved_;
  const OwnedTensor ids_;
  nn::LocalExchange exchange_;
};

}  // namespace ashlar::eval
