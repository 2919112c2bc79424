// How it works.  next() says where the chunk lies in the sequence; then the forward pass calls, for
// every block in turn, halo_forward and attend:
//
//   halo_forward  gives out the two columns and the delayed value before the chunk, if it does not
//                 begin the document, then keeps the chunk's own last ones
//   attend        puts the chunk's keys and values behind those held, and attends over all of them
//
// `held` says which positions the rows of k and v are.  In a block without a window they only grow.
// A sliding block has room for window - 1 tokens and the longest chunk; when a chunk does not fit,
// keep() moves the last window - 1 rows to the front, which decoding token by token meets once in
// as many tokens as that chunk has.
#include "ashlar/eval/cache.h"

#include <algorithm>

#include "ashlar/kernels/copy.h"

namespace ashlar::eval {
namespace {

using kernels::Context;
using kernels::Matrix;
using kernels::Sequence;

// `kept` (one row or two) becomes the last rows of what it holds followed by `fresh`.
void keep_last(const Context& ctx, const Matrix& fresh, const Matrix& kept) {
  const int64_t from_fresh = std::min(fresh.rows, kept.rows), stay = kept.rows - from_fresh;
  copy(ctx, kept.row_range(from_fresh, kept.rows), kept.row_range(0, stay));
  copy(ctx, fresh.row_range(fresh.rows - from_fresh, fresh.rows), kept.row_range(stay, kept.rows));
}

}  // namespace

DecodeCache::DecodeCache(Allocator& allocator, const ModelSpec& spec, const nn::Types& types,
                         int64_t max_tokens, int64_t max_chunk)
    : max_tokens_(max_tokens) {
  for (const BlockSpec& block : spec.blocks) {
    const nn::CcaShape shape = nn::CcaShape::of(block.mixer, spec.hidden_size);
    Layer layer;
    layer.window = block.mixer.window;
    const int64_t capacity =
        layer.window > 0 ? std::min(max_tokens, layer.window - 1 + max_chunk) : max_tokens;
    layer.k = make_tensor(allocator, types.activation, {capacity, shape.kv_dim()}, Tag::kCache);
    layer.v = make_tensor(allocator, types.activation, {capacity, shape.kv_dim()}, Tag::kCache);
    // Zeros at first, as the columns before a document's first token are.
    layer.z = make_tensor(allocator, types.stream, {2, shape.conv_channels()}, Tag::kCache);
    layer.vd = make_tensor(allocator, types.stream, {1, shape.delayed}, Tag::kCache);
    layers_.push_back(std::move(layer));
  }
}

Segment DecodeCache::next(int64_t num_tokens) {
  ASHLAR_REQUIRE(length_ + num_tokens <= max_tokens_, kConfig,
                 "the sequence reaches {} tokens but the cache holds {}; ask for fewer tokens",
                 length_ + num_tokens, max_tokens_);
  const Segment segment{0, num_tokens, length_, 0};
  length_ += num_tokens;
  return segment;
}

void DecodeCache::skip_to_last(int64_t num_tokens) {
  length_ = max_tokens_ - num_tokens;
  for (Layer& layer : layers_) {
    const int64_t held = layer.k.tensor.shape[0] - num_tokens;
    layer.held = {0, held, length_ - held, 0};
  }
}

void DecodeCache::halo_forward(const Context& ctx, int64_t layer, const Sequence& sequence,
                               const Matrix& z, const Matrix& vd, const Tensor& halo_z,
                               const Tensor& halo_vd) {
  const Layer& cache = layers_[size_t(layer)];
  if (sequence.num_halos() > 0) {  // none where the chunk begins the document
    copy(ctx, cache.z.tensor, halo_z);
    copy(ctx, cache.vd.tensor, halo_vd);
  }
  keep_last(ctx, z, Matrix::of(cache.z.tensor));
  keep_last(ctx, vd, Matrix::of(cache.vd.tensor));
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

void DecodeCache::attend(const Context& ctx, int64_t layer, const Sequence& sequence,
                         const kernels::Attention& x) {
  Layer& cache = layers_[size_t(layer)];
  keep(ctx, cache, sequence.num_tokens(), x.k, x.v);
  kernels::Attention cached = x;
  cached.k = cache.k.tensor.slice(0, cache.held.length);
  cached.v = cache.v.tensor.slice(0, cache.held.length);
  attention_forward(ctx, sequence, std::span(&cache.held, 1), cached);
}

void DecodeCache::halo_backward(const Context&, int64_t, const Sequence&, const Tensor&,
                                const Tensor&, const Matrix&, const Matrix&) {
  fail_assertion("a decode cache has no backward pass", __FILE__, __LINE__);
}

void DecodeCache::attend_backward(const Context&, int64_t, const Sequence&,
                                  const kernels::Attention&, const kernels::AttentionGradients&) {
  fail_assertion("a decode cache has no backward pass", __FILE__, __LINE__);
}

}  // namespace ashlar::eval
