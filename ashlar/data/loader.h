// Makes batches in an order that is a function of (seed, datasets, sample number) alone.
//
// Order   Sample number i of a run takes dataset d = blend_choice(i), and of it the next number k;
//         in epoch e = k / size that is sample Permutation(size, (seed, e, d))(k % size).  In a
//         blend that replaced another, i counts from its first sample, and a dataset of both keeps
//         its d in the permutation.
// Streams The sample numbers are divided into L logical streams: stream l holds l, l + L, l + 2L,
//         ...  A global batch takes global_batch / L samples of each stream, stream after stream; L
//         divides it, so batch t is always the set [t G, t G + G).  A rank is given whole streams.
//         Neither the micro batch nor the ranks change a global batch; L changes only its order.
// Rows    A row is one sample: ids are its first T tokens, targets the token after each, or -1
//         where there is no loss: padding, a token that a masked dataset does not learn, and with
//         mask_document_end a document's first token.
//         Segments split at document borders and at row starts, positions restart there; without
//         document_reset the documents of a row are one segment.  The last token of a sample is a
//         target only.  Unfilled space at the end (best fit) is a segment of padding.
// Evaluation  with num_samples the loader takes that many samples, each once, and then rows without
//         targets, so that any number of ranks that take turns evaluate one set.
// Errors  kConfig: batch sizes that do not divide; kData: a token outside the vocabulary.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/data/loader_state.h"
#include "ashlar/data/sources.h"
#include "ashlar/tensor/segment.h"

namespace ashlar::data {

struct Batch {
  int64_t num_rows = 0, length = 0;  // B, T
  std::vector<int32_t> ids_BT, targets_BT;
  std::vector<Segment> segments;    // tile rows [0, B T)
  std::vector<int64_t> samples_B;   // sample numbers of the run
  std::vector<int32_t> datasets_B;  // index of the source of each row; -1: a row without a sample
  int64_t num_targets = 0;          // targets that are not -1
  LoaderState state;                // after this batch; resuming from it gives the next one
};

struct LoaderOptions {
  int64_t micro_batch = 1;    // rows of a Batch
  int64_t global_batch = 1;   // rows of a step over all ranks; a multiple of micro_batch
  int64_t num_streams = 0;    // L; 0: default_num_streams(global_batch)
  int64_t first_stream = 0;   // the streams of this rank
  int64_t local_streams = 0;  // 0: all streams from first_stream on
  uint64_t seed = 1;
  int64_t vocab_size = 0;
  std::string model = "the model";  // the owner of the vocabulary, for messages
  int32_t pad_id = 0;
  bool shuffle = true;  // false: samples in their order, to evaluate a whole set
  // Above 0: the samples of an evaluation, or all if there are fewer; a dataset that is used up is
  // skipped.  0: no end; datasets start again.
  int64_t num_samples = 0;
  bool document_reset = true;
  bool mask_document_end = false;
  // Told of all tokens that are read, in their order: for measurements.
  std::function<void(const IndexedDataset& dataset, const DocumentSpan& span)> on_read = nullptr;
};

class Loader {
 public:
  // All sources must have one sequence length.  Starts at the beginning.
  Loader(std::vector<Source> sources, const LoaderOptions& options);

  // Replaces the content of `batch`; allocates nothing once its vectors have grown.
  void next(Batch& batch);

  const LoaderState& state() const { return state_; }
  // Continues after a state; returns false if it is of another blend.  Then datasets of both, with
  // the same tokens cut into the same samples, continue after the samples taken of them
  // (state().taken_before), and others start at their beginning. Errors  kData: another blend
  // without allow_dataset_change; kConfig: another seed, or another
  //         blend, global_batch or num_streams in the middle of a global batch.
  bool restore(const LoaderState& state, bool allow_dataset_change = false);

  std::span<const Source> sources() const { return sources_; }
  int64_t batches_per_step() const { return local_rows_ / options_.micro_batch; }
  int64_t samples_per_epoch() const;  // the sum over the sources
  // The number of batches that each rank of an evaluation takes to read all samples.
  int64_t num_batches() const;

 private:
  struct Choice {
    int32_t source;  // -1: no samples are left
    int64_t count;   // k: samples taken of the source before this one, over all epochs
  };
  void plan();  // fills choices_ for the global batch at state_
  void fill_row(int64_t row, const Choice& choice, Batch& batch);
  int64_t read_sample(const Choice& choice);
  void mask_targets(const Choice& choice, std::span<int32_t> targets_T) const;
  void add_segments(int64_t row, int64_t filled, Batch& batch) const;
  LoaderState beginning() const;
  LoaderState beginning_after(const LoaderState& other_blend) const;

  std::vector<Source> sources_;
  LoaderOptions options_;
  std::vector<double> weights_;
  std::vector<int64_t> sizes_;  // samples of each source; empty: without end
  int64_t length_ = 0, local_rows_ = 0;
  LoaderState state_;
  bool planned_ = false;
  std::vector<Choice> choices_;        // [global_batch]
  std::vector<int64_t> counts_after_;  // state_.counts after the planned global batch
  std::vector<DocumentSpan> spans_;
  std::vector<int32_t> window_;  // T + 1 tokens
};

}  // namespace ashlar::data
