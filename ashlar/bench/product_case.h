// The tensors of one measured shape, and what its calls need; and the rows of `bench products`.
#pragma once

#include <list>

#include "ashlar/bench/products.h"
#include "ashlar/core/rng.h"
#include "ashlar/kernels/copy.h"

namespace ashlar::bench {

class ProductCase {
 public:
  explicit ProductCase(Threads& threads) {
    context_.threads = &threads;
    context_.workspace = &workspace_;
  }
  const kernels::Context& context() const { return context_; }

  Tensor zeros(DType dtype, const Shape& shape) {
    return owned_.emplace_back(make_tensor(allocator_, dtype, shape, Tag::kInput)).tensor;
  }
  Tensor random(DType dtype, const Shape& shape) {  // uniform numbers around 0
    const Tensor from = zeros(DType::kF32, shape),
                 to = dtype == DType::kF32 ? from : zeros(dtype, shape);
    const Rng rng(1, "products");
    for (int64_t i = 0; i < from.numel(); ++i)
      from.as<float>()[i] = float(rng.uniform(uint64_t(i)) - 0.5);
    if (dtype != DType::kF32) kernels::copy(context_, from, to);
    return to;
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
  ProductRows(std::vector<ProductRow>& rows, std::string_view only) : rows_(rows), only_(only) {}
  bool wants(std::string_view shape, std::string_view op) const {
    return fmt::format("{} {}", shape, op).find(only_) != std::string::npos;
  }
  template <typename... Ops>
  bool wants_any(std::string_view shape, Ops... ops) const {
    return (wants(shape, ops) || ...);
  }
  // row: all but its time.
  void time(ProductRow row, double flop, function_ref<void()> body) {
    constexpr double kSeconds = 0.1;
    if (!wants(row.name, row.op)) return;
    row.time = time_kernel(flop, kSeconds, body);
    rows_.push_back(std::move(row));
  }

 private:
  std::vector<ProductRow>& rows_;
  std::string_view only_;
};

// Attention at training shapes (bench/attention.cpp).
void measure_attention(Threads& threads, DType compute, ProductRows& rows);

}  // namespace ashlar::bench
