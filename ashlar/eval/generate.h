// Generates text: prefills the prompt in chunks, then decodes one token at a time through the
// caches.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "ashlar/eval/cache.h"
#include "ashlar/eval/sampler.h"
#include "ashlar/nn/model.h"

namespace ashlar::eval {

struct GenerateSpec {
  int64_t max_tokens = 64;  // new tokens
  SamplingSpec sampling;
  std::vector<int32_t> stop_ids = {};  // stops after any of them

  bool stops_at(int32_t id) const {
    return std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end();
  }
};

// Runs a model over one growing sequence.  Memory: caches for max_tokens, activations of one chunk.
class Decoder {
 public:
  Decoder(const kernels::Context& ctx, Allocator& allocator, nn::Model& model, int64_t max_tokens,
          int64_t max_chunk = 256);

  // Continues the sequence with `ids` and returns the logits [V] after the last, valid until the
  // next call.  kNumeric if one is not finite.
  std::span<const float> feed(std::span<const int32_t> ids);
  int64_t length() const { return cache_.length(); }

 private:
  void feed_chunk(std::span<const int32_t> ids);
  kernels::Context ctx_;
  Allocator& allocator_;
  nn::Model& model_;
  DecodeCache cache_;
  int64_t max_chunk_;
  Arena one_arena_;
  nn::Saved one_;  // activations of a single token
  OwnedTensor ids_, logits_, logits_in_f32_;
  kernels::Sequence sequence_;
};

// Returns the new ids; on_token is called with each as it is generated.
std::vector<int32_t> generate(Decoder& decoder, std::span<const int32_t> prompt,
                              const GenerateSpec& spec,
                              const std::function<void(int32_t)>& on_token);

}  // namespace ashlar::eval
