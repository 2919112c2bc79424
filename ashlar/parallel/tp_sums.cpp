#include "ashlar/parallel/tp_sums.h"

#include <array>

#include "ashlar/kernels/copy.h"

namespace ashlar::parallel {

PartialSums::PartialSums(Allocator& allocator, const nn::Model& model, bool shards_stream) {
  int64_t numel = 0;
  for (const nn::Stored& stored : model.weights().tensors) {
    const Tensor& gradient = stored.weight->gradient;
    if (!stored.is_trained() || !partial_over_shares(stored.logical[0], shards_stream)) continue;
    const bool vector = gradient.shape.ndim() == 1 || stored.is_adapter;
    (vector ? vectors_ : tables_).push_back(vector ? gradient.view({gradient.numel()}) : gradient);
    if (vector) numel += gradient.numel();
  }
  packed_ = make_tensor(allocator, model.types().wide, {numel}, Tag::kCommunication);
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
  std::array<comm::Work, 2> tables;
  ASHLAR_ASSERT(tables_.size() <= tables.size());
  for (size_t i = 0; i < tables_.size(); ++i)
    tables[i] = tp.all_reduce(tables_[i], tables_[i], "tp embedding");
  each([&](const Tensor& vector, const Tensor& packed) { copy(ctx, vector, packed); });
  tp.all_reduce(packed_.tensor, packed_.tensor, "tp norms").wait();
  each([&](const Tensor& vector, const Tensor& packed) { copy(ctx, packed, vector); });
  for (comm::Work& table : tables) table.wait();
}

}  // namespace ashlar::parallel
