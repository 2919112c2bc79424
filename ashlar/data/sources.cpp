#include "ashlar/data/sources.h"

#include <algorithm>
#include <cmath>

#include "ashlar/core/error.h"
#include "ashlar/data/prepare.h"

namespace ashlar::data {
namespace {

using Dataset = std::shared_ptr<const IndexedDataset>;

// Runs body; its errors are rethrown with the key to blame in front.
template <typename Body>
auto blaming(std::string_view key, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", key, error.what()));
  }
}

Dataset open_dataset_for(FileSystem& files, const std::string& prefix, int64_t vocab_size,
                         std::string_view key) {
  Dataset dataset = open_dataset(files, prefix, key);
  if (const auto& sidecar = dataset->sidecar())
    ASHLAR_REQUIRE(sidecar->vocab_size <= vocab_size, kConfig,
                   "model.vocab_size is {}; expected at least {}, the vocabulary that {} was "
                   "prepared with",
                   vocab_size, sidecar->vocab_size, prefix);
  return dataset;
}

// The beginning of the held-out tail.
int64_t held_out_from(const DatasetIndex& index, const DataSpec& spec, const std::string& prefix) {
  const bool whole = spec.packing == Packing::kBestFit;  // documents must not be cut
  const int64_t tokens = index.num_tokens(), sample = whole ? 1 : spec.sequence_length + 1;
  const auto part =
      static_cast<int64_t>(std::ceil(static_cast<double>(tokens) * spec.validation_fraction));
  const int64_t held = std::max(part, sample), cut = tokens - held;
  ASHLAR_REQUIRE(cut >= sample, kConfig,
                 "{} has {} tokens, too few for a training and a validation sample of {} tokens "
                 "each; expected more text, a smaller data.sequence_length or "
                 "data.validation_fraction=0",
                 prefix, tokens, sample);
  const int64_t document = index.locate(cut).document;
  int64_t nearest = -1;
  for (const int64_t border :
       {index.document_start(document), index.document_start(document + 1)}) {
    const bool usable = border >= sample && tokens - border >= sample;
    if (usable && (nearest < 0 || std::abs(border - cut) < std::abs(nearest - cut)))
      nearest = border;
  }
  ASHLAR_REQUIRE(nearest > 0 || !whole, kConfig,
                 "{} has {} document(s) and no border to cut a validation part at; give "
                 "data.validation or data.validation_fraction=0",
                 prefix, index.num_documents());
  const bool near_enough = nearest > 0 && std::abs(nearest - cut) <= held / 2;
  return whole || near_enough ? nearest : cut;
}

Source make_source(Dataset dataset, TokenRange range, int64_t sequence_length, Packing packing,
                   double weight, std::string_view part, Rest rest = Rest::kDrop) {
  if (rest == Rest::kKeep)
    sequence_length = std::clamp<int64_t>(range.size() - 1, 1, sequence_length);
  Source source{dataset, Samples(dataset->index(), range, sequence_length, packing, rest), weight};
  ASHLAR_REQUIRE(
      source.samples.size() > 0, kConfig,
      "{}: the {} tokens for {} hold no sample of {} tokens (data.sequence_length {} and "
      "one more){}; expected more text or a smaller data.sequence_length",
      source.prefix(), range.size(), part, sequence_length + 1, sequence_length,
      packing == Packing::kBestFit ? ", in which a whole document fits" : "");
  return source;
}

void check_tokenizers(std::span<const Dataset> datasets) {
  const IndexedDataset* known = nullptr;
  for (const Dataset& dataset : datasets) {
    if (!dataset->sidecar()) continue;
    if (!known) known = dataset.get();
    ASHLAR_REQUIRE(
        dataset->sidecar()->tokenizer_fingerprint == known->sidecar()->tokenizer_fingerprint, kData,
        "{} was prepared with tokenizer {:016x}, {} with {:016x}; expected one tokenizer for all "
        "datasets of data.train and data.validation",
        known->prefix(), known->sidecar()->tokenizer_fingerprint, dataset->prefix(),
        dataset->sidecar()->tokenizer_fingerprint);
  }
}

// Neither a sidecar nor a tokenizer is beside the dataset.
bool is_foreign(FileSystem& files, const std::string& prefix) {
  return !files.stat(prefix + ".json", LinkPolicy::kFollow) &&
         !files.stat(prefix + ".tokenizer.model", LinkPolicy::kFollow);
}

// Checks that the tokenizer has the ids of a dataset that does not name its tokenizer.
void check_ids(FileSystem& files, const std::string& prefix, const Tokenizer& tokenizer,
               std::string_view key) {
  blaming(key, [&] {
    const IndexedDataset dataset(files, prefix);
    const int64_t tokens = dataset.index().num_tokens();
    std::vector<int32_t> ids;
    for (const int64_t begin : looked_at(tokens)) {
      ids.resize(static_cast<size_t>(std::min(kBlockTokens, tokens - begin)));
      try {
        dataset.read(begin, tokenizer.vocab_size(), ids, tokenizer.name());
      } catch (const Error& error) {
        ASHLAR_FAIL(kData, "{}; name the tokenizer that made the ids, or give data.tokenizer=\"\"",
                    error.what());
      }
    }
  });
}

}  // namespace

