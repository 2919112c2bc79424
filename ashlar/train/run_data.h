// The data of a run on one rank: its datasets and tokenizer, the micro-batches of each step, which
// a thread reads ahead, and the place in the data that a save keeps.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/data/prefetch.h"
#include "ashlar/data/sources.h"
#include "ashlar/data/tokenizer.h"
#include "ashlar/parallel/rank_model.h"
#include "ashlar/train/epochs.h"
#include "ashlar/train/loader_options.h"

namespace ashlar::train {

parallel::MicroBatch micro_batch(const data::Batch& batch);

class RunData {
 public:
  // Opens the datasets first, so that one that is missing is named before a tokenizer is.
  RunData(FileSystem& files, const Recipe& recipe, const Reader& reader);

  const data::Sources& sources() const { return sources_; }
  // Null for data of other programs, whose tokenizer is unknown.
  const data::Tokenizer* tokenizer() const { return tokenizer_.get(); }
  data::Loader training() const;    // from the beginning
  data::Loader validation() const;  // likewise

  // Reads ahead from the loader's place.
  void begin(data::Loader loader);
  // The micro-batches of the next step; valid until the next call.
  std::span<const parallel::MicroBatch> next_step();
  // Moves the cursor behind the last batch of a step that was run to its end.  The loader reads
  // ahead of the cursor.
  void take_step();
  const data::LoaderState& cursor() const { return cursor_; }
  int64_t next_sample() const { return data::next_sample(cursor_); }  // the next step's first
  // The datasets that began again in the step that was taken.
  std::vector<EpochBegun> epochs_begun() { return epochs_->advance(cursor_); }
  // The samples of that step, over all ranks, by number.
  std::vector<int64_t> samples_of_step() const;
  double stall_s() const { return prefetch_->stall_s(); }

 private:
  const Recipe& recipe_;
  const Reader reader_;
  data::Sources sources_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::unique_ptr<data::Prefetcher> prefetch_;
  std::unique_ptr<Epochs> epochs_;
  std::vector<data::Batch> batches_;  // of the step
  std::vector<parallel::MicroBatch> micro_batches_;
  data::LoaderState cursor_;
};

}  // namespace ashlar::train
