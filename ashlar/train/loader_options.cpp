#include "ashlar/train/loader_options.h"

#include <algorithm>

#include "ashlar/core/text.h"

namespace ashlar::train {

namespace {

// The ids that datasets may hold: those of the tokenizer, and of tokens added to it.
int64_t known_ids(const data::Tokenizer& tokenizer, std::span<const data::Source> sources) {
  int64_t count = tokenizer.vocab_size();
  for (const data::Source& source : sources)
    if (const auto& sidecar = source.dataset->sidecar())
      count = std::max(count, sidecar->vocab_size);
  return count;
}

}  // namespace

data::LoaderOptions loader_options(const Recipe& recipe, std::span<const data::Source> sources,
                                   const data::Tokenizer* tokenizer, const Reader& reader) {
  const int64_t local_streams = recipe.data.num_streams / reader.count;
  const int64_t vocab_size = recipe.model.vocab_size;
  const int64_t known = tokenizer ? known_ids(*tokenizer, sources) : vocab_size;
  const bool fewer = known < vocab_size;
  const auto pad_id = int32_t(std::max<int64_t>(0, recipe.model.pad_token_id));
  return {.micro_batch = recipe.train.micro_batch,
          .global_batch = recipe.train.global_batch,
          .num_streams = recipe.data.num_streams,
          .first_stream = local_streams * reader.number,
          .local_streams = local_streams,
          .seed = recipe.train.seed,
          .vocab_size = std::min(known, vocab_size),
          .model = fewer ? tokenizer->name() : "the model",
          .pad_id = tokenizer ? tokenizer->pad_id() : pad_id,
          .document_reset = recipe.data.document_reset,
          .mask_document_end = recipe.data.mask_document_end};
}

data::LoaderOptions validation_options(const Recipe& recipe, std::span<const data::Source> sources,
                                       const data::Tokenizer* tokenizer, const Reader& reader) {
  data::LoaderOptions options = loader_options(recipe, sources, tokenizer, reader);
  options.global_batch = options.micro_batch * reader.count;
  options.num_streams = reader.count;
  options.first_stream = reader.number;
  options.local_streams = 1;
  options.shuffle = false;
  options.num_samples = recipe.train.eval_sequences;
  return options;
}

void report_new_blend(std::span<const data::Source> sources, const data::LoaderState& state,
                      Log& log) {
  for (size_t d = 0; d < sources.size(); ++d) {
    const int64_t taken = state.taken_before[d];
    if (taken > 0)
      log.info("{} goes on after the {} samples that were taken of it", sources[d].prefix(),
               format_thousands(taken));
    else
      log.info("{} starts at its beginning", sources[d].prefix());
  }
}

void report_dropped(const std::vector<data::Source>& sources, int64_t sequence_length, Log& log) {
  int64_t documents = 0, tokens = 0, all = 0;
  for (const data::Source& source : sources) {
    documents += source.samples.num_dropped();
    tokens += source.samples.dropped_tokens();
    all += source.samples.range().size();
  }
  if (documents == 0) return;
  log.info("best-fit packing drops {} documents longer than {} tokens: {} of {} training tokens",
           format_thousands(documents), format_thousands(sequence_length + 1),
           format_thousands(tokens), format_thousands(all));
}

}  // namespace ashlar::train
