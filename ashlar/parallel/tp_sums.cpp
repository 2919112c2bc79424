#include "ashlar/parallel/tp_sums.h"

#include "ashlar/kernels/copy.h"

namespace ashlar::parallel {

PartialSums::PartialSums(Allocator& allocator, const nn::Model& model)
    : embed_(model.weights().embed.gradient) {
  int64_t numel = 0;
  for (const nn::Stored& stored : model.weights().tensors) {
    const Tensor& gradient = stored.weight->gradient;
    if (!partial_over_stream(stored.logical[0]) || gradient.shape.ndim() != 1) continue;
    vectors_.push_back(gradient);
    numel += gradient.numel();
  }
  packed_ = make_tensor(allocator, model.types().stream, {numel}, Tag::kCommunication);
}

void PartialSums::sum(const kernels::Context& ctx, comm::Group& tp) const {
  // use(vector, where it lies in what is sent)
  const auto each = [&](auto use) {
    int64_t begin = 0;
    for (const Tensor& vector : vectors_) {
      use(vector, packed_.tensor.slice(begin, begin + vector.numel()));
      begin += vector.numel();
    }
  };
  comm::Work embedding = tp.all_reduce(embed_, embed_, "tp embedding");
  each([&](const Tensor& vector, const Tensor& packed) { copy(ctx, vector, packed); });
  tp.all_reduce(packed_.tensor, packed_.tensor, "tp norms").wait();
  each([&](const Tensor& vector, const Tensor& packed) { copy(ctx, packed, vector); });
  embedding.wait();
}

}  // namespace ashlar::parallel
