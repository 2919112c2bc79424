#include "ashlar/eval/generate.h"

#include <algorithm>
#include <cmath>

#include "ashlar/kernels/copy.h"
#include "ashlar/kernels/gpu.h"
#include "ashlar/nn/loss.h"

namespace ashlar::eval {
using kernels::Context;
namespace {

// Logits after all ids of a chunk are computed so many at a time.
constexpr int64_t kLogitRows = 16;

}  // namespace

Decoder::Decoder(const Context& ctx, Allocator& allocator, nn::Model& model, int64_t max_tokens,
                 int64_t max_chunk, int64_t num_places)
    : ctx_(ctx),
      model_(model),
      cache_(allocator, model, max_tokens, std::min(max_chunk, max_tokens), num_places),
      max_chunk_(std::min(max_chunk, max_tokens)),
      num_places_(num_places),
      num_rows_(std::max(num_places, std::min(max_chunk_, kLogitRows))),
      each_(activations_for(allocator, kEach, num_places)),
      chunk_(activations_for(allocator, kChunk, max_chunk_)),
      ids_(make_tensor(allocator, DType::kI32, {std::max(max_chunk_, num_places)}, Tag::kInput)),
      logits_(make_tensor(allocator, model.types().wide, {num_rows_, model.spec().vocab_size},
                          Tag::kWorkspace)) {
  if (logits_.tensor.dtype != DType::kF32)
    logits_in_f32_ = make_tensor(allocator, DType::kF32, logits_.tensor.shape, Tag::kWorkspace);
  sequence_.reserve(ids_.tensor.numel());
}

// Each kind of call has a slot of the branches' memory.
const nn::Saved& Decoder::lay_out(Activations& activations, Kind kind, int64_t num_tokens) {
  if (activations.num_tokens != num_tokens) {
    const Arena::Scope from_the_start(activations.arena);
    activations.saved =
        nn::Saved::make(activations.arena, model_.weights(), model_.types(), num_tokens,
                        kind == kEach ? num_tokens : 1, nn::Keep::kNothing, kind);
    activations.num_tokens = num_tokens;
  }
  return activations.saved;
}

Decoder::Activations Decoder::activations_for(Allocator& allocator, Kind kind,
                                              int64_t most_tokens) {
  Activations counted{Arena(Device::kMeta), {}};
  lay_out(counted, kind, most_tokens);
  return {Arena(allocator, counted.arena.peak_bytes(), Tag::kWorkspace), {}};
}

const nn::Saved& Decoder::run(std::span<const Segment> segments, std::span<const int32_t> ids) {
  const auto count = int64_t(ids.size());
  sequence_.assign(segments);
  const Tensor ids_T = ids_.tensor.slice(0, count);
  upload(ctx_, ids, ids_T);
  const bool each = count == int64_t(segments.size());
  const nn::Saved& saved = each ? lay_out(each_, kEach, count) : lay_out(chunk_, kChunk, count);
  forward(ctx_, model_.call(cache_.exchanges(), sequence_, ids_T), saved);
  return saved;
}

std::span<const float> Decoder::logits_of(const nn::Saved& saved, int64_t begin, int64_t end,
                                          function_ref<int64_t(int64_t row)> token_of) {
  const int64_t num_rows = end - begin;
  Tensor logits = logits_.tensor.slice(0, num_rows);
  head_logits(ctx_, model_, saved.final_TH.slice(begin, end), logits);
  if (logits_in_f32_.tensor) {
    copy(ctx_, logits, logits_in_f32_.tensor.slice(0, num_rows));
    logits = logits_in_f32_.tensor.slice(0, num_rows);
  }
  if (ctx_.meta()) return {};
  const std::span<const float> values = on_host(logits);
  const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  ASHLAR_REQUIRE(bad == values.end(), kNumeric,
                 "the logits after token {} are not finite: the activations pass the range of "
                 "numbers; try --dtype fp64, or weights that are not as large",
                 token_of(begin + (bad - values.begin()) / logits.shape[1]));
  return values;
}

std::span<const float> Decoder::on_host(const Tensor& logits) {
  if (logits.device == Device::kCpu) return logits.span<float>();
  ASHLAR_ASSERT(ctx_.stream);
  downloaded_.resize(size_t(logits.numel()));
  const kernels::gpu::Stream::Download download{downloaded_.data(), logits.data, logits.bytes()};
  ctx_.stream->download(std::span(&download, 1));
  return downloaded_;
}

std::span<const float> Decoder::feed(std::span<const int32_t> ids, int64_t place) {
  std::span<const float> last;
  feed(ids, place, ids.size() - 1, [&](std::span<const float> logits) { last = logits; });
  return last;
}

void Decoder::feed(std::span<const int32_t> ids, int64_t place, size_t first,
                   const OnLogits& on_logits) {
  ASHLAR_ASSERT(!ids.empty());
  for (size_t begin = 0; begin < ids.size(); begin += size_t(max_chunk_)) {
    const auto count = int64_t(std::min(size_t(max_chunk_), ids.size() - begin));
    const Segment segment = cache_.next(count, place);
    const nn::Saved& saved = run(std::span(&segment, 1), ids.subspan(begin, size_t(count)));
    const auto token_of = [&](int64_t row) { return segment.position + row + 1; };
    for (auto row = int64_t(first - std::min(first, begin)); row < count; row += num_rows_) {
      const int64_t end = std::min(count, row + num_rows_);
      std::span<const float> logits = logits_of(saved, row, end, token_of);
      const size_t V = logits.size() / size_t(end - row);
      for (; !logits.empty(); logits = logits.subspan(V)) on_logits(logits.first(V));
    }
  }
}

std::span<const float> Decoder::feed_each(std::span<const int32_t> ids) {
  const auto count = int64_t(ids.size());
  ASHLAR_ASSERT(count > 0 && count <= num_places_);
  const nn::Saved& saved = run(cache_.next_of_each(count), ids);
  return logits_of(saved, 0, count, [&](int64_t row) { return cache_.length(row); });
}

void Decoder::count() {
  const std::vector<int32_t> ids(size_t(ids_.tensor.numel()), 0);
  for (const int64_t tokens : {std::min(kernels::gpu::kFewQueries, max_chunk_), max_chunk_}) {
    cache_.skip_to_last(tokens);
    feed(std::span(ids).first(size_t(tokens)), 0, 0, [](std::span<const float>) {});
  }
  for (const int64_t places :
       {int64_t{1}, std::min(kernels::gpu::kFewQueries, num_places_), num_places_}) {
    cache_.skip_to_last(1);
    feed_each(std::span(ids).first(size_t(places)));
  }
}

std::vector<int32_t> generate(Decoder& decoder, std::span<const int32_t> prompt,
                              const GenerateSpec& spec,
                              const std::function<void(int32_t)>& on_token) {
  validate(spec.sampling);
  std::vector<int32_t> made;
  std::vector<std::pair<float, int32_t>> scratch;
  std::vector<float> penalized;
  Repetition repetition(spec.sampling.repetition_penalty, prompt);
  std::span<const float> logits = decoder.feed(prompt);
  while (int64_t(made.size()) < spec.max_tokens) {
    const int32_t id =
        sample(spec.sampling, repetition.penalized(logits, penalized), decoder.length(), scratch);
    repetition.add(id);
    made.push_back(id);
    on_token(id);
    // The last token is not fed, since its logits are not needed.
    if (spec.stops_at(id) || int64_t(made.size()) == spec.max_tokens) break;
    logits = decoder.feed(std::span(&id, 1));
  }
  return made;
}

}  // namespace ashlar::eval
