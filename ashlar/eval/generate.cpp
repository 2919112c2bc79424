#include "ashlar/eval/generate.h"

#include <algorithm>

#include "ashlar/kernels/copy.h"
#include "ashlar/kernels/update.h"
#include "ashlar/nn/loss.h"

namespace ashlar::eval {
namespace {

using kernels::Context;

// A call of one token keeps its memory; prefills share another slot.
nn::Saved lay_out(Arena& arena, const nn::Model& model, int64_t num_tokens) {
  return nn::Saved::make(arena, model.weights(), model.types(), num_tokens, 1, nn::Keep::kNothing,
                         num_tokens == 1 ? 0 : 1);
}

Arena arena_of(Allocator& allocator, const nn::Model& model, int64_t num_tokens) {
  return arena_for(allocator, Tag::kWorkspace,
                   [&](Arena& arena) { lay_out(arena, model, num_tokens); });
}

}  // namespace

Decoder::Decoder(const Context& ctx, Allocator& allocator, nn::Model& model, int64_t max_tokens,
                 int64_t max_chunk)
    : ctx_(ctx),
      allocator_(allocator),
      model_(model),
      cache_(allocator, model, max_tokens, std::min(max_chunk, max_tokens)),
      max_chunk_(std::min(max_chunk, max_tokens)),
      one_arena_(arena_of(allocator, model, 1)),
      one_(lay_out(one_arena_, model, 1)),
      ids_(make_tensor(allocator, DType::kI32, {max_chunk_}, Tag::kInput)),
      logits_(make_tensor(allocator, model.types().stream, {1, model.spec().vocab_size},
                          Tag::kWorkspace)),
      logits_in_f32_(make_tensor(allocator, DType::kF32, logits_.tensor.shape, Tag::kWorkspace)) {}

std::span<const float> Decoder::feed(std::span<const int32_t> ids) {
  ASHLAR_ASSERT(!ids.empty());
  for (size_t begin = 0; begin < ids.size(); begin += size_t(max_chunk_))
    feed_chunk(ids.subspan(begin, std::min(size_t(max_chunk_), ids.size() - begin)));
  copy(ctx_, logits_.tensor, logits_in_f32_.tensor);
  ASHLAR_REQUIRE(kernels::first_non_finite(ctx_, logits_in_f32_.tensor) < 0, kNumeric,
                 "the logits after token {} are not finite: the activations pass the range of "
                 "numbers; try --dtype fp64, or weights that are not as large",
                 cache_.length());
  return logits_in_f32_.tensor.span<float>();
}

void Decoder::feed_chunk(std::span<const int32_t> ids) {
  const auto count = int64_t(ids.size());
  const Segment segment = cache_.next(count);
  sequence_.assign(std::span(&segment, 1));
  const Tensor ids_T = ids_.tensor.slice(0, count);
  upload(ctx_, ids, ids_T);
  const auto run = [&](const nn::Saved& saved) {
    forward(ctx_, model_.call(cache_.exchanges(), sequence_, ids_T), saved);
    head_logits(ctx_, model_, saved.final_TH.slice(count - 1, count), logits_.tensor);
  };
  if (count == 1) return run(one_);  // decoding: its memory is kept, a prefill's is not
  Arena arena = arena_of(allocator_, model_, count);
  run(lay_out(arena, model_, count));
}

std::vector<int32_t> generate(Decoder& decoder, std::span<const int32_t> prompt,
                              const GenerateSpec& spec,
                              const std::function<void(int32_t)>& on_token) {
  validate(spec.sampling);
  std::vector<int32_t> made;
  std::vector<std::pair<float, int32_t>> scratch;
  std::span<const float> logits = decoder.feed(prompt);
  while (int64_t(made.size()) < spec.max_tokens) {
    const int32_t id = sample(spec.sampling, logits, decoder.length(), scratch);
    made.push_back(id);
    on_token(id);
    // The last token is not fed, since its logits are not needed.
    if (spec.stops_at(id) || int64_t(made.size()) == spec.max_tokens) break;
    logits = decoder.feed(std::span(&id, 1));
  }
  return made;
}

}  // namespace ashlar::eval