std::shared_ptr<const IndexedDataset> open_dataset(FileSystem& files, const std::string& prefix,
                                                   std::string_view key) {
  return blaming(key, [&] { return std::make_shared<const IndexedDataset>(files, prefix); });
}

Sources open_sources(FileSystem& files, const DataSpec& spec, int64_t vocab_size,
                     std::string_view train_key) {
  ASHLAR_REQUIRE(!spec.train.empty(), kConfig,
                 "data.train is empty; expected the PREFIX of a prepared dataset");
  ASHLAR_REQUIRE(spec.validation_fraction >= 0 && spec.validation_fraction < 1, kConfig,
                 "data.validation_fraction is {}; expected 0 or more and less than 1",
                 spec.validation_fraction);
  const bool cut = spec.validation.empty() && spec.validation_fraction > 0;
  Sources sources;
  std::vector<Dataset> datasets;
  const auto add = [&](std::vector<Source>& to, TokenRange range, double weight,
                       std::string_view part) {
    to.push_back(
        make_source(datasets.back(), range, spec.sequence_length, spec.packing, weight, part));
  };
  for (const BlendEntry& entry : spec.train) {
    datasets.push_back(open_dataset_for(files, entry.path, vocab_size, train_key));
    blaming(train_key, [&] {
      const DatasetIndex& index = datasets.back()->index();
      const int64_t end = index.num_tokens();
      const int64_t border = cut ? held_out_from(index, spec, entry.path) : end;
      add(sources.train, {0, border}, entry.weight, "training");
      if (cut) add(sources.validation, {border, end}, entry.weight, "validation");
    });
  }
  for (const BlendEntry& entry : spec.validation) {
    constexpr std::string_view kKey = "data.validation";
    datasets.push_back(open_dataset_for(files, entry.path, vocab_size, kKey));
    const TokenRange all{0, datasets.back()->index().num_tokens()};
    blaming(kKey, [&] { add(sources.validation, all, entry.weight, "validation"); });
  }
  check_tokenizers(datasets);
  return sources;
}

Source open_source(FileSystem& files, const std::string& prefix, int64_t sequence_length,
                   Packing packing, int64_t vocab_size, std::string_view key, Rest rest) {
  Dataset dataset = open_dataset_for(files, prefix, vocab_size, key);
  const TokenRange all{0, dataset->index().num_tokens()};
  return blaming(key, [&] {
    return make_source(dataset, all, sequence_length, packing, 1, "evaluation", rest);
  });
}

Source open_held_out(FileSystem& files, const std::string& prefix, const DataSpec& training,
                     int64_t sequence_length, int64_t vocab_size, std::string_view key) {
  Dataset dataset = open_dataset_for(files, prefix, vocab_size, key);
  const TokenRange held{held_out_from(dataset->index(), training, prefix),
                        dataset->index().num_tokens()};
  return blaming(key, [&] {
    return make_source(dataset, held, sequence_length, Packing::kConcat, 1, "validation",
                       Rest::kKeep);
  });
}

std::vector<int64_t> looked_at(int64_t num_tokens) {
  const int64_t blocks = (num_tokens + kBlockTokens - 1) / kBlockTokens;
  const int64_t count = std::min(blocks, kMostBlocks);
  std::vector<int64_t> begins;
  for (int64_t i = 0; i < count; ++i)
    begins.push_back(count == 1 ? 0 : i * (blocks - 1) / (count - 1) * kBlockTokens);
  return begins;
}

std::unique_ptr<Tokenizer> tokenizer_of(FileSystem& files, const DataSpec& spec) {
  ASHLAR_REQUIRE(!spec.train.empty() || !spec.tokenizer.empty(), kConfig,
                 "data.train and data.tokenizer are empty; expected one of them");
  const bool of_dataset = spec.tokenizer.empty();
  const std::string_view key = of_dataset ? "data.train" : "data.tokenizer";
  const auto own = std::ranges::find_if(
      spec.train, [&](const BlendEntry& entry) { return !is_foreign(files, entry.path); });
  if (of_dataset && own == spec.train.end()) return nullptr;
  const std::string& source = of_dataset ? own->path : spec.tokenizer;
  std::unique_ptr<Tokenizer> tokenizer = blaming(key, [&] {
    return of_dataset ? tokenizer_of_dataset(files, source) : load_tokenizer(files, source);
  });
  for (const BlendEntry& entry : spec.train) {
    const std::string path = entry.path + ".json";
    if (!files.stat(path, LinkPolicy::kFollow)) {
      check_ids(files, entry.path, *tokenizer, key);
      continue;
    }
    const uint64_t expected = load_sidecar(files, path).tokenizer_fingerprint;
    ASHLAR_REQUIRE(tokenizer->fingerprint() == expected, kData,
                   "{}: the tokenizer {} has fingerprint {:016x}; expected {:016x}, which {} was "
                   "prepared with",
                   key, source, tokenizer->fingerprint(), expected, entry.path);
  }
  return tokenizer;
}

}  // namespace ashlar::data
