#include "ashlar/eval/cache.h"

#include <algorithm>
#include <cstring>

namespace ashlar::eval {
namespace {

using kernels::Context;
using kernels::Matrix;
using kernels::Sequence;

// The last row(s) of a strided matrix, after `kept` older rows: keeps the newest rows of both.
void keep_last(const Matrix& fresh, const Tensor& kept, int64_t num_rows) {
  const int64_t row_bytes = fresh.cols * size_of(fresh.dtype);
  const int64_t from_fresh = std::min(fresh.rows, num_rows);
  std::memmove(kept.data, kept.data + from_fresh * row_bytes,
               size_t((num_rows - from_fresh) * row_bytes));
  for (int64_t i = 0; i < from_fresh; ++i)
    std::memcpy(kept.data + (num_rows - from_fresh + i) * row_bytes,
                fresh.data + (fresh.rows - from_fresh + i) * fresh.stride * size_of(fresh.dtype),
                size_t(row_bytes));
}

}  // namespace

DecodeCache::DecodeCache(Allocator& allocator, const ModelSpec& spec, const nn::Types& types,
                         int64_t max_tokens, int64_t max_chunk)
    : max_tokens_(max_tokens) {
  for (int64_t l = 0; l < spec.num_hidden_layers; ++l) {
    Layer layer;
    layer.window = spec.window_of(l);
    const int64_t capacity =
        layer.window > 0 ? std::min(max_tokens, layer.window - 1 + max_chunk) : max_tokens;
    layer.k = make_tensor(allocator, types.activation, {capacity, spec.kv_dim()}, Tag::kCache);
    layer.v = make_tensor(allocator, types.activation, {capacity, spec.kv_dim()}, Tag::kCache);
    layer.z = make_tensor(allocator, types.stream, {2, spec.conv_channels()}, Tag::kCache);
    layer.vd = make_tensor(allocator, types.stream, {1, spec.delayed_dim()}, Tag::kCache);
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
  if (ctx.meta()) return;
  const Layer& cache = layers_[size_t(layer)];
  if (sequence.num_halos() > 0) {
    std::memcpy(halo_z.data, cache.z.tensor.data, size_t(cache.z.tensor.bytes()));
    std::memcpy(halo_vd.data, cache.vd.tensor.data, size_t(cache.vd.tensor.bytes()));
  }
  keep_last(z, cache.z.tensor, 2);
  keep_last(vd, cache.vd.tensor, 1);
}

void DecodeCache::keep(Layer& cache, int64_t fresh, const Tensor& k, const Tensor& v) {
  Segment& held = cache.held;
  const int64_t capacity = cache.k.tensor.shape[0];
  const int64_t row_bytes = k.bytes() / fresh;
  const bool meta = k.device == Device::kMeta;
  if (held.length + fresh > capacity) {
    // Only sliding blocks get here: what lies before the window of the first new token is dropped.
    const int64_t keep = std::min(held.length, cache.window - 1);
    const int64_t drop = held.length - keep;
    for (const Tensor* t : {&cache.k.tensor, &cache.v.tensor})
      if (!meta) std::memmove(t->data, t->data + drop * row_bytes, size_t(keep * row_bytes));
    held.position += drop;
    held.length = keep;
  }
  ASHLAR_ASSERT(held.length + fresh <= capacity);
  if (!meta) {
    std::memcpy(cache.k.tensor.data + held.length * row_bytes, k.data, size_t(k.bytes()));
    std::memcpy(cache.v.tensor.data + held.length * row_bytes, v.data, size_t(v.bytes()));
  }
  held.length += fresh;
}

void DecodeCache::attend(const Context& ctx, int64_t layer, const kernels::AttentionShape& shape,
                         const Sequence& sequence, const Tensor& q, const Tensor& k,
                         const Tensor& v, const Tensor& out, const Tensor& lse) {
  Layer& cache = layers_[size_t(layer)];
  keep(cache, sequence.num_tokens(), k, v);
  attention_forward(ctx, shape, sequence, std::span(&cache.held, 1), q,
                    cache.k.tensor.slice(0, cache.held.length),
                    cache.v.tensor.slice(0, cache.held.length), out, lse);
}

void DecodeCache::halo_backward(const Context&, int64_t, const Sequence&, const Tensor&,
                                const Tensor&, const Matrix&, const Matrix&) {
  fail_assertion("a decode cache has no backward pass", __FILE__, __LINE__);
}

void DecodeCache::attend_backward(const Context&, int64_t, const kernels::AttentionShape&,
                                  const Sequence&, const Tensor&, const Tensor&, const Tensor&,
                                  const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                  const Tensor&, const Tensor&) {
  fail_assertion("a decode cache has no backward pass", __FILE__, __LINE__);
}

}  // namespace ashlar::eval
