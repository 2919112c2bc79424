// How it works.  next() and next_of_each() set what the call runs: the next tokens of one place, or
// one token of each of the first places.  Then the forward pass calls, for every block in turn,
// halo_forward, and attend or states_here:
//
//   halo_forward  returns the rows before the tokens, unless they begin their document, then keeps
//                 the last rows of each place
//   states_here   returns the states of these places, which the layer advances
//   attend        appends keys and values to those held, and attends over all of them
//
// Strips and states are small and lie in the order of places: a call reads and writes all that it
// needs at once, and move() copies them.  Keys and values stay where they are (area_ has the
// area of each place), except that duplicate() copies them.
//
// `held` has the positions of an area's rows.  In a block without a window the rows only grow.  A
// sliding block has room for window - 1 tokens and the longest chunk; when a chunk does not fit,
// keep() moves the last window - 1 rows to the front.  Decoding token by token does so once in as
// many tokens as the longest chunk has.
#include "ashlar/eval/cache.h"

#include <algorithm>
#include <numeric>

#include "ashlar/kernels/copy.h"

namespace ashlar::eval {
namespace {

using kernels::Context;
using kernels::Matrix;

[[noreturn]] void fail_backward() {
  fail_assertion("a decode cache has no backward pass", __FILE__, __LINE__);
}

// Appends the rows of `fresh` (several of one place, or one of each) to what `kept` [places, reach,
// cols] holds for each place, and keeps the last `reach` rows.
void keep_last(const Context& ctx, const Matrix& fresh, const Tensor& kept) {
  const int64_t places = kept.shape[0], reach = kept.shape[1], cols = kept.shape[2];
  const int64_t num_fresh = fresh.rows / places, from_fresh = std::min(num_fresh, reach),
                stay = reach - from_fresh;
  const Matrix rows = Matrix::of(kept.view({places, reach * cols}));
  for (int64_t i = 0; i < stay; ++i)
    copy(ctx, rows.columns((i + num_fresh) * cols, (i + num_fresh + 1) * cols),
         rows.columns(i * cols, (i + 1) * cols));
  if (num_fresh == 1)
    copy(ctx, fresh, rows.columns(stay * cols, reach * cols));
  else
    copy(ctx, fresh.row_range(num_fresh - from_fresh, num_fresh),
         Matrix::of(kept.view({reach, cols})).row_range(stay, reach));
}

}  // namespace

DecodeCache::DecodeCache(Allocator& allocator, const nn::Model& model, int64_t max_tokens,
                         int64_t max_chunk, int64_t num_places)
    : max_tokens_(max_tokens),
      length_(size_t(num_places), 0),
      area_(size_t(num_places)),
      arena_(arena_for(allocator, Tag::kCache,
                       [&](Arena& arena) { lay_out(arena, model, max_chunk); })) {
  lay_out(arena_, model, max_chunk);
  std::iota(area_.begin(), area_.end(), 0);
  for (auto* list : {&segments_, &keys_}) list->reserve(size_t(num_places));
  chunks_.reserve(size_t(num_places));
}

void DecodeCache::lay_out(Arena& arena, const nn::Model& model, int64_t max_chunk) {
  const nn::Types& types = model.types();
  const auto places = int64_t(length_.size());
  layers_.clear();
  for (const nn::Block& block : model.weights().blocks) {
    const nn::ExchangeNeeds needs = block.mixer->needs().tokens;
    ASHLAR_REQUIRE(needs.state.ways <= 1, kConfig,
                   "model.linear_causal is false: tokens read what is behind them, so this model "
                   "cannot generate; it can be trained and evaluated");
    Layer layer;
    layer.window = needs.window;
    layer.capacity =
        layer.window > 0 ? std::min(max_tokens_, layer.window - 1 + max_chunk) : max_tokens_;
    layer.k = arena.take(types.activation, {places * layer.capacity, needs.key_cols});
    layer.v = arena.take(types.activation, {places * layer.capacity, needs.value_cols});
    // Zeros at first, as the rows before a document's first token are.
    for (const auto& [reach, cols] : needs.strips())
      layer.strips.push_back(arena.take(types.wide, {places, reach, cols}));
    // Zeros at first, as the state before a document's first token is.
    if (const auto& state = needs.state; state.heads > 0)
      layer.states = arena.take(types.wide, {places, state.heads, state.key_dim, state.value_dim});
    for (int64_t area = 0; area < places; ++area)
      layer.held.push_back({area * layer.capacity, 0, 0, area});
    layers_.push_back(std::move(layer));
  }
}

Segment DecodeCache::next(int64_t num_tokens, int64_t place) {
  begin_call(place, 1, num_tokens);
  return segments_.front();
}

std::span<const Segment> DecodeCache::next_of_each(int64_t count) {
  begin_call(0, count, 1);
  return segments_;
}

void DecodeCache::begin_call(int64_t first, int64_t count, int64_t num_tokens) {
  first_ = first, count_ = count, num_tokens_ = num_tokens;
  segments_.clear();
  chunks_.clear();
  for (int64_t i = 0; i < count; ++i) {
    int64_t& length = length_[size_t(first + i)];
    ASHLAR_REQUIRE(length + num_tokens <= max_tokens_, kConfig,
                   "the sequence reaches {} tokens but the cache holds {}; ask for fewer tokens",
                   length + num_tokens, max_tokens_);
    segments_.push_back({i * num_tokens, num_tokens, length, area_[size_t(first + i)]});
    chunks_.push_back({i * num_tokens, (i + 1) * num_tokens});
    length += num_tokens;
  }
}

void DecodeCache::clear(const Context& ctx, int64_t place) {
  length_[size_t(place)] = 0;
  for (Layer& layer : layers_) {
    Segment& held = layer.held[size_t(area_[size_t(place)])];
    held.length = held.position = 0;
    for (const Tensor& strip : layer.strips) fill(ctx, strip.slice(place, place + 1), 0.0);
    if (layer.states) fill(ctx, layer.states.slice(place, place + 1), 0.0);
  }
}

void DecodeCache::move(const Context& ctx, int64_t from, int64_t to) {
  length_[size_t(to)] = length_[size_t(from)];
  std::swap(area_[size_t(from)], area_[size_t(to)]);
  for (const Layer& layer : layers_) copy_states(ctx, layer, from, to);
}

void DecodeCache::duplicate(const Context& ctx, int64_t from, int64_t to) {
  length_[size_t(to)] = length_[size_t(from)];
  for (Layer& layer : layers_) {
    copy_states(ctx, layer, from, to);
    const Segment& source = layer.held[size_t(area_[size_t(from)])];
    Segment& held = layer.held[size_t(area_[size_t(to)])];
    held.length = source.length, held.position = source.position;
    if (held.length == 0) continue;
    for (const Tensor* rows : {&layer.k, &layer.v})
      copy(ctx, rows->slice(source.row, source.row + source.length),
           rows->slice(held.row, held.row + held.length));
  }
}

void DecodeCache::copy_states(const Context& ctx, const Layer& cache, int64_t from, int64_t to) {
  for (const Tensor& strip : cache.strips)
    copy(ctx, strip.slice(from, from + 1), strip.slice(to, to + 1));
  if (cache.states) copy(ctx, cache.states.slice(from, from + 1), cache.states.slice(to, to + 1));
}

void DecodeCache::skip_to_last(int64_t num_tokens) {
  for (int64_t& length : length_) length = max_tokens_ - num_tokens;
  for (Layer& layer : layers_)
    for (Segment& held : layer.held) {
      held.length = layer.capacity - num_tokens;
      held.position = length_[0] - held.length;
    }
}

void DecodeCache::halo_forward(const Context& ctx, const nn::Pass& pass,
                               std::span<const nn::Strip> strips) {
  const Layer& cache = layers_[size_t(pass.block)];
  for (size_t i = 0; i < strips.size(); ++i) {
    const Tensor last = cache.strips[i].slice(first_, first_ + count_);
    // There is no halo where the tokens begin their document.
    if (pass.sequence.num_halos() > 0) {
      ASHLAR_ASSERT(pass.sequence.num_halos() == count_);
      copy(ctx, last, strips[i].halo.view(last.shape));
    }
    keep_last(ctx, strips[i].rows, last);
  }
}

Tensor DecodeCache::states_here(const nn::Pass& pass) {
  const Tensor& states = layers_[size_t(pass.block)].states;
  return states ? states.slice(first_, first_ + count_) : states;
}

void DecodeCache::keep(const Context& ctx, Layer& cache, Segment& held, const Tensor& k,
                       const Tensor& v) {
  const int64_t fresh = num_tokens_;
  const auto rows = [&](const Tensor& all, int64_t begin, int64_t end) {
    return all.slice(held.row + begin, held.row + end);
  };
  if (held.length + fresh > cache.capacity) {
    // Only sliding blocks get here: what lies before the window of the first new token is dropped.
    const int64_t keep = std::min(held.length, cache.window - 1);
    const int64_t drop = held.length - keep;
    ASHLAR_ASSERT(keep + fresh <= cache.capacity);
    // `drop` rows at a time: source and target of a copy do not overlap then.
    for (int64_t row = 0; row < keep; row += drop) {
      const int64_t end = std::min(keep, row + drop);
      for (const Tensor* all : {&cache.k, &cache.v})
        copy(ctx, rows(*all, drop + row, drop + end), rows(*all, row, end));
    }
    held.position += drop;
    held.length = keep;
  }
  copy(ctx, k, rows(cache.k, held.length, held.length + fresh));
  copy(ctx, v, rows(cache.v, held.length, held.length + fresh));
  held.length += fresh;
}

void DecodeCache::attend(const Context& ctx, const nn::Pass& pass, const kernels::Attention& x) {
  Layer& cache = layers_[size_t(pass.block)];
  ASHLAR_ASSERT(pass.sequence.num_tokens() == count_ * num_tokens_);
  kernels::Attention cached = x;
  keys_.clear();
  for (int64_t i = 0; i < count_; ++i) {
    Segment& held = cache.held[size_t(area_[size_t(first_ + i)])];
    const int64_t begin = i * num_tokens_, end = begin + num_tokens_;
    keep(ctx, cache, held, x.k.slice(begin, end), x.v.slice(begin, end));
    keys_.push_back(held);
  }
  cached.k = cache.k, cached.v = cache.v;
  if (count_ == 1) {
    // The rows held, and no others: the call packs as many as it gets.
    Segment& held = keys_.front();
    cached.k = cache.k.slice(held.row, held.row + held.length);
    cached.v = cache.v.slice(held.row, held.row + held.length);
    held.row = 0;
  }
  attention_forward(ctx, pass.sequence, keys_, cached);
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
