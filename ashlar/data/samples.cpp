#include "ashlar/data/samples.h"

#include <algorithm>

#include "ashlar/core/error.h"

namespace ashlar::data {

Samples::Samples(const DatasetIndex& index, TokenRange range, int64_t sequence_length,
                 Packing packing, Rest rest)
    : range_(range), sequence_length_(sequence_length), packing_(packing) {
  ASHLAR_ASSERT(sequence_length >= 1);
  ASHLAR_ASSERT(0 <= range.begin && range.begin <= range.end && range.end <= index.num_tokens());
  if (packing == Packing::kConcat) {
    // The last sample too needs one token more, as its last target.
    const int64_t targets = std::max<int64_t>(0, range.size() - 1);
    size_ = targets / sequence_length;
    if (rest == Rest::kKeep && targets % sequence_length > 0) ++size_;
    return;
  }
  if (range.size() == 0) return;
  // The document at the beginning of the range, or the next one if the range begins inside of it.
  first_document_ = index.locate(range.begin).document;
  if (index.document_start(first_document_) < range.begin) ++first_document_;
  std::vector<int64_t> lengths;
  for (int64_t d = first_document_;
       d < index.num_documents() && index.document_start(d + 1) <= range.end; ++d)
    lengths.push_back(index.document_length(d));
  windows_ = pack_best_fit(lengths, sequence_length + 1);
  size_ = windows_.size();
}

void Samples::spans(const DatasetIndex& index, int64_t sample,
                    std::vector<DocumentSpan>& out) const {
  ASHLAR_ASSERT(sample >= 0 && sample < size_);
  out.clear();
  if (packing_ == Packing::kBestFit) {
    for (const int64_t item : windows_.items_of(sample)) {
      const int64_t document = first_document_ + item;
      out.push_back({index.document_start(document), index.document_length(document), true});
    }
    return;
  }
  // The sample may begin inside a document and may reach over many; each gives one span.
  int64_t at = range_.begin + sample * sequence_length_;
  const int64_t end = std::min(at + sequence_length_ + 1, range_.end);
  TokenPosition place = index.locate(at);
  for (int64_t d = place.document; at < end; ++d) {
    const int64_t document_end = index.document_start(d + 1);
    const int64_t piece_end = std::min(end, document_end);
    if (piece_end > at)  // documents may be empty
      out.push_back({at, piece_end - at, at == index.document_start(d)});
    at = std::max(at, piece_end);
  }
}

}  // namespace ashlar::data
