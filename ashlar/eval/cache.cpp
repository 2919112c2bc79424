// How it works.  next() sets the chunk's position in the sequence; then the forward pass calls, for
// every block in turn, halo_forward, and attend or states_here:
//
//   halo_forward  returns the rows before the chunk, unless it begins the document, then keeps the
//                 chunk's last rows
//   states_here   returns the state, which the layer advances to the chunk's end
//   attend        appends the chunk's keys and values to those held, and attends over all of them
//
// `held` has the positions of the rows of k and v.  In a block without a window the rows only grow.
// A sliding block has room for window - 1 tokens and the longest chunk; when a chunk does not fit,
// keep() moves the last window - 1 rows to the front.  Decoding token by token does so once in as
// many tokens as the longest chunk has.
#include "ashlar/eval/cache.h"

#include <algorithm>

#include "ashlar/kernels/copy.h"

namespace ashlar::eval {
namespace {

using kernels::Context;
using kernels::Matrix;

[[noreturn]] void fail_backward() {
  fail_assertion("a decode cache has no backward pass", __FILE__, __LINE__);
}

// `kept` becomes the last rows, as many as it has, of what it holds followed by `fresh`.
void keep_last(const Context& ctx, const Matrix& fresh, const Matrix& kept) {
  const int64_t from_fresh = std::min(fresh.rows, kept.rows), stay = kept.rows - from_fresh;
  copy(ctx, kept.row_range(from_fresh, kept.rows), kept.row_range(0, stay));
  copy(ctx, fresh.row_range(fresh.rows - from_fresh, fresh.rows), kept.row_range(stay, kept.rows));
}

}  // namespace

DecodeCache::DecodeCache(Allocator& allocator, const nn::Model& model, int64_t max_tokens,
                         int64_t max_chunk)
    : max_tokens_(max_tokens) {
  const nn::Types& types = model.types();
  for (const nn::Block& block : model.weights().blocks) {
    const nn::ExchangeNeeds needs = block.mixer->needs().tokens;
    ASHLAR_REQUIRE(needs.state.ways <= 1, kConfig,
                   "model.linear_causal is false: tokens read what is behind them, so this model "
                   "cannot generate; it can be trained and evaluated");
    Layer layer;
    layer.window = needs.window;
    const int64_t capacity =
        layer.window > 0 ? std::min(max_tokens, layer.window - 1 + max_chunk) : max_tokens;
    layer.k = make_tensor(allocator, types.activation, {capacity, needs.key_cols}, Tag::kCache);
    layer.v = make_tensor(allocator, types.activation, {capacity, needs.value_cols}, Tag::kCache);
    // Zeros at first, as the rows before a document's first token are.
    for (const auto& [reach, cols] : needs.strips())
      layer.strips.push_back(make_tensor(allocator, types.stream, {reach, cols}, Tag::kCache));
    // Zeros at first, as the state before a document's first token is.
    if (const auto& state = needs.state; state.heads > 0)
      layer.states = make_tensor(allocator, types.stream,
                                 {1, state.heads, state.key_dim, state.value_dim}, Tag::kCache);
    layers_.push_back(std::move(layer));
  }
}

Segment DecodeCache::next(int64_t num_tokens) {
  ASHLAR_REQUIRE(length_ + num_tokens <= max_tokens_, kConfig,
                 "the sequence reaches {} tokens but the cache holds {}; ask for fewer tokens",
                 length_ + num_tokens, max_tokens_);
  const Segment segment{0, num_tokens, length_, 0};
  length_ += num_tokens;
  chunk_ = {0, num_tokens};
  return segment;
}

void DecodeCache::skip_to_last(int64_t num_tokens) {
  length_ = max_tokens_ - num_tokens;
  for (Layer& layer : layers_) {
    const int64_t held = layer.k.tensor.shape[0] - num_tokens;
    layer.held = {0, held, length_ - held, 0};
  }
}

void DecodeCache::halo_forward(const Context& ctx, const nn::Pass& pass,
                               std::span<const nn::Strip> strips) {
  const Layer& cache = layers_[size_t(pass.block)];
  for (size_t i = 0; i < strips.size(); ++i) {
    const Tensor& last = cache.strips[i].tensor;
    // There is no halo where the chunk begins the document.
    if (pass.sequence.num_halos() > 0) copy(ctx, last, strips[i].halo.view(last.shape));
    keep_last(ctx, strips[i].rows, Matrix::of(last));
  }
}

Tensor DecodeCache::states_here(const nn::Pass& pass) {
  return layers_[size_t(pass.block)].states.tensor;
}

void DecodeCache::keep(const Context& ctx, Layer& cache, int64_t fresh, const Tensor& k,
                       const Tensor& v) {
  Segment& held = cache.held;
  const Tensor &keys = cache.k.tensor, &values = cache.v.tensor;
  const int64_t capacity = keys.shape[0];
  if (held.length + fresh > capacity) {
    // Only sliding blocks get here: what lies before the window of the first new token is dropped.
    const int64_t keep = std::min(held.length, cache.window - 1);
    const int64_t drop = held.length - keep;
    ASHLAR_ASSERT(keep + fresh <= capacity);
    // `drop` rows at a time: source and target of a copy do not overlap then.
    for (int64_t row = 0; row < keep; row += drop) {
      const int64_t end = std::min(keep, row + drop);
      copy(ctx, keys.slice(drop + row, drop + end), keys.slice(row, end));
      copy(ctx, values.slice(drop + row, drop + end), values.slice(row, end));
    }
    held.position += drop;
    held.length = keep;
  }
  copy(ctx, k, keys.slice(held.length, held.length + fresh));
  copy(ctx, v, values.slice(held.length, held.length + fresh));
  held.length += fresh;
}

void DecodeCache::attend(const Context& ctx, const nn::Pass& pass, const kernels::Attention& x) {
  Layer& cache = layers_[size_t(pass.block)];
  keep(ctx, cache, pass.sequence.num_tokens(), x.k, x.v);
  kernels::Attention cached = x;
  cached.k = cache.k.tensor.slice(0, cache.held.length);
  cached.v = cache.v.tensor.slice(0, cache.held.length);
  attention_forward(ctx, pass.sequence, std::span(&cache.held, 1), cached);
}

void DecodeCache::halo_backward(const Context&, const nn::Pass&, std::span<const nn::Strip>) {
  fail_backward();
}

void DecodeCache::post_backward(const Context&, const nn::Pass&, const kernels::Attention&) {
  fail_backward();
}

void DecodeCache::attend_backward(const Context&, const nn::Pass&, const kernels::Attention&,
                                  const kernels::AttentionGradients&) {
  fail_backward();
}

void DecodeCache::finish_key_gradients(const Context&, const nn::Pass&,
                                       const kernels::AttentionGradients&) {
  fail_backward();
}

}  // namespace ashlar::eval
