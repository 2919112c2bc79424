#include "ashlar/eval/score.h"

#include <algorithm>
#include <cmath>

#include "ashlar/eval/whole_texts.h"
#include "ashlar/kernels/copy.h"
#include "ashlar/nn/loss.h"
#include "ashlar/tensor/host_bytes.h"

namespace ashlar::eval {
namespace {

// Adds the scores of the logits after token t.
void add_scores(std::span<const int32_t> ids, size_t t, std::span<const double> row_V,
                Scores& scores) {
  const auto top = std::max_element(row_V.begin(), row_V.end());
  scores.argmax.push_back(int32_t(top - row_V.begin()));
  double sum = 0.0;
  for (const double logit : row_V) sum += std::exp(logit - *top);
  ASHLAR_REQUIRE(std::isfinite(sum), kNumeric,
                 "the logits after token {} are not finite: the activations pass the range of "
                 "numbers; try --dtype fp64, or weights that are not as large",
                 t + 1);
  if (t + 1 < ids.size())
    scores.logprobs.push_back(row_V[size_t(ids[t + 1])] - *top - std::log(sum));
}

}  // namespace

std::string logits_bytes(const Scores& scores) {
  const Tensor& logits = scores.logits.tensor;
  std::string bytes(size_t(logits.bytes()), '\0');
  copy_to_host(logits, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

Scores score(const kernels::Context& ctx, Allocator& allocator, nn::Model& model,
             std::span<const int32_t> ids) {
  const auto T = int64_t(ids.size());
  const ModelSpec& spec = model.spec();
  ASHLAR_REQUIRE(T >= 2, kConfig,
                 "{} token id given; expected at least 2 (the second is predicted)", T);
  for (const int32_t id : ids) ASHLAR_ASSERT(id >= 0 && id < spec.vocab_size);
  WholeTexts calls(allocator, model, T);
  const nn::Saved& saved = calls.run(ctx, ids, kernels::Sequence::rows(1, T));
  Scores scores;
  scores.logits = make_tensor(allocator, model.types().wide, {T, spec.vocab_size}, Tag::kWorkspace);
  head_logits(ctx, model, saved.final_TH, scores.logits.tensor);
  if (ctx.meta()) return scores;
  std::vector<double> row(size_t(spec.vocab_size));
  for (int64_t t = 0; t < T; ++t) {
    download(ctx, scores.logits.tensor.slice(t, t + 1), row);
    add_scores(ids, size_t(t), row, scores);
  }
  for (const double logprob : scores.logprobs)
    scores.loss -= logprob / double(scores.logprobs.size());
  for (const nn::Block& block : model.weights().blocks) {
    const auto load = block.feed_forward->load(saved.slot);
    if (!load) continue;
    std::vector<int32_t> chosen(size_t(load->expert_Tk.numel()));
    download(ctx, load->expert_Tk, chosen);
    auto& tokens = scores.experts.emplace_back();
    for (size_t t = 0, k = chosen.size() / ids.size(); t < ids.size(); ++t)
      tokens.emplace_back(chosen.begin() + long(t * k), chosen.begin() + long((t + 1) * k));
  }
  return scores;
}

}  // namespace ashlar::eval
