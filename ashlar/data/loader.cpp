// How it works.  Every rank plans every whole global batch, and then fills only the rows of its own
// streams.  plan() walks the G samples of the batch and notes for each its source and the number of
// earlier samples of that source; fill_row() makes a row of such a choice.
//
//   G = 8, L = 4: sample numbers of one global batch, counted from its first
//
//     stream          0  1  2  3
//                     0  1  2  3     streams 0 and 1, a rank's: rows 0 4 1 5, in this order
//                     4  5  6  7     streams 2 and 3, another's: rows 2 6 3 7
//
// state_.counts advances only at the end of a global batch, to counts_after_.  Inside of one the
// state has the beginning of the batch and the number of this rank's rows that were taken, so that
// a loader restored from it plans the same choices again and continues with the next row.
#include "ashlar/data/loader.h"

#include <algorithm>
#include <bit>

#include "ashlar/core/error.h"
#include "ashlar/core/rng.h"
#include "ashlar/data/blend.h"

namespace ashlar::data {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  return splitmix64(hash ^ splitmix64(value));
}

uint64_t order_key(uint64_t seed, int64_t epoch, int64_t source) {
  return mix(mix(splitmix64(seed), static_cast<uint64_t>(epoch)), static_cast<uint64_t>(source));
}

int64_t resolved_streams(const LoaderOptions& options) {
  const int64_t usual = default_num_streams(options.global_batch);
  if (options.num_streams == 0) return usual;
  ASHLAR_REQUIRE(
      options.num_streams > 0 && options.global_batch % options.num_streams == 0, kConfig,
      "data.num_streams is {} but train.global_batch is {}; expected a divisor of it, as "
      "{}",
      options.num_streams, options.global_batch, usual);
  return options.num_streams;
}

void check(std::span<const Source> sources, const LoaderOptions& options) {
  ASHLAR_ASSERT(!sources.empty() && options.vocab_size > 0);
  ASHLAR_REQUIRE(options.micro_batch >= 1 && options.global_batch >= 1, kConfig,
                 "train.micro_batch is {} and train.global_batch {}; expected 1 or more",
                 options.micro_batch, options.global_batch);
  for (const Source& source : sources)
    ASHLAR_ASSERT(source.samples.size() > 0 &&
                  source.samples.sequence_length() == sources.front().samples.sequence_length());
}

}  // namespace

Loader::Loader(std::vector<Source> sources, const LoaderOptions& options)
    : sources_(std::move(sources)), options_(options) {
  check(sources_, options_);
  options_.num_streams = resolved_streams(options_);
  const int64_t per_stream = options_.global_batch / options_.num_streams;
  if (options_.local_streams == 0)
    options_.local_streams = options_.num_streams - options_.first_stream;
  ASHLAR_ASSERT(options_.first_stream >= 0 && options_.local_streams > 0 &&
                options_.first_stream + options_.local_streams <= options_.num_streams);
  local_rows_ = per_stream * options_.local_streams;
  ASHLAR_REQUIRE(local_rows_ % options_.micro_batch == 0, kConfig,
                 "train.micro_batch is {} but a step has {} sequences (train.global_batch {}); "
                 "expected a divisor of {}",
                 options_.micro_batch, local_rows_, options_.global_batch, local_rows_);
  for (const Source& source : sources_) weights_.push_back(source.weight);
  weights_ = normalized_weights(weights_);
  options_.num_samples = std::min(options_.num_samples, samples_per_epoch());
  if (options_.num_samples > 0)
    for (const Source& source : sources_) sizes_.push_back(source.samples.size());
  length_ = sources_.front().samples.sequence_length();
  window_.resize(static_cast<size_t>(length_) + 1);
  choices_.resize(static_cast<size_t>(options_.global_batch));
  state_ = beginning();
}

LoaderState Loader::beginning() const {
  LoaderState state = first_state(sources_.size());
  state.global_batch = options_.global_batch;
  state.num_streams = options_.num_streams;
  state.seed = options_.seed;
  // Fingerprints are of all that decides which tokens sample number i holds, but for the seed,
  // which restore() compares by itself.
  const uint64_t cut = mix(static_cast<uint64_t>(length_), options_.shuffle);
  state.fingerprint = cut;
  for (size_t d = 0; d < sources_.size(); ++d) {
    const Samples& samples = sources_[d].samples;
    const uint64_t parts[] = {
        sources_[d].dataset->fingerprint(), static_cast<uint64_t>(samples.range().begin),
        static_cast<uint64_t>(samples.range().end), static_cast<uint64_t>(samples.size())};
    state.datasets[d] = cut;
    for (const uint64_t part : parts) {
      state.datasets[d] = mix(state.datasets[d], part);
      state.fingerprint = mix(state.fingerprint, part);
    }
    state.fingerprint = mix(state.fingerprint, std::bit_cast<uint64_t>(weights_[d]));
  }
  return state;
}

