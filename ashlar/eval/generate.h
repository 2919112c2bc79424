// Generates text: prefills a prompt in chunks, then decodes one token at a time through the caches.
// slots.h does so for several prompts at once.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "ashlar/core/function_ref.h"
#include "ashlar/eval/cache.h"
#include "ashlar/eval/sampler.h"
#include "ashlar/eval/token_scores.h"
#include "ashlar/nn/model.h"

namespace ashlar::eval {

struct GenerateSpec {
  int64_t max_tokens = 64;  // new tokens
  SamplingSpec sampling;
  std::vector<int32_t> stop_ids = {};  // stops after any of them
  TokenScores* scores = nullptr;       // of PromptSlots: collects scores of tokens; null: none

  bool stops_at(int32_t id) const {
    return std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end();
  }
};

// Runs a model over growing sequences, each in a place of the caches (cache.h).  On a CPU the
// logits of a sequence are the same bits whatever else is in the other places.
//
// Memory   caches for max_tokens of every place; activations of one chunk, and of a token of every
//          place.  All of it is taken at once: nothing is allocated afterwards.
// Limits   the model's branches keep the memory of one Decoder: the last that was made runs it.
class Decoder {
 public:
  Decoder(const kernels::Context& ctx, Allocator& allocator, nn::Model& model, int64_t max_tokens,
          int64_t max_chunk = 256, int64_t num_places = 1);

  // Takes the logits [V] after one of the ids.
  using OnLogits = std::function<void(std::span<const float>)>;
  // Continues the sequence of the place with `ids` and returns the logits [V] after the last, in
  // memory of the host, valid until the next call.  kNumeric if one is not finite.  With a GPU the
  // host waits for logits, and nowhere else.
  std::span<const float> feed(std::span<const int32_t> ids, int64_t place = 0);
  // The same, but on_logits gets the logits after ids[first], ids[first + 1], ..., in order, and
  // feed() computes no logits before these.
  void feed(std::span<const int32_t> ids, int64_t place, size_t first, const OnLogits& on_logits);
  // Continues the sequence of each place [0, ids.size()) with one id, in one pass over the weights.
  // Returns their logits [ids.size(), V], as above.
  std::span<const float> feed_each(std::span<const int32_t> ids);
  int64_t length(int64_t place = 0) const { return cache_.length(place); }
  // As in DecodeCache.
  void clear(int64_t place) { cache_.clear(ctx_, place); }
  void move(int64_t from, int64_t to) { cache_.move(ctx_, from, to); }
  void duplicate(int64_t from, int64_t to) { cache_.duplicate(ctx_, from, to); }
  // Runs the largest calls that may come; for counting on meta.
  void count();

 private:
  // Activations of calls of one kind, laid out for the number of tokens of the last call.
  struct Activations {
    Arena arena;
    nn::Saved saved;
    int64_t num_tokens = 0;
  };
  enum Kind : int { kEach, kChunk };
  Activations activations_for(Allocator& allocator, Kind kind, int64_t most_tokens);
  const nn::Saved& lay_out(Activations& activations, Kind kind, int64_t num_tokens);
  const nn::Saved& run(std::span<const Segment> segments, std::span<const int32_t> ids);
  // The logits of rows [begin, end) of the last call; token_of tells the number of the token of a
  // row in its text.
  std::span<const float> logits_of(const nn::Saved& saved, int64_t begin, int64_t end,
                                   function_ref<int64_t(int64_t row)> token_of);
  std::span<const float> on_host(const Tensor& logits);
  kernels::Context ctx_;
  nn::Model& model_;
  DecodeCache cache_;
  int64_t max_chunk_, num_places_, num_rows_;
  Activations each_, chunk_;
  OwnedTensor ids_, logits_, logits_in_f32_;  // [.], [rows, V]; the last absent if F32 already
  std::vector<float> downloaded_;             // logits of a GPU
  kernels::Sequence sequence_;
};

// Returns the new ids; on_token is called with each as it is generated.
std::vector<int32_t> generate(Decoder& decoder, std::span<const int32_t> prompt,
                              const GenerateSpec& spec,
                              const std::function<void(int32_t)>& on_token);

}  // namespace ashlar::eval
