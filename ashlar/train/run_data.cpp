#include "ashlar/train/run_data.h"

#include <numeric>
#include <utility>

namespace ashlar::train {

parallel::MicroBatch micro_batch(const data::Batch& batch) {
  return {batch.ids_BT, batch.targets_BT, batch.segments};
}

RunData::RunData(FileSystem& files, const Recipe& recipe, const Reader& reader)
    : recipe_(recipe),
      reader_(reader),
      sources_(data::open_sources(files, recipe.data, recipe.model.vocab_size)),
      tokenizer_(data::tokenizer_of(files, recipe.data)) {}

data::Loader RunData::training() const {
  return data::Loader(sources_.train,
                      loader_options(recipe_, sources_.train, tokenizer(), reader_));
}

data::Loader RunData::validation() const {
  return data::Loader(sources_.validation,
                      validation_options(recipe_, sources_.validation, tokenizer(), reader_));
}

void RunData::begin(data::Loader loader) {
  cursor_ = loader.state();
  epochs_ = std::make_unique<Epochs>(sources_.train, cursor_);
  prefetch_ = std::make_unique<data::Prefetcher>(std::move(loader));
}

std::span<const parallel::MicroBatch> RunData::next_step() {
  batches_.resize(size_t(prefetch_->batches_per_step()));
  micro_batches_.clear();
  for (data::Batch& batch : batches_) {
    prefetch_->next(batch);
    micro_batches_.push_back(micro_batch(batch));
  }
  return micro_batches_;
}

void RunData::take_step() {
  cursor_ = batches_.back().state;
}

// The samples of a step are the next global batch of numbers, in some order (data/loader.h).
std::vector<int64_t> RunData::samples_of_step() const {
  std::vector<int64_t> samples(size_t(recipe_.train.global_batch));
  std::iota(samples.begin(), samples.end(),
            data::next_sample(cursor_) - recipe_.train.global_batch);
  return samples;
}

}  // namespace ashlar::train