LoaderState Loader::beginning_after(const LoaderState& other_blend) const {
  LoaderState state = beginning();
  state.before = next_sample(other_blend);
  std::vector<int64_t> orders = other_blend.orders;  // in use
  std::vector<uint64_t> left = other_blend.datasets;
  std::vector<size_t> fresh;
  for (size_t d = 0; d < sources_.size(); ++d) {
    const auto same = std::find(left.begin(), left.end(), state.datasets[d]);
    if (same == left.end()) {
      fresh.push_back(d);
      continue;
    }
    const auto old = static_cast<size_t>(same - left.begin());
    state.taken_before[d] = other_blend.taken_before[old] + other_blend.counts[old];
    state.orders[d] = other_blend.orders[old];
    *same = 0;  // a dataset that the blend names twice goes on in both places
  }
  for (const size_t d : fresh) {
    int64_t order = 0;
    while (std::find(orders.begin(), orders.end(), order) != orders.end()) ++order;
    state.orders[d] = order;
    orders.push_back(order);
  }
  return state;
}

bool Loader::restore(const LoaderState& state, bool allow_dataset_change) {
  const LoaderState fresh = beginning();
  const bool same =
      state.fingerprint == fresh.fingerprint && state.counts.size() == fresh.counts.size();
  ASHLAR_REQUIRE(
      same || allow_dataset_change, kData,
      "the saved loader state belongs to data with fingerprint {:016x}; these datasets, weights "
      "and sequence length have {:016x}: restore them, or set data.allow_dataset_change=true: then "
      "datasets that stay go on, and new ones start at their beginning",
      state.fingerprint, fresh.fingerprint);
  ASHLAR_REQUIRE(state.seed == fresh.seed, kConfig,
                 "train.seed is {}; expected {}, with which the saved loader state began",
                 fresh.seed, state.seed);
  // Between global batches all of these may change: `consumed` and `counts` do not depend on them.
  ASHLAR_REQUIRE(state.position == 0 || (same && state.global_batch == fresh.global_batch &&
                                         state.num_streams == fresh.num_streams),
                 kConfig,
                 "the saved loader state stands {} samples inside a global batch of {} in {} "
                 "streams; expected the same data and the same sizes, not {} in {}",
                 state.position, state.global_batch, state.num_streams, fresh.global_batch,
                 fresh.num_streams);
  ASHLAR_REQUIRE(
      state.position % options_.micro_batch == 0 && state.position < local_rows_, kConfig,
      "the saved loader state stands {} samples inside a step of {}; expected a multiple "
      "of train.micro_batch, {}",
      state.position, local_rows_, options_.micro_batch);
  planned_ = false;
  if (!same) {
    state_ = beginning_after(state);
    return false;
  }
  state_ = state;
  state_.datasets = fresh.datasets;
  state_.global_batch = fresh.global_batch;
  state_.num_streams = fresh.num_streams;
  return true;
}

int64_t Loader::samples_per_epoch() const {
  int64_t sum = 0;
  for (const Source& source : sources_) sum += source.samples.size();
  return sum;
}

int64_t Loader::num_batches() const {
  ASHLAR_ASSERT(options_.num_samples > 0);
  const int64_t steps = (options_.num_samples + options_.global_batch - 1) / options_.global_batch;
  return steps * batches_per_step();
}

void Loader::plan() {
  counts_after_ = state_.counts;
  for (int64_t i = 0; i < options_.global_batch; ++i) {
    const int64_t number = state_.consumed + i;
    Choice& choice = choices_[static_cast<size_t>(i)];
    if (options_.num_samples > 0 && number >= options_.num_samples) {
      choice = {-1, 0};
      continue;
    }
    const auto source = static_cast<size_t>(blend_choice(weights_, number, counts_after_, sizes_));
    choice = {static_cast<int32_t>(source), state_.taken_before[source] + counts_after_[source]++};
  }
  planned_ = true;
}

