// The tensors of one measured shape, and what its calls need; and the rows of `bench products`.
#pragma once

#include <list>

#include "ashlar/bench/onednn_peer.h"
#include "ashlar/bench/products.h"
#include "ashlar/core/rng.h"
#include "ashlar/kernels/copy.h"
#include "ashlar/kernels/linear.h"

namespace ashlar::bench {

class ProductCase {
 public:
  explicit ProductCase(Threads& threads) {
    context_.threads = &threads;
    context_.workspace = &workspace_;
  }
  const kernels::Context& context() const { return context_; }
  void record(Trace* trace) { context_.trace = trace; }  // null: nothing

  Tensor zeros(DType dtype, const Shape& shape) {
    return owned_.emplace_back(make_tensor(allocator_, dtype, shape, Tag::kInput)).tensor;
  }
  Tensor random(DType dtype, const Shape& shape) {  // uniform numbers around 0
    const Tensor from = zeros(DType::kF32, shape),
                 to = dtype == DType::kF32 ? from : zeros(dtype, shape);
    const Rng rng(1, "products");
    parallel_for(*context_.threads, from.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        from.as<float>()[i] = float(rng.uniform(uint64_t(i)) - 0.5);
    });
    if (dtype != DType::kF32) kernels::copy(context_, from, to);
    return to;
  }
  // Random weights [N, K] or [G, N, K], packed for the products of this machine.
  kernels::Operand operand(DType compute, const Shape& shape) {
    kernels::Operand w{random(DType::kF32, shape), {}, {}};
    const auto layout = kernels::operand_layout(context_, w.groups(), w.n(), w.k(), compute, true);
    if (layout.forward_numel) w.forward = zeros(layout.dtype, {layout.forward_numel});
    if (layout.backward_numel) w.backward = zeros(layout.dtype, {layout.backward_numel});
    kernels::pack(context_, w);
    return w;
  }
  Tensor groups(int64_t G, int64_t T) {  // first rows, even
    const Tensor rows = zeros(DType::kI32, {G + 1});
    for (int64_t g = 0; g <= G; ++g) rows.as<int32_t>()[g] = int32_t(T * g / G);
    return rows;
  }

 private:
  Allocator allocator_{Device::kCpu};
  Arena workspace_{allocator_, int64_t{256} << 20, Tag::kWorkspace};
  std::list<OwnedTensor> owned_;
  kernels::Context context_;
};

// The rows whose "shape op" holds a text, each timed as it is asked for.
class ProductRows {
 public:
  ProductRows(std::vector<ProductRow>& rows, std::string_view only, const OneDnnPeer* peer)
      : rows_(rows), only_(only), peer_(peer) {}
  bool wants(std::string_view shape, std::string_view op) const {
    return fmt::format("{} {}", shape, op).find(only_) != std::string::npos;
  }
  template <typename... Ops>
  bool wants_any(std::string_view shape, Ops... ops) const {
    return (wants(shape, ops) || ...);
  }
  // row: all but its times.
  void time(ProductRow row, double flop, function_ref<void()> body) {
    if (!wants(row.name, row.op)) return;
    row.time = time_kernel(flop, kSeconds, body);
    rows_.push_back(std::move(row));
  }
  // The same, and then the peer's product.
  void time(ProductRow row, const PeerProduct& product, double flop, function_ref<void()> body) {
    const size_t before = rows_.size();
    time(std::move(row), flop, body);
    if (!peer_ || rows_.size() == before) return;
    ProductRow& r = rows_.back();
    // Block-diagonal groups have all tokens each.
    const auto tokens = int64_t(flop / 2 / double(r.N) / double(r.K));
    r.peer = peer_->time(product, r.G, tokens, r.N, r.K, kSeconds);
  }

 private:
  static constexpr double kSeconds = 0.1;
  std::vector<ProductRow>& rows_;
  std::string_view only_;
  const OneDnnPeer* peer_;  // null: none
};

// Attention at training shapes (bench/attention.cpp).
void measure_attention(Threads& threads, DType compute, ProductRows& rows);

}  // namespace ashlar::bench
