// Loss of a model over (a part of) a prepared dataset: every sample once, in order.
#pragma once

#include "ashlar/core/log.h"
#include "ashlar/data/loader.h"
#include "ashlar/nn/model.h"

namespace ashlar::eval {

enum class Counting : uint8_t {
  kDocumentsApart,  // a token sees its own document alone, as training does
  kOneSequence      // a token sees all of its sample before it, as other programs count
};

struct Perplexity {
  double loss = 0.0;  // mean over targets, nats
  int64_t num_targets = 0;
  int64_t num_samples = 0;
  data::TokenRange tokens;  // of the dataset, that were read
  double seconds = 0.0;
  double value() const;  // exp(loss)
};

// max_samples 0: all.  `name` is the model's, for messages.  kData for an id outside its
// vocabulary; kNumeric for a loss that is not finite.  Rows of the loader's micro batch are
// evaluated together; samples that do not fill the last one are evaluated too (the rest of that
// batch is left out).
Perplexity perplexity(const kernels::Context& ctx, Allocator& allocator, nn::Model& model,
                      const std::string& name, data::Source source, Counting counting,
                      int64_t micro_batch, int64_t max_samples, Log& log);

}  // namespace ashlar::eval