void Loader::next(Batch& batch) {
  if (!planned_) plan();
  const auto tokens = static_cast<size_t>(options_.micro_batch * length_);
  batch.num_rows = options_.micro_batch;
  batch.length = length_;
  batch.ids_BT.resize(tokens);
  batch.targets_BT.resize(tokens);
  batch.samples_B.resize(static_cast<size_t>(options_.micro_batch));
  batch.datasets_B.resize(static_cast<size_t>(options_.micro_batch));
  batch.segments.clear();
  const int64_t per_stream = options_.global_batch / options_.num_streams;
  for (int64_t row = 0; row < options_.micro_batch; ++row) {
    const int64_t local = state_.position + row;  // among this rank's rows of the global batch
    const int64_t stream = options_.first_stream + local / per_stream;
    const int64_t in_batch = (local % per_stream) * options_.num_streams + stream;
    const Choice& choice = choices_[static_cast<size_t>(in_batch)];
    batch.samples_B[static_cast<size_t>(row)] = next_sample(state_) + in_batch;
    batch.datasets_B[static_cast<size_t>(row)] = choice.source;
    fill_row(row, choice, batch);
  }
  batch.num_targets = std::count_if(batch.targets_BT.begin(), batch.targets_BT.end(),
                                    [](int32_t target) { return target >= 0; });
  state_.position += options_.micro_batch;
  if (state_.position == local_rows_) {
    state_.position = 0;
    state_.consumed += options_.global_batch;
    state_.counts = counts_after_;
    planned_ = false;
  }
  batch.state = state_;
}

// Reads the tokens of the sample into window_, its documents into spans_; returns how many tokens
// there are.
int64_t Loader::read_sample(const Choice& choice) {
  spans_.clear();
  if (choice.source < 0) return 0;
  const Source& source = sources_[static_cast<size_t>(choice.source)];
  const int64_t size = source.samples.size(), number = choice.count % size;
  const Permutation order(static_cast<uint64_t>(size),
                          order_key(options_.seed, choice.count / size,
                                    state_.orders[static_cast<size_t>(choice.source)]));
  const auto sample =
      options_.shuffle ? static_cast<int64_t>(order(static_cast<uint64_t>(number))) : number;
  source.samples.spans(source.dataset->index(), sample, spans_);
  int64_t filled = 0;  // tokens in the window so far; only best fit leaves some of the T + 1 free
  for (const DocumentSpan& span : spans_) {
    source.dataset->read(
        span.begin, options_.vocab_size,
        std::span(window_).subspan(static_cast<size_t>(filled), static_cast<size_t>(span.length)),
        options_.model);
    if (options_.on_read) options_.on_read(*source.dataset, span);
    filled += span.length;
  }
  return filled;
}

void Loader::fill_row(int64_t row, const Choice& choice, Batch& batch) {
  const int64_t filled = read_sample(choice);
  std::fill(window_.begin() + filled, window_.end(), options_.pad_id);
  int32_t* ids_T = batch.ids_BT.data() + row * length_;
  int32_t* targets_T = batch.targets_BT.data() + row * length_;
  std::copy(window_.begin(), window_.end() - 1, ids_T);
  std::copy(window_.begin() + 1, window_.end(), targets_T);
  // The last token that was read has no token after it.
  for (int64_t t = std::max<int64_t>(0, filled - 1); t < length_; ++t) targets_T[t] = -1;
  mask_targets(choice, {targets_T, static_cast<size_t>(length_)});
  if (options_.mask_document_end) {
    int64_t at = 0;
    for (const DocumentSpan& span : spans_) {
      if (span.starts_document && at > 0) targets_T[at - 1] = -1;
      at += span.length;
    }
  }
  add_segments(row, filled, batch);
}

// Targets of a masked dataset that are not learned.
void Loader::mask_targets(const Choice& choice, std::span<int32_t> targets_T) const {
  if (choice.source < 0) return;
  const IndexedDataset& dataset = *sources_[static_cast<size_t>(choice.source)].dataset;
  if (!dataset.is_masked()) return;
  size_t at = 0;  // in the window, whose first token is no target
  for (const DocumentSpan& span : spans_)
    for (int64_t i = 0; i < span.length; ++i, ++at)
      if (at > 0 && !dataset.is_learned(span.begin + i)) targets_T[at - 1] = -1;
}

void Loader::add_segments(int64_t row, int64_t filled, Batch& batch) const {
  const auto add = [&](int64_t begin, int64_t end, bool padding = false) {
    const auto number = static_cast<int64_t>(batch.segments.size());
    if (begin < end)
      batch.segments.push_back({row * length_ + begin, end - begin, 0, number, padding});
  };
  const int64_t inputs = std::max<int64_t>(0, filled - 1);  // the last token is a target only
  if (options_.document_reset) {
    int64_t at = 0;
    for (const DocumentSpan& span : spans_) {
      add(at, std::min(at + span.length, inputs));
      at += span.length;
    }
  } else {
    add(0, inputs);
  }
  add(inputs, length_, true);
}

}  // namespace ashlar::data
