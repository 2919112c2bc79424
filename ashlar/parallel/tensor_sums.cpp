#include "ashlar/parallel/tensor_sums.h"

#include <cstring>

#include "ashlar/parallel/tensor.h"

namespace ashlar::parallel {

PartialSums::PartialSums(Allocator& allocator, const nn::Model& model)
    : embed_(model.gradients().embed) {
  int64_t numel = 0;
  model.gradients().for_each(model.spec(), [&](const nn::ParameterInfo& info, const Tensor& g) {
    if (!partial_over_tp(info.name) || g.shape.ndim() != 1) return;
    vectors_.push_back(g);
    numel += g.numel();
  });
  packed_ = make_tensor(allocator, model.types().stream, {numel}, Tag::kCommunication);
}

void PartialSums::sum(const kernels::Context& ctx, comm::Group& tp) const {
  const auto each = [&](auto copy) {
    std::byte* at = packed_.tensor.data;
    for (const Tensor& vector : vectors_) {
      if (!ctx.meta()) copy(vector.data, at, size_t(vector.bytes()));
      if (at) at += vector.bytes();
    }
  };
  comm::Work embedding = tp.all_reduce(embed_, embed_, "tp embedding");
  each([](std::byte* vector, std::byte* at, size_t bytes) { std::memcpy(at, vector, bytes); });
  tp.all_reduce(packed_.tensor, packed_.tensor, "tp norms").wait();
  each([](std::byte* vector, std::byte* at, size_t bytes) { std::memcpy(vector, at, bytes); });
  embedding.wait();
}

}  // namespace ashlar::parallel
