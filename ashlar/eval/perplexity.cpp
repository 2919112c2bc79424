#include "ashlar/eval/perplexity.h"

#include <algorithm>
#include <cmath>

#include "ashlar/core/clock.h"
#include "ashlar/kernels/copy.h"
#include "ashlar/nn/loss.h"

namespace ashlar::eval {

double Perplexity::value() const {
  return std::exp(loss);
}

TokenLosses::TokenLosses(Allocator& allocator, nn::Model& model, int64_t num_tokens)
    : model_(model),
      calls_(allocator, model, num_tokens),
      targets_(make_tensor(allocator, DType::kI32, {num_tokens}, Tag::kInput)),
      loss_(make_tensor(allocator, model.types().wide, {num_tokens}, Tag::kInput)) {}

void TokenLosses::run(const kernels::Context& ctx, const Texts& texts, std::span<double> losses) {
  sequence_.assign(texts.segments);
  if (!ctx.meta()) upload(ctx, texts.targets, targets_.tensor);
  const nn::Saved& saved = calls_.run(ctx, texts.ids, sequence_);
  head_loss(ctx, model_, saved.final_TH, targets_.tensor, loss_.tensor);
  download(ctx, loss_.tensor, losses);
}

Perplexity perplexity(const kernels::Context& ctx, Allocator& allocator, nn::Model& model,
                      const std::string& name, data::Source source, Counting counting,
                      int64_t micro_batch, int64_t max_samples, Log& log) {
  const auto start = Clock::now();
  data::LoaderOptions options;
  options.micro_batch = options.global_batch = micro_batch;
  options.vocab_size = model.spec().vocab_size;
  options.pad_id = int32_t(std::max<int64_t>(0, model.spec().pad_token_id));
  options.shuffle = false;
  options.document_reset = counting == Counting::kDocumentsApart;
  options.model = name;
  data::Loader loader({std::move(source)}, options);
  const data::Samples& samples = loader.sources().front().samples;
  const int64_t length = samples.sequence_length();
  const int64_t all = loader.samples_per_epoch();
  const int64_t num_samples = max_samples > 0 ? std::min(max_samples, all) : all;

  const int64_t T = micro_batch * length;
  TokenLosses token_losses(allocator, model, T);
  data::Batch batch;
  std::vector<double> losses(size_t(T), 0.0);
  Perplexity result;
  Progress progress(log, "evaluating", num_samples, "samples");
  double sum = 0.0;
  while (result.num_samples < num_samples) {
    loader.next(batch);
    const int64_t rows = std::min(micro_batch, num_samples - result.num_samples);
    token_losses.run(ctx,
                     {.ids = batch.ids_BT, .targets = batch.targets_BT, .segments = batch.segments},
                     losses);
    for (int64_t t = 0; t < rows * length; ++t) {
      if (batch.targets_BT[size_t(t)] < 0) continue;
      sum += losses[size_t(t)];
      ++result.num_targets;
    }
    ASHLAR_REQUIRE(std::isfinite(sum), kNumeric,
                   "{}: the loss of sample {} of {} or one of the {} after it is not finite: the "
                   "activations pass the range of numbers; try --dtype fp64",
                   name, result.num_samples, loader.sources().front().prefix(), rows - 1);
    result.num_samples += rows;
    progress.set(result.num_samples);
  }
  const int64_t begin = samples.range().begin;
  result.tokens = {begin, std::min(begin + num_samples * length + 1, samples.range().end)};
  result.loss = sum / double(result.num_targets);
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace ashlar::eval
