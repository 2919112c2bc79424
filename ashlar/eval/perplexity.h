// The loss of a model over a prepared dataset or a part of it: every sample once, in order.
#pragma once

#include "ashlar/core/log.h"
#include "ashlar/data/loader.h"
#include "ashlar/nn/model.h"

namespace ashlar::eval {

enum class Counting : uint8_t {
  kDocumentsApart,  // a token sees only its own document, as in training
  kOneSequence      // a token sees everything before it in its sample, as in other programs
};

struct Perplexity {
  double loss = 0.0;  // mean over targets, nats
  int64_t num_targets = 0;
  int64_t num_samples = 0;
  data::TokenRange tokens;  // the tokens of the dataset that were read
  double seconds = 0.0;
  double value() const;  // exp(loss)
};

// max_samples 0: all.  `name` is the model's, for messages.  kData for an id outside the model's
// vocabulary; kNumeric for a loss that is not finite.  Rows of the loader's micro batch are
// evaluated together, also those of a last batch that is not full.
Perplexity perplexity(const kernels::Context& ctx, Allocator& allocator, nn::Model& model,
                      const std::string& name, data::Source source, Counting counting,
                      int64_t micro_batch, int64_t max_samples, Log& log);

}  // namespace ashlar::eval
