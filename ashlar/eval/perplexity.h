// The loss of a model over a prepared dataset or a part of it: every sample once, in order.
#pragma once

#include "ashlar/core/log.h"
#include "ashlar/data/loader.h"
#include "ashlar/eval/whole_texts.h"

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

// The losses of num_tokens tokens at a time.  All memory is taken at once.
class TokenLosses {
 public:
  struct Texts {
    std::span<const int32_t> ids, targets;  // [num_tokens]; a target below 0 is none
    std::span<const Segment> segments;
  };
  TokenLosses(Allocator& allocator, nn::Model& model, int64_t num_tokens);
  // losses: [num_tokens]; those of tokens without a target have no meaning.  On meta all lists but
  // segments may be empty.
  void run(const kernels::Context& ctx, const Texts& texts, std::span<double> losses);

 private:
  nn::Model& model_;
  WholeTexts calls_;
  const OwnedTensor targets_, loss_;
  kernels::Sequence sequence_;
};

// max_samples 0: all.  `name` is the model's, for messages.  kData for an id outside the model's
// vocabulary; kNumeric for a loss that is not finite.  Rows of the loader's micro batch are
// evaluated together, also those of a last batch that is not full.
Perplexity perplexity(const kernels::Context& ctx, Allocator& allocator, nn::Model& model,
                      const std::string& name, data::Source source, Counting counting,
                      int64_t micro_batch, int64_t max_samples, Log& log);

}  // namespace ashlar::eval
