#include "ashlar/eval/score.h"

#include <algorithm>
#include <cmath>

#include "ashlar/kernels/copy.h"
#include "ashlar/nn/loss.h"

namespace ashlar::eval {
namespace {

template <typename T>
void read_logits(std::span<const int32_t> ids, const Tensor& logits_TV, Scores& scores) {
  const int64_t V = logits_TV.shape[1];
  for (size_t t = 0; t < ids.size(); ++t) {
    const T* row = logits_TV.as<T>() + int64_t(t) * V;
    const T* top = std::max_element(row, row + V);
    scores.argmax.push_back(int32_t(top - row));
    double sum = 0.0;
    for (int64_t v = 0; v < V; ++v) sum += std::exp(double(row[v]) - double(*top));
    ASHLAR_REQUIRE(std::isfinite(sum), kNumeric,
                   "the logits after token {} are not finite: the activations pass the range of "
                   "numbers; try --dtype fp64, or weights that are not as large",
                   t + 1);
    if (t + 1 == ids.size()) break;
    scores.logprobs.push_back(double(row[ids[t + 1]]) - double(*top) - std::log(sum));
  }
}

}  // namespace

Scores score(const kernels::Context& ctx, Allocator& allocator, nn::Model& model,
             std::span<const int32_t> ids) {
  const auto T = int64_t(ids.size());
  const ModelSpec& spec = model.spec();
  ASHLAR_REQUIRE(T >= 2, kConfig,
                 "{} token id given; expected at least 2 (the second is predicted)", T);
  for (const int32_t id : ids) ASHLAR_ASSERT(id >= 0 && id < spec.vocab_size);
  const auto lay_out = [&](Arena& arena) {
    return nn::Saved::make(arena, model.weights(), model.types(), T, 0, nn::Keep::kNothing);
  };
  Arena arena = arena_for(allocator, Tag::kWorkspace, [&](Arena& a) { lay_out(a); });
  const nn::Saved saved = lay_out(arena);
  OwnedTensor ids_T = make_tensor(allocator, DType::kI32, {T}, Tag::kInput);
  upload(ctx, ids, ids_T.tensor);
  const kernels::Sequence sequence = kernels::Sequence::rows(1, T);
  nn::LocalExchange exchange;
  forward(ctx, model.call(exchange.exchanges(), sequence, ids_T.tensor), saved);

  Scores scores;
  scores.logits = make_tensor(allocator, model.types().wide, {T, spec.vocab_size}, Tag::kWorkspace);
  head_logits(ctx, model, saved.final_TH, scores.logits.tensor);
  scores.logits.tensor.dtype == DType::kF64 ? read_logits<double>(ids, scores.logits.tensor, scores)
                                            : read_logits<float>(ids, scores.logits.tensor, scores);
  for (const double logprob : scores.logprobs)
    scores.loss -= logprob / double(scores.logprobs.size());
  for (const nn::Block& block : model.weights().blocks) {
    const auto load = block.feed_forward->load(saved.slot);
    if (!load) continue;
    const auto chosen = load->expert_Tk.span<int32_t>();
    auto& tokens = scores.experts.emplace_back();
    for (size_t t = 0, k = chosen.size() / ids.size(); t < ids.size(); ++t)
      tokens.emplace_back(chosen.begin() + long(t * k), chosen.begin() + long((t + 1) * k));
  }
  return scores;
}

}  // namespace ashlar::eval
