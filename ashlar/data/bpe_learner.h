// Learns a vocabulary and merges by byte pair encoding.
//
// Source  Sennrich et al. 2016; the trainer of the tokenizers library 0.23 with its defaults: of
//         pairs that occur equally often, the one of lower ids is joined first.
// Cost    the size of all words, and for every merge that of the words that hold the pair.
// Memory  about 50 bytes for each character of the words.
// Threads one; the result does not depend on the order of the words.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/core/function_ref.h"

namespace ashlar::data {

using WordCounts = std::unordered_map<std::string, int64_t>;

struct LearnedBpe {
  std::vector<std::string> tokens;  // by id
  std::vector<std::pair<int32_t, int32_t>> merges;
};

// The first tokens are `first`: all characters of the words, and others that no word holds.  There
// are fewer than vocab_size where no pair is left.  joined() is called after every merge.
LearnedBpe learn_bpe(const WordCounts& counts, std::span<const std::string> first,
                     int64_t vocab_size, function_ref<void(int64_t num_tokens)> joined);

}  // namespace ashlar::data
