// The training samples of a part of a dataset, by number.  There are no index files and nothing has
// to be built first, except that best-fit packing sorts the documents when it is opened.
//
// A sample of length s is s + 1 tokens, of which the first s are input and the last s targets.
//   concat    the tokens as one stream; sample j is tokens [j s, j s + s], so that neighbours share
//             a token; floor((tokens - 1) / s) samples, and with Rest::kKeep one of the rest
//   best fit  windows of at most s + 1 tokens, filled with whole documents (packing.h); documents
//             longer than that are dropped and counted
#pragma once

#include <cstdint>
#include <vector>

#include "ashlar/data/index.h"
#include "ashlar/data/packing.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::data {

struct TokenRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

// `length` tokens of the dataset, from `begin` on, inside one document.
struct DocumentSpan {
  int64_t begin;
  int64_t length;
  bool starts_document;  // false: it begins in the middle of one
  friend bool operator==(const DocumentSpan&, const DocumentSpan&) = default;
};

enum class Rest : uint8_t { kDrop, kKeep };  // for concat: tokens that do not fill a sample

class Samples {
 public:
  // Requires sequence_length >= 1.  Best fit takes the documents that are whole in the range.
  Samples(const DatasetIndex& index, TokenRange range, int64_t sequence_length, Packing packing,
          Rest rest = Rest::kDrop);

  int64_t size() const { return size_; }
  int64_t sequence_length() const { return sequence_length_; }
  TokenRange range() const { return range_; }
  // For best fit: documents that are too long, and their tokens.
  int64_t num_dropped() const { return windows_.num_dropped; }
  int64_t dropped_tokens() const { return windows_.dropped_tokens; }
  // Replaces `out` by the spans of sample j, in order; best fit and the rest may leave up to s
  // tokens unfilled.
  void spans(const DatasetIndex& index, int64_t sample, std::vector<DocumentSpan>& out) const;

 private:
  TokenRange range_;
  int64_t sequence_length_;
  Packing packing_;
  Windows windows_;             // best fit
  int64_t first_document_ = 0;  // document number 0 of windows_.items
  int64_t size_ = 0;
};

}  // namespace ashlar::data
